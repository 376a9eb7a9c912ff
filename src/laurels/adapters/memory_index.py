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
from laurels.ports import Applied, Distribution, Found, Held, IndexState, Page, Place, Refill, Row, Standby


class MemoryIndex:
    """`feed` is told of every change that a read could show, under the name `ranking/PERIOD`."""

    def __init__(self, feed: MemoryFeed | None = None) -> None:
        self._feed = feed or MemoryFeed()
        # By period.
        self._live: dict[int, SortedRanking] = {}
        self._building: dict[int, SortedRanking] = {}
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
        self, ranking: Ranking, rows: AsyncIterator[list[Row]], position: str, replacing: str | None = None
    ) -> None:
        del position, replacing  # nothing that was applied is ever lost, and there is nobody else
        name = ranking.period_id
        turn = self._turns.setdefault(name, asyncio.Lock())
        async with turn:
            building = self._building[name] = SortedRanking(ranking)
            try:
                async for chunk in rows:
                    building.gather(chunk)
                building.settle()
                self._live[name] = building
            finally:
                del self._building[name]
        self._tell(ranking)

    async def apply(self, ranking: Ranking, rows: Sequence[Row], style: RankStyle, left_out: int = 0) -> Applied:
        building = self._building.get(ranking.period_id)
        if building is not None:
            building.gather(rows, left_out)
        live = self._get(ranking)
        placements = live.apply(rows, style, left_out)
        self._tell(ranking)
        return Applied(placements, live.runs_low)

    async def drop(self, ranking: Ranking) -> None:
        self._live.pop(ranking.period_id, None)

    async def forget(self, ranking: Ranking, user_ids: Sequence[str]) -> None:
        self._get(ranking).forget(user_ids)

    async def trim(self, ranking: Ranking, *, forget: bool) -> int:
        return self._get(ranking).trim(forget=forget)

    async def begin_refill(self, ranking: Ranking) -> Refill | None:
        return self._get(ranking).begin_refill()

    async def refill(self, ranking: Ranking, refill: Refill, best: Sequence[Row]) -> None:
        self._get(ranking).refill(refill, best)
        self._tell(ranking)

    async def states(self, rankings: Sequence[Ranking]) -> list[IndexState]:
        found = [self._live.get(ranking.period_id) for ranking in rankings]
        return [
            IndexState(Standby.COLD) if live is None else IndexState(Standby.READY, capacity=live.ranking.capacity)
            for live in found
        ]

    async def confirm(self, ranking: Ranking, seen: IndexState, position: str) -> None:
        pass

    async def claim(self, task: str, seconds: float) -> bool:
        del task, seconds  # there is nobody else
        return True

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
