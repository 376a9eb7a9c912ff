"""Keeps the index equal to the ledger as scores come in: what was recorded is applied, at once or buffered
(buffers.py), and a trimmed ranking that runs low is refilled. What fails goes to the healer (healing.py).
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable

import structlog

from laurels.core.board import Board, Ranking
from laurels.core.windows import Period
from laurels.errors import LaurelsError, Unavailable
from laurels.ports import AsOf, Index, Ledger, Placement, Row
from laurels.service.buffers import Buffers
from laurels.service.healing import Healer, apply_reduced, complete

log = structlog.get_logger()

Progress = Callable[[int, int], None]


class Follower:
    def __init__(self, ledger: Ledger, index: Index, healer: Healer) -> None:
        self._ledger = ledger
        self._index = index
        self._healer = healer
        self.buffers = Buffers(self._apply_buffered)
        self._ready = False

    @property
    def is_ready(self) -> bool:
        return self._ready

    def require_ready(self) -> None:
        if not self._ready:
            raise Unavailable("starting", "The rankings are being loaded. Try again in a moment.")

    def know(self, board: Board) -> None:
        """A board that was made or changed, here or elsewhere."""
        self._healer.know(board)

    def drop_board(self, board: Board) -> None:
        """Forget a board that the ledger has lost."""
        self._healer.drop_board(board)

    async def load_all(self, boards: Iterable[Board], progress: Progress) -> None:
        """Fill an index of our own from the ledger; `progress` is told how many rows of how many are in.

        A shared index is there already, or is healed while the ledger answers: it keeps nobody waiting.
        """
        boards = list(boards)
        for board in boards:
            self._healer.know(board)
        if self._ledger.ranks is None:
            await self._load_rows(boards, progress)
        else:
            await self._healer.look()
        self._ready = True

    async def load(self, board: Board) -> None:
        """Build the rankings of a new or changed board, beside the live ones.

        Where that fails the board says that it is catching up, and it is tried again until it works.
        """
        self._healer.know(board)
        for period in board.periods:
            await self.load_period(board, period)

    async def load_period(self, board: Board, period: Period) -> None:
        ranking = board.ranking(period.id)
        try:
            await self._healer.build(board, ranking)
        except LaurelsError as error:
            self._healer.mend(board, ranking, (), error)
        except Exception:
            log.exception("load_failed", board=board.uuid)
            await self._index.drop(ranking)
            self._healer.mend(board, ranking, ())

    async def apply(
        self, recorded: Iterable[Row], as_of: AsOf, *, at_once: bool = False
    ) -> dict[tuple[int, str], Placement]:
        """Bring recorded rows into the index; gives the ranks by (period, user).

        Never raises, for the rows are durable: where the index fails, they have no rank in the answer and are applied
        as soon as it can be done. `as_of`: what was known of the ledger before it was asked for them. `at_once`: not
        buffered, for somebody's score may be worse than it was.
        """
        periods: dict[int, dict[str, Row]] = {}
        for row in recorded:
            rows = periods.setdefault(row.period_id, {})
            if (held := rows.get(row.user_id)) is None or row.version > held.version:
                rows[row.user_id] = row
        # Without a board: the period is final by now.
        known = [
            (board, board.ranking(period_id), rows)
            for period_id, rows in periods.items()
            if (board := self._healer.board_of(period_id)) is not None
        ]
        applied = await asyncio.gather(
            *(
                self._follow(board, ranking, list(rows.values()), as_of, at_once=at_once)
                for board, ranking, rows in known
            )
        )
        return {
            (ranking.period_id, user_id): placement
            for (_, ranking, rows), placements in zip(known, applied, strict=True)
            if placements is not None
            for user_id, placement in zip(rows, placements, strict=True)
        }

    async def _follow(
        self, board: Board, ranking: Ranking, rows: list[Row], as_of: AsOf, *, at_once: bool
    ) -> list[Placement] | None:
        if board.flush_ms is None or at_once:
            return await self._apply_one(board, ranking, rows, as_of)
        # Who is removed goes at once: the next score of theirs may be one that is left out.
        if removed := [row for row in rows if row.ranked is None]:
            await self._apply_one(board, ranking, removed, as_of)
        if scored := [row for row in rows if row.ranked is not None]:
            self.buffers.add(board, ranking, scored, as_of)
        return None

    async def _apply_buffered(self, board: Board, ranking: Ranking, rows: list[Row], as_of: AsOf) -> None:
        try:
            applied = await apply_reduced(self._ledger, self._index, board, ranking, rows, as_of)
            if applied.placements is None:
                self._healer.mend(board, ranking, rows if applied.refused else ())
        except LaurelsError as error:
            self._healer.mend(board, ranking, rows, error)
        except Exception:
            log.exception("index_behind", board=board.uuid, rows=len(rows))
            # Nobody knows what is left of it.
            await self._index.drop(ranking)
            self._healer.mend(board, ranking, rows)

    async def _apply_one(self, board: Board, ranking: Ranking, rows: list[Row], as_of: AsOf) -> list[Placement] | None:
        try:
            applied = await self._index.apply(ranking, rows, board.rank_style, as_of=as_of)
            if applied.refused:
                # They are read again.
                self._healer.mend(board, ranking, rows)
                return None
            if self._healer.is_behind(ranking):
                # Nobody knows who else is missing.
                return None
            if applied.placements is None:
                self._healer.mend(board, ranking)
                return None
            if not applied.short:
                return applied.placements
            await complete(self._ledger, self._index, ranking)
            return await self._ranks_now(board, ranking, applied.placements, [row.user_id for row in rows])
        except LaurelsError as error:
            self._healer.mend(board, ranking, rows, error)
        except Exception:
            log.exception("index_behind", board=board.uuid, rows=len(rows))
            # Nobody knows what is left of it.
            await self._index.drop(ranking)
            self._healer.mend(board, ranking, rows)
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
                await self._healer.build(board, board.ranking(period.id), counted)

    async def _ranks_now(
        self, board: Board, ranking: Ranking, placed: list[Placement], user_ids: list[str]
    ) -> list[Placement]:
        """The ranks after a refill, which may have brought some of the users back."""
        places = await self._index.places(ranking, user_ids, board.rank_style)
        return [
            Placement(before.before, place.rank if place else None)
            for before, place in zip(placed, places, strict=True)
        ]
