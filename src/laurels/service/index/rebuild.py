"""Rebuilds of a board's rankings while they are in use, with a report of what differed from the previous ones."""

import asyncio
from collections.abc import AsyncIterator

from msgspec import Struct

from laurels.core.board import Board, Ranking
from laurels.errors import Stale, Unavailable
from laurels.ports import Held, Index, Row
from laurels.service.index.repairer import IndexRepairer

MAX_EXAMPLES = 100
ATTEMPTS = 10
TELL_EVERY_S = 0.5
POLL_S = 0.05


class Rebuilt(Struct, frozen=True):
    """The progress or the result of rebuilding one ranking.

    `rows`: rows loaded so far. `differed`: how many users were wrong in the previous ranking; None until `done`, or if
    the previous ranking could not be read. `users`: the first of them, at most MAX_EXAMPLES.
    """

    board: str
    period: str
    rows: int
    differed: int | None
    users: tuple[str, ...]
    done: bool


async def rebuild_board(index: Index, repairer: IndexRepairer, board: Board) -> AsyncIterator[Rebuilt]:
    """Rebuild the rankings of a board.

    Yields the progress every TELL_EVERY_S seconds, and at the end of each ranking what differed.
    """
    for period in board.periods:
        # The number of shards may have changed since the last period.
        current = repairer.board_of(period.id)
        if current is None:
            continue
        comparison = _Comparison(index, current.ranking(period.id))
        building = asyncio.create_task(repairer.build(current, current.ranking(period.id), comparison.watch))
        try:
            while not building.done():
                await asyncio.wait({building}, timeout=TELL_EVERY_S)
                if not building.done():
                    yield Rebuilt(board.uuid, period.name, comparison.rows, None, (), done=False)
            await building
        except Stale:
            # The period was frozen meanwhile, so it no longer has a ranking.
            continue
        finally:
            building.cancel()
        users = tuple(comparison.users[:MAX_EXAMPLES])
        yield Rebuilt(board.uuid, period.name, comparison.rows, comparison.differed, users, done=True)


class _Comparison:
    """A comparison of the live ranking with the ledger's rows while they are loaded into the new one."""

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
        # A row that was just committed may not have reached the index yet.
        for _ in range(ATTEMPTS):
            if self._missing or not differing:
                return
            try:
                held = await self._index.held(self._ranking, [row.user_id for row in differing])
            except Unavailable:
                self._missing = True
                return
            differing = [row for row, found in zip(differing, held, strict=True) if not _same(row, found)]
            if len(differing) > len(chunk) // 2:
                # These are not rows that are on their way.
                break
            await asyncio.sleep(POLL_S if differing else 0)
        self.users += [row.user_id for row in differing]

    @property
    def differed(self) -> int | None:
        return None if self._missing else len(self.users)


def _same(row: Row, held: Held | None) -> bool:
    if held is None:
        return row.ranked is None
    if held.version != row.version:
        return held.version > row.version
    if held.score is None:
        return row.ranked is None
    standing = row.ranked
    return standing is not None and (held.score, held.subscore, held.achieved_at, held.segments) == (
        standing.score,
        standing.subscore,
        standing.achieved_at,
        row.segments,
    )
