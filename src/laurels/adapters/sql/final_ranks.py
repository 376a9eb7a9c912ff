"""Reads of the final ranks of frozen periods, by key. Each SQL ledger supplies the queries.

The total is read after the ranks, because it exists only as long as all final ranks do. So a read never returns a part
of the ranks while they are being pruned: it raises `Stale`.
"""

import math
from collections.abc import Awaitable, Callable, Sequence
from itertools import pairwise

from laurels.adapters.numbering import range_bounds
from laurels.core.board import Ranking, RankStyle
from laurels.core.distribution import DECILES, bucket_edges, percentile_offsets
from laurels.core.order import Order
from laurels.ports import Distribution, Final, Found, Page, RangePage, RankEntry, ScoreRange


class FinalRanks:
    """Final ranks, read with four queries. Each query takes a period id and a segment.

    `pages` returns the ranks after a place. `finds` returns the ranks of some users. `scores` returns the scores at
    some places, in any order. `totals` returns the number of ranks, and raises `Stale` if they have been pruned.
    """

    def __init__(
        self,
        pages: Callable[[int, str, int, int], Awaitable[list[Final]]],
        finds: Callable[[int, str, Sequence[str]], Awaitable[list[Final]]],
        scores: Callable[[int, str, Sequence[int]], Awaitable[dict[int, float]]],
        totals: Callable[[int, str], Awaitable[int]],
    ) -> None:
        self._pages = pages
        self._finds = finds
        self._scores = scores
        self._totals = totals

    async def top(self, ranking: Ranking, offset: int, limit: int, style: RankStyle) -> Page:
        finals = await self._pages(*_of(ranking), offset, limit)
        return Page([_place(final, ranking, style) for final in finals], await self._totals(*_of(ranking)))

    async def find(self, ranking: Ranking, user_id: str, style: RankStyle) -> Found | None:
        finals = await self._finds(*_of(ranking), [user_id])
        total = await self._totals(*_of(ranking))
        if not finals:
            return None
        return Found(_place(finals[0], ranking, style), finals[0].competition - 1, total)

    async def around(self, ranking: Ranking, user_id: str, above: int, below: int, style: RankStyle) -> Page | None:
        finals = await self._finds(*_of(ranking), [user_id])
        if not finals:
            return None
        first = max(0, finals[0].place - 1 - above)
        return await self.top(ranking, first, finals[0].place + below - first, style)

    async def find_many(self, ranking: Ranking, user_ids: Sequence[str], style: RankStyle) -> list[RankEntry | None]:
        found = {final.user_id: _place(final, ranking, style) for final in await self._finds(*_of(ranking), user_ids)}
        await self._totals(*_of(ranking))
        return [found.get(user_id) for user_id in user_ids]

    async def count(self, ranking: Ranking) -> int:
        return await self._totals(*_of(ranking))

    async def in_range(
        self, ranking: Ranking, scores: ScoreRange, skip: int, limit: int, style: RankStyle, *, from_end: bool = False
    ) -> RangePage:
        total = await self._totals(*_of(ranking))
        ascending = ranking.order is Order.ASC
        # In a descending ranking, the users who are better than a score are all but those up to it.
        best, worst = (scores.best, _above(scores.worst)) if ascending else (_above(scores.best), scores.worst)
        edges = [edge for edge in (best, worst) if edge is not None]
        found = iter(await self._search(ranking, edges, total) if total else [0] * len(edges))
        before, after = (None if edge is None else next(found) for edge in (best, worst))
        before = 0 if before is None else before if ascending else total - before
        after = total if after is None else after if ascending else total - after
        before, after, start, stop = range_bounds(before, after, total, skip, limit, from_end=from_end)
        entries = (await self.top(ranking, start, stop - start, style)).entries if start < stop else []
        return RangePage(entries, start, before, after - before, total)

    async def distribution(self, ranking: Ranking, buckets: int, percentiles: Sequence[int] = DECILES) -> Distribution:
        total = await self._totals(*_of(ranking))
        if not total:
            return Distribution([], [], [])
        offsets = [0, total - 1, *percentile_offsets(total, percentiles)]
        low, high, *found = await self._scores_at(ranking, offsets, total)
        edges = bucket_edges(low, high, buckets)
        starts = [0, *await self._search(ranking, edges[1:-1], total), total]
        return Distribution(edges, [end - start for start, end in pairwise(starts)], found)

    async def _scores_at(self, ranking: Ranking, offsets: Sequence[int], total: int) -> list[float]:
        """Return the scores at some offsets, counted from the lowest score."""
        lowest_first = ranking.order is Order.ASC
        places = [offset + 1 if lowest_first else total - offset for offset in offsets]
        found = await self._scores(*_of(ranking), sorted(set(places)))
        await self._totals(*_of(ranking))
        return [found[place] for place in places]

    async def _search(self, ranking: Ranking, edges: Sequence[float], total: int) -> list[int]:
        """Count the scores below each edge, with one binary search for all edges together: O(log n) queries."""
        low, high = [0] * len(edges), [total] * len(edges)
        while open_ := [number for number in range(len(edges)) if low[number] < high[number]]:
            middles = [(low[number] + high[number]) // 2 for number in open_]
            scores = await self._scores_at(ranking, middles, total)
            for number, middle, score in zip(open_, middles, scores, strict=True):
                if score < edges[number]:
                    low[number] = middle + 1
                else:
                    high[number] = middle
        return low


def _above(score: float | None) -> float | None:
    """Return the next larger double."""
    return None if score is None else math.nextafter(score, math.inf)


def _of(ranking: Ranking) -> tuple[int, str]:
    return ranking.period_id, ranking.segment


def _place(final: Final, ranking: Ranking, style: RankStyle) -> RankEntry:
    subscore = None if ranking.subscore is None else final.subscore
    return RankEntry(final.user_id, final.score, final.achieved_at, final.rank(style), subscore)
