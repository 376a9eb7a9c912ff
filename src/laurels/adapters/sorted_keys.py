"""A sorted list of byte keys; see core/order.py for their encoding.

The offset of a key is its ordinal rank minus 1, and the key contains score, subscore, time and user. Here a zero byte
and the version of the row follow, so that one object holds all data of a user. This does not change the order, because
each user is in the list once and user ids contain no zero byte.

`SortedKeys` holds all users. `RankedKeys` is the part that a read may show: the best users, up to the capacity.
"""

from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise

from sortedcontainers import SortedList

from laurels.adapters.numbering import number_entries, range_bounds
from laurels.core.board import Ranking, RankStyle
from laurels.core.distribution import bucket_edges, percentile_offsets
from laurels.core.order import (
    HEAD_BYTES,
    TIE_BYTES,
    Order,
    Sorting,
    after_score,
    decode_head,
    decode_heads,
    encode_key,
    encode_score,
)
from laurels.ports import Distribution, Found, Page, RangePage, RankEntry, ScoreRange


def make_key(sorting: Sorting, score: float, subscore: int, at: int, user_id: str, version: int) -> bytes:
    key = encode_key(sorting, score, subscore, at, user_id)
    return key + b"\0" + version.to_bytes((version.bit_length() + 7) // 8)


def version_of(key: bytes) -> int:
    return int.from_bytes(key[key.index(0, HEAD_BYTES) + 1 :])


def user_of(key: bytes) -> str:
    return key[HEAD_BYTES : key.index(0, HEAD_BYTES)].decode()


class SortedKeys:
    __slots__ = ("_distinct", "keys")

    def __init__(self, keys: Iterable[bytes] = ()) -> None:
        self._distinct: _DistinctScores | None = None
        self.keys = SortedList(keys)

    def add(self, key: bytes) -> None:
        """Add a key. O(log n)."""
        self.keys.add(key)
        if self._distinct is not None:
            self._distinct.add(key[:TIE_BYTES])

    def remove(self, key: bytes) -> None:
        """Remove a key that is in the list. O(log n)."""
        self.keys.remove(key)
        if self._distinct is not None:
            self._distinct.remove(key[:TIE_BYTES])

    def count_better(self, key: bytes) -> int:
        """Return how many keys have a strictly better score and subscore. O(log n)."""
        # These bytes sort before every key that starts with them.
        return int(self.keys.bisect_left(key[:TIE_BYTES]))

    def dense_rank(self, key: bytes) -> int:
        """Return the dense rank of a key. O(log n), after O(n) for the first call."""
        if self._distinct is None:
            # Built on first use, so that only boards with dense ranks pay for it.
            self._distinct = _DistinctScores(self.keys)
        return self._distinct.rank(key[:TIE_BYTES])

    def check(self) -> None:
        """Assert every invariant. O(n log n)."""
        self.keys._check()  # noqa: SLF001 - the library's self-check
        if self._distinct is not None:
            assert self._distinct.counts == _DistinctScores(self.keys).counts
            assert list(self._distinct.prefixes) == sorted(self._distinct.counts)


class RankedKeys:
    """The keys of a `SortedKeys` that `ranking` shows. Valid for one read, until the keys change."""

    __slots__ = ("_keys", "_order", "_sorted", "_sorting", "total")

    def __init__(self, ranking: Ranking, sorted_keys: SortedKeys) -> None:
        self._order, self._sorting = ranking.order, ranking.sorting
        self._sorted = sorted_keys
        self._keys = sorted_keys.keys
        self.total = ranking.limit(len(self._keys))

    def top(self, offset: int, limit: int, style: RankStyle) -> Page:
        """Return up to `limit` entries from `offset` on. O(log n + limit)."""
        stop = min(offset + limit, self.total)
        return Page(self._entries(offset, stop, style) if offset < stop else [], self.total)

    def find(self, key: bytes | None, style: RankStyle) -> Found | None:
        """Return the entry of a key, with the numbers for a percentile; None if it is not ranked. O(log n)."""
        if key is None:
            return None
        better = self._sorted.count_better(key)
        rank = better + 1
        if style is not RankStyle.COMPETITION or self.total < len(self._keys):
            offset = self._offset_of(key)
            if offset is None:
                return None
            if style is not RankStyle.COMPETITION:
                rank = self._rank_at(offset, key, style)
        score, subscore, at = decode_head(self._sorting, key)
        shown = None if self._sorting.subscore is None else subscore
        return Found(RankEntry(user_of(key), score, at, rank, shown), better, self.total)

    def around(self, key: bytes | None, above: int, below: int, style: RankStyle) -> Page | None:
        """Return the entry of a key and its neighbours; None if it is not ranked. O(log n + above + below)."""
        offset = self._offset_of(key)
        if offset is None:
            return None
        total = self.total
        return Page(self._entries(max(0, offset - above), min(total, offset + below + 1), style), total)

    def entry(self, key: bytes | None, style: RankStyle) -> RankEntry | None:
        """Return the entry of a key; None if it is not ranked. O(log n)."""
        offset = self._offset_of(key)
        return None if offset is None else self._entries(offset, offset + 1, style)[0]

    def rank(self, key: bytes | None, style: RankStyle) -> int | None:
        """Return the rank of a key; None if it is not ranked. O(log n)."""
        if key is not None and style is RankStyle.COMPETITION and self.total == len(self._keys):
            return self._sorted.count_better(key) + 1
        offset = self._offset_of(key)
        return None if key is None or offset is None else self._rank_at(offset, key, style)

    def in_range(self, scores: ScoreRange, skip: int, limit: int, style: RankStyle, *, from_end: bool) -> RangePage:
        """Count the keys in a range of scores, and return entries near them. O(log n + limit)."""
        total = self.total
        before = 0 if scores.best is None else int(self._keys.bisect_left(encode_score(self._order, scores.best)))
        after = total
        if scores.worst is not None:
            after = int(self._keys.bisect_left(after_score(encode_score(self._order, scores.worst))))
        before, after, start, stop = range_bounds(before, after, total, skip, limit, from_end=from_end)
        entries = self._entries(start, stop, style) if start < stop else []
        return RangePage(entries, start, before, after - before, total)

    def distribution(self, buckets: int, percentiles: Sequence[int]) -> Distribution:
        """Count the scores in each bucket. O((buckets + percentiles) · log n)."""
        total = self.total
        if not total:
            return Distribution([], [], [])
        first, last = self._score_at(0), self._score_at(total - 1)
        edges = bucket_edges(min(first, last), max(first, last), buckets)
        below = [0, *(self._count_below(edge) for edge in edges[1:-1]), total]
        counts = [high - low for low, high in pairwise(below)]
        descending = self._order is Order.DESC
        offsets = percentile_offsets(total, percentiles)
        found = [self._score_at(total - 1 - offset if descending else offset) for offset in offsets]
        return Distribution(edges, counts, found)

    def users(self, offset: int, limit: int) -> list[str]:
        """Return up to `limit` ranked users from `offset` on, in order. O(log n + limit)."""
        return [user_of(key) for key in self._keys.islice(offset, min(offset + limit, self.total))]

    def _offset_of(self, key: bytes | None) -> int | None:
        """Return the offset of a key that the list holds; None for no key, or beyond the capacity."""
        if key is None:
            return None
        offset = self._keys.bisect_left(key)
        return offset if offset < self.total else None

    def _rank_at(self, offset: int, key: bytes, style: RankStyle) -> int:
        match style:
            case RankStyle.ORDINAL:
                return offset + 1
            case RankStyle.COMPETITION:
                return self._sorted.count_better(key) + 1
            case RankStyle.DENSE:
                return self._sorted.dense_rank(key)

    def _entries(self, start: int, stop: int, style: RankStyle) -> list[RankEntry]:
        keys = list(self._keys.islice(start, stop))
        if not keys:
            return []
        users = [key[HEAD_BYTES : key.index(0, HEAD_BYTES)].decode() for key in keys]
        heads = decode_heads(self._sorting, keys)
        return number_entries(users, heads, start, self._rank_at(start, keys[0], style), style)

    def _score_at(self, offset: int) -> float:
        return decode_head(self._sorting, self._keys[offset])[0]

    def _count_below(self, score: float) -> int:
        prefix = encode_score(self._order, score)
        total = self.total
        if self._order is Order.ASC:
            return min(total, int(self._keys.bisect_left(prefix)))
        return total - min(total, int(self._keys.bisect_left(after_score(prefix))))


class _DistinctScores:
    """The number of users per distinct score and subscore, for dense ranks."""

    def __init__(self, keys: Iterable[bytes]) -> None:
        self.counts = {prefix: sum(1 for _ in same) for prefix, same in groupby(keys, lambda key: key[:TIE_BYTES])}
        self.prefixes = SortedList(self.counts)

    def add(self, prefix: bytes) -> None:
        count = self.counts.get(prefix, 0)
        if not count:
            self.prefixes.add(prefix)
        self.counts[prefix] = count + 1

    def remove(self, prefix: bytes) -> None:
        count = self.counts[prefix] - 1
        if count:
            self.counts[prefix] = count
        else:
            del self.counts[prefix]
            self.prefixes.remove(prefix)

    def rank(self, prefix: bytes) -> int:
        return int(self.prefixes.bisect_left(prefix)) + 1
