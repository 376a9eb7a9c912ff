"""The index updater: applies recorded rows to the index, at once or buffered (buffers.py).

Rows that can't be applied go to the repairer (repairer.py).
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import structlog

from laurels.core.board import Board, Ranking
from laurels.core.windows import Period
from laurels.errors import LaurelsError, Unavailable
from laurels.ports import AsOf, Index, Ledger, RankChange, RanksWanted, Row
from laurels.service.index.buffers import Buffers
from laurels.service.index.repairer import IndexRepairer, apply_in_parts

log = structlog.get_logger()

LOADS_AT_ONCE = 4

T = TypeVar("T")
# The ranks to return: of all rows, or by board id and user.
Wanted = RanksWanted | Mapping[tuple[int, str], RanksWanted]
_NOT_WANTED = RankChange(None, None)

Progress = Callable[[int, int], None]


class IndexUpdater:
    def __init__(self, ledger: Ledger, index: Index, repairer: IndexRepairer) -> None:
        self._ledger = ledger
        self._index = index
        self._repairer = repairer
        self.buffers = Buffers(self._apply_buffered)
        # Called with rows of boards whose scores expire, and before such rows are ranked: see expirer.py.
        self.on_expiring_rows: Callable[[Board, list[Row]], None] = lambda _board, _rows: None
        self.before_ranks: Callable[[Board], Awaitable[None]] = _nothing
        self._ready = False

    @property
    def is_ready(self) -> bool:
        return self._ready

    def require_ready(self) -> None:
        if not self._ready:
            raise Unavailable("starting", "The rankings are being loaded. Try again in a moment.")

    def track(self, board: Board) -> None:
        """Register a board that was created or changed, on this or another server."""
        self._repairer.track(board)

    def drop_board(self, board: Board) -> None:
        """Forget a board that was deleted, or that the ledger has lost."""
        self._repairer.drop_board(board)

    async def load_all(self, boards: Iterable[Board], progress: Progress) -> None:
        """Fill the index of this process from the ledger; `progress` gets the loaded and the total number of rows.

        A shared index is already filled, or is repaired while the ledger answers reads, so this does not wait for it.
        """
        boards = list(boards)
        for board in boards:
            self._repairer.track(board)
        if self._ledger.ranks is None:
            await self._load_rows(boards, progress)
        else:
            await self._repairer.check_histories()
        self._ready = True

    def reshard(self, board: Board) -> None:
        """Begin to build the rankings of a board with another number of shards, if that is what it needs."""
        if board.reshard is not None and board.reshard.switched_at is None:
            for period in board.periods:
                self._repairer.schedule(board, board.ranking(period.id))

    async def load(self, board: Board) -> None:
        """Build the rankings of a new or changed board, then replace the live ones.

        If a build fails, reads of the ranking fail with `catching_up`, and the repairer retries until it succeeds.
        """
        self._repairer.track(board)
        await self.load_periods(board, board.periods)

    async def load_periods(self, board: Board, periods: Sequence[Period]) -> None:
        """Build the rankings of these periods, as `load` does. Some run at once, because each needs several calls."""
        for start in range(0, len(periods), LOADS_AT_ONCE):
            await asyncio.gather(
                *(self._load_period(board, period) for period in periods[start : start + LOADS_AT_ONCE])
            )

    async def _load_period(self, board: Board, period: Period) -> None:
        for ranking in board.rankings(period.id):
            await self._load_ranking(board, ranking)

    async def _load_ranking(self, board: Board, ranking: Ranking) -> None:
        try:
            await self._repairer.build(board, ranking)
        except LaurelsError as error:
            self._repairer.schedule(board, ranking, (), error)
        except Exception:
            log.exception("load_failed", board=board.uuid)
            await self._index.drop(ranking)
            self._repairer.schedule(board, ranking, ())

    async def apply(
        self,
        recorded: Iterable[Row],
        as_of: AsOf,
        *,
        at_once: bool = False,
        wanted: Wanted = RanksWanted.NONE,
        expired: bool = False,
    ) -> dict[tuple[int, str], RankChange]:
        """Apply recorded rows to the index and return the rank changes by (period id, user id).

        Never raises, because the rows are durable: if the index fails, the result lacks their ranks, and the repairer
        applies them as soon as possible. `as_of`: what was known of the ledger before the rows were read. `at_once`:
        don't buffer the rows, because a score may have become worse. `wanted`: which ranks to return, of all rows or
        by board id and user. `expired`: the rows are those of scores that expire.
        """
        periods: dict[int, dict[str, Row]] = {}
        for row in recorded:
            rows = periods.setdefault(row.period_id, {})
            if (held := rows.get(row.user_id)) is None or row.version > held.version:
                rows[row.user_id] = row
        # A period without a board has been frozen.
        known = [
            (board, board.ranking(period_id), rows)
            for period_id, rows in periods.items()
            if (board := self._repairer.board_of(period_id)) is not None
        ]
        for board, _, rows in known:
            if board.score_ttl_s is not None and not expired:
                self.on_expiring_rows(board, list(rows.values()))
                await self.before_ranks(board)
        following = [
            self._follow(board, ranking, list(rows.values()), as_of, at_once=at_once, wanted=wanted)
            for board, ranking, rows in known
        ]
        # An index in this process does not wait, so tasks would only cost time.
        if len(following) == 1 or self._index.instant is not None:
            applied = await _in_turn(following)
        else:
            applied = await asyncio.gather(*following)
        return {
            (ranking.period_id, user_id): rank_change
            for (_, ranking, rows), rank_changes in zip(known, applied, strict=True)
            if rank_changes
            for user_id, rank_change in zip(rows, rank_changes, strict=True)
        }

    async def _follow(
        self, board: Board, ranking: Ranking, rows: list[Row], as_of: AsOf, *, at_once: bool, wanted: Wanted
    ) -> list[RankChange] | None:
        if board.flush_ms is not None and not at_once:
            self.buffers.add(board, ranking, rows, as_of)
            return None
        if board.reshard is None:
            return await self._apply_wanted(board, ranking, rows, as_of, wanted)
        rank_changes, _ = await asyncio.gather(
            self._apply_wanted(board, ranking, rows, as_of, wanted), self._apply_to_other(board, ranking, rows, as_of)
        )
        return rank_changes

    async def _apply_wanted(
        self, board: Board, ranking: Ranking, rows: list[Row], as_of: AsOf, wanted: Wanted
    ) -> list[RankChange] | None:
        """Apply rows, and return at least the rank changes that are wanted of each."""
        if isinstance(wanted, RanksWanted):
            return await self._apply_one(board, ranking, rows, as_of, wanted)
        each = [wanted.get((board.id, row.user_id), RanksWanted.NONE) for row in rows]
        if ranking.parts == 1 or len(set(each)) == 1:
            return await self._apply_one(board, ranking, rows, as_of, max(each))
        # Each rank of a split ranking asks every part, so one writer who wants a rank must not make the others pay.
        asking = [row for row, ranks in zip(rows, each, strict=True) if ranks is not RanksWanted.NONE]
        silent = [row for row, ranks in zip(rows, each, strict=True) if ranks is RanksWanted.NONE]
        await self._apply_one(board, ranking, silent, as_of, RanksWanted.NONE)
        rank_changes = await self._apply_one(board, ranking, asking, as_of, max(each))
        if rank_changes is None:
            return None
        found = dict(zip([row.user_id for row in asking], rank_changes, strict=True))
        return [found.get(row.user_id, _NOT_WANTED) for row in rows]

    async def _apply_to_other(self, board: Board, ranking: Ranking, rows: list[Row], as_of: AsOf) -> None:
        """Apply rows to the ranking with the other number of shards, while that number changes."""
        for other in board.rankings(ranking.period_id)[1:]:
            try:
                applied = await apply_in_parts(self._index, board, other, rows, as_of)
                missed = applied.rank_changes is None
            except LaurelsError:
                # It is missing until its build begins, which reads these rows.
                missed = True
            except Exception:
                log.exception("index_stale", board=board.uuid, rows=len(rows))
                await self._index.drop(other)
                missed = True
            if missed:
                self._repairer.note_other_missed(board, other)

    async def _apply_buffered(self, board: Board, ranking: Ranking, rows: list[Row], as_of: AsOf) -> None:
        # The number of shards may have changed since the first of the rows was buffered.
        board = self._repairer.board_of(ranking.period_id) or board
        ranking = board.ranking(ranking.period_id)
        await self._apply_to_other(board, ranking, rows, as_of)
        try:
            applied = await apply_in_parts(self._index, board, ranking, rows, as_of)
            if applied.rank_changes is None:
                self._repairer.schedule(board, ranking, rows if applied.refused else ())
        except LaurelsError as error:
            self._repairer.schedule(board, ranking, rows, error)
        except Exception:
            log.exception("index_stale", board=board.uuid, rows=len(rows))
            # The content of the ranking is unknown after an unexpected error.
            await self._index.drop(ranking)
            self._repairer.schedule(board, ranking, rows)

    async def _apply_one(
        self, board: Board, ranking: Ranking, rows: list[Row], as_of: AsOf, wanted: RanksWanted
    ) -> list[RankChange] | None:
        try:
            applied = await self._index.apply(ranking, rows, board.rank_style, as_of, wanted)
            if applied.refused:
                # The repairer reads the rows again.
                self._repairer.schedule(board, ranking, rows)
                return None
            if applied.rank_changes is None:
                self._repairer.schedule(board, ranking)
            # Ranks in a stale ranking may be wrong, because other rows may be missing.
            return None if self._repairer.is_stale(ranking) else applied.rank_changes
        except LaurelsError as error:
            self._repairer.schedule(board, ranking, rows, error)
        except Exception:
            log.exception("index_stale", board=board.uuid, rows=len(rows))
            # The content of the ranking is unknown after an unexpected error.
            await self._index.drop(ranking)
            self._repairer.schedule(board, ranking, rows)
        return None

    async def _load_rows(self, boards: list[Board], progress: Progress) -> None:
        total = await self._ledger.count_rows()
        done = 0

        async def counted(rows: AsyncIterator[list[Row]]) -> AsyncIterator[list[Row]]:
            nonlocal done
            async for chunk in rows:
                yield chunk
                done += len(chunk)
                progress(done, total)

        progress(0, total)
        for board in boards:
            for period in board.periods:
                await self._repairer.build(board, board.ranking(period.id), counted)


async def _nothing(_board: Board) -> None:
    pass


async def _in_turn(works: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Return the results of all works, one after the other. Raises the first error, after all of them have ended."""
    left = deque(works)
    results: list[T] = []
    failure: Exception | None = None
    try:
        while left:
            try:
                results.append(await left.popleft())
            except Exception as error:  # noqa: BLE001 - raised below
                failure = failure or error
    finally:
        # After a cancellation.
        for work in left:
            work.close()
    if failure is not None:
        raise failure
    return results
