"""Keeps the index equal to the ledger: loads it at the start, and applies what was recorded since.

All of it goes through one lane, so that nothing is applied between reading the ledger's best rows for a trimmed
ranking and taking them over.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable

import structlog

from laurels.core.board import Board, Ranking
from laurels.errors import Unavailable
from laurels.ports import Index, Ledger, Placement, Row

log = structlog.get_logger()

Progress = Callable[[int, int], None]
RETRY_S = 1.0
REFILLS = 5


class Follower:
    def __init__(self, ledger: Ledger, index: Index) -> None:
        self._ledger = ledger
        self._index = index
        self._lane = asyncio.Lock()
        self._loading = asyncio.Lock()
        self._healing: dict[int, asyncio.Task[None]] = {}
        # Each board as it was loaded last: an event in flight may carry an older one.
        self._latest: dict[int, Board] = {}
        self._ready = False

    @property
    def is_ready(self) -> bool:
        return self._ready

    def require_ready(self) -> None:
        if not self._ready:
            raise Unavailable("starting", "The rankings are being loaded. Try again in a moment.")

    async def load_all(self, boards: Iterable[Board], progress: Progress) -> None:
        """Fill the index from the ledger; `progress` is told how many rows of how many are in."""
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
            self._latest[board.id] = board
            for period in board.periods:
                await self._index.load(board.ranking(period.id), counted(self._ledger.rows(period.id)))
        self._ready = True

    async def load(self, board: Board) -> None:
        """Build the rankings of a new or changed board, beside the live ones.

        Where that fails the board says that it is catching up, and it is tried again until it works.
        """
        self._latest[board.id] = board
        try:
            await self._build(board.id)
        except Exception:
            log.exception("load_failed", board=board.uuid)
            for period in board.periods:
                await self._heal(board, board.ranking(period.id))

    async def apply(self, recorded: Iterable[tuple[Board, Row]]) -> dict[tuple[int, str], Placement]:
        """Bring recorded rows into the index; gives the ranks by (period, user).

        Never raises, for the rows are durable: where the index fails, its ranking answers that it is catching up
        until it has been loaded again, and the rows have no rank in the answer.
        """
        rankings: dict[Ranking, tuple[Board, dict[str, Row]]] = {}
        for board, row in recorded:
            rankings.setdefault(board.ranking(row.period_id), (board, {}))[1][row.user_id] = row
        placements: dict[tuple[int, str], Placement] = {}
        async with self._lane:
            for ranking, (board, by_user) in rankings.items():
                rows = list(by_user.values())
                try:
                    placed = await self._index.apply(ranking, rows, board.rank_style)
                    if await self._complete(ranking):
                        placed = await self._ranks_now(board, ranking, placed, list(by_user))
                except Exception:
                    log.exception("index_behind", board=board.uuid, rows=len(rows))
                    await self._heal(board, ranking)
                    continue
                for row, placement in zip(rows, placed, strict=True):
                    placements[ranking.period_id, row.user_id] = placement
        return placements

    async def close(self) -> None:
        for task in self._healing.values():
            task.cancel()
        await asyncio.gather(*self._healing.values(), return_exceptions=True)

    async def _heal(self, board: Board, ranking: Ranking) -> None:
        await self._index.drop(ranking)
        if board.id not in self._healing:
            task = asyncio.create_task(self._build_until_done(board.id), name=f"heal {board.uuid}")
            self._healing[board.id] = task
            task.add_done_callback(lambda _: self._healing.pop(board.id, None))

    async def _build_until_done(self, board_id: int) -> None:
        while True:
            try:
                await self._build(board_id)
            except Exception:
                log.exception("load_failed", board=self._latest[board_id].uuid, retry_s=RETRY_S)
                await asyncio.sleep(RETRY_S)
            else:
                log.info("index_healed", board=self._latest[board_id].uuid)
                return

    async def _build(self, board_id: int) -> None:
        async with self._loading:
            board = self._latest[board_id]
            for period in board.periods:
                await self._index.load(board.ranking(period.id), self._ledger.rows(period.id))

    async def _complete(self, ranking: Ranking) -> bool:
        """Refill a trimmed ranking while it is short; gives whether it was."""
        refilled = False
        # Once is enough, unless the ranking is built anew in between.
        for _ in range(REFILLS):
            shortage = self._index.shortage(ranking)
            if shortage is None:
                break
            best = await self._ledger.best_rows(ranking, shortage.wanted)
            await self._index.refill(ranking, shortage, best)
            refilled = True
        return refilled

    async def _ranks_now(
        self, board: Board, ranking: Ranking, placed: list[Placement], user_ids: list[str]
    ) -> list[Placement]:
        """The ranks after a refill, which may have brought some of the users back."""
        places = await self._index.places(ranking, user_ids, board.rank_style)
        return [
            Placement(before.before, place.rank if place else None)
            for before, place in zip(placed, places, strict=True)
        ]
