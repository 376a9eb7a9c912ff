"""Builds the rankings of a board anew while they are in use, and tells what differed from the ones before."""

import asyncio
from collections.abc import AsyncIterator

from msgspec import Struct

from laurels.core.board import Board, Ranking
from laurels.errors import Unavailable
from laurels.ports import Held, Index, Row
from laurels.service.healing import Healer

MAX_EXAMPLES = 100
LOOKS = 10
POLL_S = 0.05


class Rebuilt(Struct, frozen=True):
    """A ranking that was built anew: how many rows it was made of, and which users the one before had wrong.

    `differed` None: there was none before. `users`: the first of those that differed.
    """

    board: str
    period: str
    rows: int
    differed: int | None
    users: tuple[str, ...]


async def rebuild_board(index: Index, healer: Healer, board: Board) -> AsyncIterator[Rebuilt]:
    for period in board.periods:
        comparison = _Comparison(index, board.ranking(period.id))
        await healer.build(board, board.ranking(period.id), comparison.watch)
        yield Rebuilt(
            board.uuid, period.name, comparison.rows, comparison.differed, tuple(comparison.users[:MAX_EXAMPLES])
        )


class _Comparison:
    """Looks at the live ranking as the ledger's rows go by on their way to the new one."""

    def __init__(self, index: Index, ranking: Ranking) -> None:
        self._index = index
        self._ranking = ranking
        self.rows = 0
        self.users: list[str] = []
        self._missing = False

    async def watch(self, rows: AsyncIterator[list[Row]]) -> AsyncIterator[list[Row]]:
        async for chunk in rows:
            await self._compare(chunk)
            self.rows += len(chunk)
            yield chunk

    async def _compare(self, chunk: list[Row]) -> None:
        differing = chunk
        # A row that was committed a moment ago may still be on its way to the index.
        for _ in range(LOOKS):
            if self._missing or not differing:
                return
            try:
                held = await self._index.held(self._ranking, [row.user_id for row in differing])
            except Unavailable:
                self._missing = True
                return
            capped = self._ranking.capacity is not None
            differing = [
                row for row, found in zip(differing, held, strict=True) if not _same(row, found, capped=capped)
            ]
            await asyncio.sleep(POLL_S if differing else 0)
        self.users += [row.user_id for row in differing]

    @property
    def differed(self) -> int | None:
        return None if self._missing else len(self.users)


def _same(row: Row, held: Held | None, *, capped: bool) -> bool:
    if held is None:
        return row.standing is None
    if held.version != row.version:
        return held.version > row.version
    if held.score is None:
        return row.standing is None or capped
    standing = row.standing
    return standing is not None and (held.score, held.achieved_at) == (standing.score, standing.achieved_at)
