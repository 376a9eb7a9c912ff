"""Ranks read directly from SQL, for when the index is unavailable.

Every read scans the whole period, in one transaction with one snapshot, in which the period is not frozen.
"""

from collections.abc import Sequence
from typing import Any

from laurels.adapters.numbering import number_entries, range_bounds
from laurels.adapters.postgres.pool import Connection, PostgresPool, T, Work
from laurels.adapters.postgres.scores import need_live, signs, sub_sign
from laurels.adapters.postgres.sql import SQL
from laurels.core.board import Ranking, RankStyle
from laurels.core.distribution import DECILES, bucket_edges, percentile_offsets
from laurels.core.order import Heads
from laurels.ports import Distribution, Found, Page, RangePage, RankEntry, ScoreRange


class PostgresRanks:
    def __init__(self, pool: PostgresPool) -> None:
        self._pool = pool

    async def _read(self, ranking: Ranking, work: Work[T]) -> T:
        async def read(connection: Connection) -> T:
            await need_live(connection, ranking.period_id)
            return await work(connection)

        return await self._pool.scan_together(read)

    async def top(self, ranking: Ranking, offset: int, limit: int, style: RankStyle) -> Page:
        return await self._read(ranking, lambda c: _page(c, ranking, offset, limit, style))

    async def find(self, ranking: Ranking, user_id: str, style: RankStyle) -> Found | None:
        return await self._read(ranking, lambda c: _find(c, ranking, user_id, style))

    async def around(self, ranking: Ranking, user_id: str, above: int, below: int, style: RankStyle) -> Page | None:
        async def read(connection: Connection) -> Page | None:
            found = await _find(connection, ranking, user_id, RankStyle.ORDINAL)
            if found is None:
                return None
            first = max(0, found.entry.rank - 1 - above)
            return await _page(connection, ranking, first, found.entry.rank + below - first, style)

        return await self._read(ranking, read)

    async def find_many(self, ranking: Ranking, user_ids: Sequence[str], style: RankStyle) -> list[RankEntry | None]:
        rows = await self._read(
            ranking,
            lambda c: c.fetch(
                SQL["ranks_find_many"], *_of(ranking), *signs(ranking), list(user_ids), sub_sign(ranking)
            ),
        )
        found = {
            row["user_id"]: RankEntry(
                row["user_id"], row["score"], row["achieved_at"], row[style.value], _subscore(ranking, row)
            )
            for row in rows
            if ranking.capacity is None or row["ordinal"] <= ranking.capacity
        }
        return [found.get(user_id) for user_id in user_ids]

    async def in_range(
        self, ranking: Ranking, scores: ScoreRange, skip: int, limit: int, style: RankStyle, *, from_end: bool = False
    ) -> RangePage:
        async def read(connection: Connection) -> RangePage:
            sign, _ = signs(ranking)
            (row,) = await connection.fetch(SQL["ranks_in_range"], *_of(ranking), sign, scores.best, scores.worst)
            total = ranking.limit(row["total"])
            bounds = range_bounds(row["before"], row["up_to"], total, skip, limit, from_end=from_end)
            before, after, start, stop = bounds
            entries = (await _page(connection, ranking, start, stop - start, style)).entries if start < stop else []
            return RangePage(entries, start, before, after - before, total)

        return await self._read(ranking, read)

    async def distribution(self, ranking: Ranking, buckets: int, percentiles: Sequence[int] = DECILES) -> Distribution:
        return await self._read(ranking, lambda c: _distribution(c, ranking, buckets, percentiles))

    async def count(self, ranking: Ranking) -> int:
        return await self._read(ranking, lambda c: _total(c, ranking))


def _of(ranking: Ranking) -> tuple[int, str, str | None]:
    """Return the parameters that select the ranked users: the period, the segment and the shadow viewer."""
    return ranking.period_id, ranking.segment, None if ranking.shadow_viewer is None else ranking.shadow_viewer.user_id


def _subscore(ranking: Ranking, row: Any) -> int | None:
    return None if ranking.subscore is None else row["subscore"]


async def _total(connection: Connection, ranking: Ranking) -> int:
    total = int(await connection.fetchval(SQL["ranks_total"], *_of(ranking)))
    return ranking.limit(total)


async def _page(connection: Connection, ranking: Ranking, offset: int, limit: int, style: RankStyle) -> Page:
    total = await _total(connection, ranking)
    limit = min(limit, total - offset)
    if limit <= 0:
        return Page([], total)
    rows = await connection.fetch(SQL["ranks_page"], *_of(ranking), *signs(ranking), offset, limit, sub_sign(ranking))
    users, scores, times, subscores = zip(*rows, strict=True)
    first = await _rank(connection, ranking, scores[0], subscores[0], offset, style)
    heads = Heads(scores, None if ranking.subscore is None else subscores, times)
    return Page(number_entries(users, heads, offset, first, style), total)


async def _find(connection: Connection, ranking: Ranking, user_id: str, style: RankStyle) -> Found | None:
    row = await connection.fetchrow(SQL["ranks_find"], *_of(ranking), *signs(ranking), user_id, sub_sign(ranking))
    if row is None or (ranking.capacity is not None and row["ahead"] >= ranking.capacity):
        return None
    rank = await _rank(connection, ranking, row["score"], row["subscore"], row["ahead"], style)
    entry = RankEntry(user_id, row["score"], row["achieved_at"], rank, _subscore(ranking, row))
    return Found(entry, row["better"], ranking.limit(row["total"]))


async def _rank(
    connection: Connection, ranking: Ranking, score: float, subscore: int, offset: int, style: RankStyle
) -> int:
    if style is RankStyle.ORDINAL:
        return offset + 1
    query = SQL["ranks_better" if style is RankStyle.COMPETITION else "ranks_distinct_better"]
    sign, _ = signs(ranking)
    subs = sub_sign(ranking)
    return int(await connection.fetchval(query, *_of(ranking), sign, score * sign, subs, subscore * subs)) + 1


async def _distribution(
    connection: Connection, ranking: Ranking, buckets: int, percentiles: Sequence[int]
) -> Distribution:
    """Count in the database, because there may be as many scores as users."""
    ranked = (*_of(ranking), *signs(ranking), ranking.capacity)
    (ends,) = await connection.fetch(SQL["ranks_ends"], *ranked)
    low, high, total = ends
    if not total:
        return Distribution([], [], [])
    edges = bucket_edges(low, high, buckets)
    # The bucket of a score is the number of inner edges that are not above it.
    found = await connection.fetch(SQL["ranks_buckets"], *ranked, edges[1:-1])
    users = {row["bucket"]: row["users"] for row in found}
    offsets = percentile_offsets(total, percentiles)
    scores = await connection.fetch(SQL["ranks_at_offsets"], *ranked, sorted(set(offsets)))
    by_offset = dict(zip(sorted(set(offsets)), (score for (score,) in scores), strict=True))
    return Distribution(
        edges,
        [users.get(bucket, 0) for bucket in range(len(edges) - 1)],
        [by_offset[offset] for offset in offsets],
    )
