"""The index in memory, with one SortedRanking per period.

Each read and each change runs on one event loop without an await in between, so every read shows one moment and needs
no lock.
"""

import asyncio
from collections.abc import AsyncIterator, Hashable, Sequence
from weakref import WeakValueDictionary

from laurels.adapters.memory_feed import MemoryFeed
from laurels.adapters.sorted_ranking import SortedRanking
from laurels.core.board import Ranking, RankStyle
from laurels.core.distribution import DECILES
from laurels.errors import Unavailable
from laurels.ports import (
    Applied,
    AsOf,
    Distribution,
    Found,
    Held,
    IndexHealth,
    IndexState,
    Page,
    Position,
    RangePage,
    RankEntry,
    RanksWanted,
    Row,
    ScoreRange,
    ranking_topic,
)

# How many users one step of a list of all users returns.
LIST_USERS = 10_000


class MemoryIndex:
    """The index in memory. It publishes every change that a read could show on `feed`."""

    def __init__(self, feed: MemoryFeed | None = None) -> None:
        self._feed = feed or MemoryFeed()
        # By period.
        self._live: dict[int, SortedRanking] = {}
        self._building: dict[int, SortedRanking] = {}
        # Guard against older rows of users who were forgotten.
        self._floors: dict[int, int] = {}
        # One lock per period that is being built; dropped when no build of the period runs or waits.
        self._turns: WeakValueDictionary[int, asyncio.Lock] = WeakValueDictionary()

    async def open(self, ledger_id: str) -> None:
        del ledger_id  # the index belongs to the process that holds the ledger

    async def close(self) -> None:
        pass

    async def ping(self) -> None:
        pass

    @property
    def instant(self) -> "MemoryIndex":
        return self

    @property
    def outages(self) -> int:
        return 0

    async def load(
        self,
        ranking: Ranking,
        rows: AsyncIterator[list[Row]],
        position: Position,
        replacing: Sequence[IndexState] | None = None,
    ) -> None:
        del replacing  # no other server builds this index
        name = ranking.period_id
        turn = self._turns.setdefault(name, asyncio.Lock())
        async with turn:
            building = self._building[name] = SortedRanking(ranking, self._floor(name, position.floor))
            try:
                async for chunk in rows:
                    building.gather(chunk)
                if self._building.get(name) is not building:
                    raise Unavailable(
                        "catching_up", "The build was abandoned, because users were erased during it. Try again."
                    )
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
        as_of: AsOf = AsOf(),  # noqa: B008 - a frozen value
        wanted: RanksWanted = RanksWanted.BOTH,
    ) -> Applied:
        building = self._building.get(ranking.period_id)
        if building is not None:
            if building.refused(rows, as_of.floor):
                # The build would go live before the row was read again.
                del self._building[ranking.period_id]
            else:
                building.gather(rows)
        live = self._get(ranking)
        if live.refused(rows, as_of.floor):
            return Applied(None, refused=True)
        rank_changes = live.apply(ranking, rows, style, wanted)
        self._tell(ranking)
        return Applied(rank_changes)

    async def drop(self, ranking: Ranking) -> None:
        self._live.pop(ranking.period_id, None)
        # A build in progress must not bring the ranking back.
        self._building.pop(ranking.period_id, None)
        self._floors.pop(ranking.period_id, None)

    async def forget(self, ranking: Ranking, user_ids: Sequence[str], floor: int) -> None:
        self._building.pop(ranking.period_id, None)
        self._floors[ranking.period_id] = self._floor(ranking.period_id, floor)
        live = self._live.get(ranking.period_id)
        if live is not None:
            live.forget(user_ids, floor)

    async def states(self, rankings: Sequence[Ranking]) -> list[tuple[IndexState, ...]]:
        return [
            (IndexState(IndexHealth.READY if ranking.period_id in self._live else IndexHealth.MISSING),)
            for ranking in rankings
        ]

    async def confirm(self, ranking: Ranking, seen: IndexState, position: Position) -> None:
        pass

    async def built(self) -> AsyncIterator[list[tuple[int, int]]]:
        yield [(period_id, 1) for period_id in (*self._live, *self._floors)]

    async def claim(self, task: str, seconds: float) -> bool:
        del task, seconds  # there is only one server
        return True

    def _floor(self, period_id: int, floor: int) -> int:
        return max(floor, self._floors.get(period_id, 0))

    async def top(self, ranking: Ranking, offset: int, limit: int, style: RankStyle) -> Page:
        return self._get(ranking).top(ranking, offset, limit, style)

    async def revision(self, ranking: Ranking) -> Hashable:
        return self.revision_now(ranking)

    async def find(self, ranking: Ranking, user_id: str, style: RankStyle) -> Found | None:
        return self.find_now(ranking, user_id, style)

    async def around(self, ranking: Ranking, user_id: str, above: int, below: int, style: RankStyle) -> Page | None:
        return self.around_now(ranking, user_id, above, below, style)

    def revision_now(self, ranking: Ranking) -> Hashable:
        return self._get(ranking).revision

    def find_now(self, ranking: Ranking, user_id: str, style: RankStyle) -> Found | None:
        return self._get(ranking).find(ranking, user_id, style)

    def around_now(self, ranking: Ranking, user_id: str, above: int, below: int, style: RankStyle) -> Page | None:
        return self._get(ranking).around(ranking, user_id, above, below, style)

    async def find_many(self, ranking: Ranking, user_ids: Sequence[str], style: RankStyle) -> list[RankEntry | None]:
        return self._get(ranking).find_many(ranking, user_ids, style)

    async def in_range(
        self, ranking: Ranking, scores: ScoreRange, skip: int, limit: int, style: RankStyle, *, from_end: bool = False
    ) -> RangePage:
        return self._get(ranking).in_range(ranking, scores, skip, limit, style, from_end=from_end)

    async def distribution(self, ranking: Ranking, buckets: int, percentiles: Sequence[int] = DECILES) -> Distribution:
        return self._get(ranking).distribution(ranking, buckets, percentiles)

    async def count(self, ranking: Ranking) -> int:
        return self._get(ranking).count(ranking)

    async def held(self, ranking: Ranking, user_ids: Sequence[str]) -> list[Held | None]:
        held = self._get(ranking)
        return [held.held(user_id) for user_id in user_ids]

    async def segments(self, ranking: Ranking) -> list[str]:
        return self._get(ranking).segments()

    async def ranked_users(self, ranking: Ranking) -> AsyncIterator[list[str]]:
        offset = 0
        while users := self._get(ranking).users(ranking, offset, LIST_USERS):
            yield users
            offset += len(users)
            # Other work may run in between.
            await asyncio.sleep(0)

    @property
    def held_periods(self) -> set[int]:
        """Return the periods that have a ranking."""
        return set(self._live)

    def check(self) -> None:
        """Assert every invariant. O(n log n)."""
        for live in self._live.values():
            live.check()

    def _tell(self, ranking: Ranking) -> None:
        self._feed.tell(ranking_topic(ranking), "")

    def _get(self, ranking: Ranking) -> SortedRanking:
        live = self._live.get(ranking.period_id)
        if live is None:
            raise Unavailable("catching_up", "This ranking is being loaded. Try again in a moment.")
        return live
