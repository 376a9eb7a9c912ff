"""The index inside the process: one SortedRanking a period. Everything happens between two awaits, on one event
loop, so every read is of one moment and no lock is needed.
"""

import asyncio
from collections.abc import AsyncIterator, Hashable, Sequence
from weakref import WeakValueDictionary

from laurels.adapters.memory_feed import MemoryFeed
from laurels.adapters.sorted_ranking import SortedRanking
from laurels.core.board import Ranking, RankStyle
from laurels.errors import Unavailable
from laurels.ports import (
    Applied,
    AsOf,
    Distribution,
    Found,
    Held,
    IndexState,
    Page,
    Place,
    Position,
    Refill,
    Row,
    Standby,
)


class MemoryIndex:
    """`feed` is told of every change that a read could show, under the name `ranking/PERIOD`."""

    def __init__(self, feed: MemoryFeed | None = None) -> None:
        self._feed = feed or MemoryFeed()
        # By period.
        self._live: dict[int, SortedRanking] = {}
        self._building: dict[int, SortedRanking] = {}
        # What guards against older rows of users who were forgotten.
        self._floors: dict[int, int] = {}
        # Who builds a period, and who waits to; nobody else knows of one.
        self._turns: WeakValueDictionary[int, asyncio.Lock] = WeakValueDictionary()

    async def open(self, ledger_id: str) -> None:
        del ledger_id  # the index lives and dies with the process that holds the ledger

    async def close(self) -> None:
        pass

    async def ping(self) -> None:
        pass

    @property
    def outages(self) -> int:
        return 0

    async def load(
        self, ranking: Ranking, rows: AsyncIterator[list[Row]], position: Position, replacing: str | None = None
    ) -> None:
        del replacing  # there is nobody else
        name = ranking.period_id
        turn = self._turns.setdefault(name, asyncio.Lock())
        async with turn:
            building = self._building[name] = SortedRanking(ranking, self._floor(name, position.floor))
            try:
                async for chunk in rows:
                    building.gather(chunk)
                if self._building.get(name) is not building:
                    raise Unavailable("catching_up", "Users were forgotten while this ranking was built. Try again.")
                building.settle()
                self._live[name] = building
            finally:
                self._building.pop(name, None)
        self._tell(ranking)

    async def apply(
        self,
        ranking: Ranking,
        rows: Sequence[Row],
        style: RankStyle,
        left_out: int = 0,
        as_of: AsOf = AsOf(),  # noqa: B008 - a frozen value
    ) -> Applied:
        building = self._building.get(ranking.period_id)
        if building is not None:
            if building.refused(rows, as_of.floor):
                # It would be in place before the row was read again.
                del self._building[ranking.period_id]
            else:
                building.gather(rows, left_out)
        live = self._get(ranking)
        if live.refused(rows, as_of.floor):
            return Applied(None, refused=True)
        placements = live.apply(rows, style, left_out)
        self._tell(ranking)
        return Applied(placements, live.runs_low)

    async def drop(self, ranking: Ranking) -> None:
        self._live.pop(ranking.period_id, None)
        self._floors.pop(ranking.period_id, None)

    async def forget(self, ranking: Ranking, user_ids: Sequence[str], floor: int) -> None:
        self._building.pop(ranking.period_id, None)
        self._floors[ranking.period_id] = self._floor(ranking.period_id, floor)
        live = self._live.get(ranking.period_id)
        if live is not None:
            live.forget(user_ids, floor)

    async def trim(self, ranking: Ranking, *, forget: bool) -> int:
        return self._get(ranking).trim(forget=forget)

    async def begin_refill(self, ranking: Ranking) -> Refill | None:
        return self._get(ranking).begin_refill()

    async def refill(
        self,
        ranking: Ranking,
        refill: Refill,
        best: Sequence[Row],
        as_of: AsOf = AsOf(),  # noqa: B008 - a frozen value
    ) -> None:
        self._get(ranking).refill(refill, best, as_of.floor)
        self._tell(ranking)

    async def states(self, rankings: Sequence[Ranking]) -> list[IndexState]:
        found = [self._live.get(ranking.period_id) for ranking in rankings]
        return [
            IndexState(Standby.COLD) if live is None else IndexState(Standby.READY, capacity=live.ranking.capacity)
            for live in found
        ]

    async def confirm(self, ranking: Ranking, seen: IndexState, position: Position) -> None:
        pass

    async def periods(self) -> AsyncIterator[list[int]]:
        yield [*self._live, *self._floors]

    async def claim(self, task: str, seconds: float) -> bool:
        del task, seconds  # there is nobody else
        return True

    def _floor(self, period_id: int, floor: int) -> int:
        return max(floor, self._floors.get(period_id, 0))

    async def top(self, ranking: Ranking, offset: int, limit: int, style: RankStyle) -> Page:
        return self._readable(ranking).top(ranking, offset, limit, style)

    async def revision(self, ranking: Ranking) -> Hashable:
        return self._readable(ranking).revision

    async def find(self, ranking: Ranking, user_id: str, style: RankStyle) -> Found | None:
        return self._readable(ranking).find(ranking, user_id, style)

    async def around(self, ranking: Ranking, user_id: str, above: int, below: int, style: RankStyle) -> Page | None:
        return self._readable(ranking).around(ranking, user_id, above, below, style)

    async def places(self, ranking: Ranking, user_ids: Sequence[str], style: RankStyle) -> list[Place | None]:
        return self._readable(ranking).places(ranking, user_ids, style)

    async def distribution(self, ranking: Ranking, buckets: int) -> Distribution:
        return self._readable(ranking).distribution(ranking, buckets)

    async def count(self, ranking: Ranking) -> int:
        return self._readable(ranking).count(ranking)

    async def is_outside(self, ranking: Ranking, user_id: str) -> bool:
        return self._readable(ranking).is_outside(ranking, user_id)

    async def held(self, ranking: Ranking, user_ids: Sequence[str]) -> list[Held | None]:
        held = self._get(ranking)
        return [held.held(user_id) for user_id in user_ids]

    async def segments(self, ranking: Ranking) -> list[str]:
        return self._get(ranking).segments()

    async def ranked_users(self, ranking: Ranking) -> AsyncIterator[list[str]]:
        yield self._get(ranking).users(ranking)

    def _tell(self, ranking: Ranking) -> None:
        self._feed.tell(f"ranking/{ranking.period_id}", "")

    def _get(self, ranking: Ranking) -> SortedRanking:
        live = self._live.get(ranking.period_id)
        if live is None:
            raise Unavailable("catching_up", "This ranking is being loaded. Try again in a moment.")
        return live

    def _readable(self, ranking: Ranking) -> SortedRanking:
        live = self._get(ranking)
        if live.is_short:
            raise Unavailable("catching_up", "This ranking is being completed. Try again in a moment.")
        return live
