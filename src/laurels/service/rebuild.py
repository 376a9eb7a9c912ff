"""Builds the rankings of a board anew while they are in use, and tells what differed from the ones before."""

import asyncio
from collections.abc import AsyncIterator

from msgspec import Struct

from laurels.core.board import Board, Ranking
from laurels.errors import Stale, Unavailable
from laurels.ports import Held, Index, Row
from laurels.service.healing import Healer

MAX_EXAMPLES = 100
LOOKS = 10
TELL_EVERY_S = 0.5
POLL_S = 0.05


class Rebuilt(Struct, frozen=True):
    """A ranking that is being built anew: how many rows are in, and which users the one before had wrong.

    `differed` None: there was none before. `users`: the first of those that differed.
    """

    board: str
    period: str
    rows: int
    differed: int | None
    users: tuple[str, ...]
    done: bool


async def rebuild_board(index: Index, healer: Healer, board: Board) -> AsyncIterator[Rebuilt]:
    """Tells now and then how far it is, and at the end of each ranking what differed."""
    for period in board.periods:
        comparison = _Comparison(index, board.ranking(period.id), forgets=board.forgets)
        building = asyncio.create_task(healer.build(board, board.ranking(period.id), comparison.watch))
        try:
            while not building.done():
                await asyncio.wait({building}, timeout=TELL_EVERY_S)
                if not building.done():
                    yield Rebuilt(board.uuid, period.name, comparison.rows, None, (), done=False)
            await building
        except Stale:
            # It became final meanwhile: it has no ranking any more.
            continue
        finally:
            building.cancel()
        users = tuple(comparison.users[:MAX_EXAMPLES])
        yield Rebuilt(board.uuid, period.name, comparison.rows, comparison.differed, users, done=True)


class _Comparison:
    """Looks at the live ranking as the ledger's rows go by on their way to the new one."""

    def __init__(self, index: Index, ranking: Ranking, *, forgets: bool) -> None:
        self._index = index
        self._forgets = forgets
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
                row
                for row, found in zip(differing, held, strict=True)
                if not _same(row, found, capped=capped, forgets=self._forgets)
            ]
            await asyncio.sleep(POLL_S if differing else 0)
        self.users += [row.user_id for row in differing]

    @property
    def differed(self) -> int | None:
        return None if self._missing else len(self.users)


def _same(row: Row, held: Held | None, *, capped: bool, forgets: bool) -> bool:
    if forgets and (held is None or held.score is None):
        # Its index need not know of those who can't be ranked.
        return True
    if held is None:
        return row.ranked is None
    if held.version != row.version:
        return held.version > row.version
    if held.score is None:
        return row.ranked is None or capped
    standing = row.ranked
    return standing is not None and (held.score, held.achieved_at, held.segments) == (
        standing.score,
        standing.achieved_at,
        row.segments,
    )
