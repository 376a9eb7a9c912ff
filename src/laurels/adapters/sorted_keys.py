"""One sorted list of byte keys (see core/order.py), and what can be read of it: position is rank, and a key alone tells
score, time and user. No more than the capacity is shown, however many it holds.
"""

from collections.abc import Iterable
from itertools import groupby, pairwise

from sortedcontainers import SortedList

from laurels.adapters.numbering import number_places
from laurels.core.board import Ranking, RankStyle
from laurels.core.distribution import bucket_edges, decile_offsets
from laurels.core.order import HEAD_BYTES, SCORE_BYTES, Order, after_score, decode_key, encode_score
from laurels.ports import Distribution, Found, Page, Place


class SortedKeys:
    __slots__ = ("_capacity", "_distinct", "_order", "_ties", "keys")

    def __init__(self, ranking: Ranking, keys: Iterable[bytes] = ()) -> None:
        self._order, self._ties, self._capacity = ranking.order, ranking.ties, ranking.capacity
        self._distinct: _DistinctScores | None = None
        self.keys = SortedList(keys)

    def add(self, key: bytes) -> None:
        self.keys.add(key)
        if self._distinct is not None:
            self._distinct.add(key[:SCORE_BYTES])

    def remove(self, key: bytes) -> None:
        self.keys.remove(key)
        if self._distinct is not None:
            self._distinct.remove(key[:SCORE_BYTES])

    def cut(self, keep: int) -> list[bytes]:
        """Remove all but the first `keep`; gives them."""
        gone: list[bytes] = self.keys[keep:]
        if self._distinct is not None:
            for key in gone:
                self._distinct.remove(key[:SCORE_BYTES])
        del self.keys[keep:]
        return gone

    @property
    def total(self) -> int:
        """How many are ranked. O(1)."""
        held = len(self.keys)
        return held if self._capacity is None else min(held, self._capacity)

    # Reads

    def top(self, offset: int, limit: int, style: RankStyle) -> Page:
        """O(log n + limit)."""
        total = self.total
        stop = min(offset + limit, total)
        return Page(self._places(offset, stop, style) if offset < stop else [], total)

    def find(self, key: bytes | None, style: RankStyle) -> Found | None:
        """O(log n)."""
        offset = self.offset_of(key)
        if offset is None:
            return None
        (place,) = self._places(offset, offset + 1, style)
        return Found(place, self._better(self.keys[offset]), self.total)

    def around(self, key: bytes | None, above: int, below: int, style: RankStyle) -> Page | None:
        """O(log n + above + below)."""
        offset = self.offset_of(key)
        if offset is None:
            return None
        total = self.total
        return Page(self._places(max(0, offset - above), min(total, offset + below + 1), style), total)

    def place(self, key: bytes | None, style: RankStyle) -> Place | None:
        """O(log n)."""
        offset = self.offset_of(key)
        return None if offset is None else self._places(offset, offset + 1, style)[0]

    def distribution(self, buckets: int) -> Distribution:
        """O(buckets · log n)."""
        total = self.total
        if not total:
            return Distribution([], [], [])
        first, last = self._score_at(0), self._score_at(total - 1)
        edges = bucket_edges(min(first, last), max(first, last), buckets)
        below = [0, *(self._count_below(edge) for edge in edges[1:-1]), total]
        counts = [high - low for low, high in pairwise(below)]
        descending = self._order is Order.DESC
        deciles = [self._score_at(total - 1 - offset if descending else offset) for offset in decile_offsets(total)]
        return Distribution(edges, counts, deciles)

    def users(self) -> list[str]:
        return [user_of(key) for key in self.keys.islice(0, self.total)]

    def offset_of(self, key: bytes | None) -> int | None:
        """Where a key that it holds stands; None: outside the capacity, or nothing at all."""
        if not key:
            return None
        offset = self.keys.bisect_left(key)
        return offset if offset < self.total else None

    def rank_of(self, key: bytes | None, style: RankStyle) -> int | None:
        offset = self.offset_of(key)
        return None if offset is None else self._rank_at(offset, self.keys[offset], style)

    # Inside

    def _rank_at(self, offset: int, key: bytes, style: RankStyle) -> int:
        match style:
            case RankStyle.ORDINAL:
                return offset + 1
            case RankStyle.COMPETITION:
                return self._better(key) + 1
            case RankStyle.DENSE:
                if self._distinct is None:
                    # Only boards that are asked for dense ranks pay for them: O(n), once.
                    self._distinct = _DistinctScores(self.keys)
                return self._distinct.rank(key[:SCORE_BYTES])

    def _better(self, key: bytes) -> int:
        # A score's 8 bytes come before every key that starts with them.
        return int(self.keys.bisect_left(key[:SCORE_BYTES]))

    def _places(self, start: int, stop: int, style: RankStyle) -> list[Place]:
        order, ties = self._order, self._ties
        entries: list[tuple[str, float, int]] = []
        for key in self.keys.islice(start, stop):
            score, at, user_id = decode_key(order, ties, key)
            entries.append((user_id, score, at))
        first = self._rank_at(start, self.keys[start], style) if entries else 0
        return number_places(entries, start, first, style)

    def _score_at(self, offset: int) -> float:
        return decode_key(self._order, self._ties, self.keys[offset])[0]

    def _count_below(self, score: float) -> int:
        prefix = encode_score(self._order, score)
        total = self.total
        if self._order is Order.ASC:
            return min(total, int(self.keys.bisect_left(prefix)))
        return total - min(total, int(self.keys.bisect_left(after_score(prefix))))

    def _check(self) -> None:
        """Assert every invariant. O(n log n)."""
        self.keys._check()  # noqa: SLF001 - the library's own self-check
        if self._distinct is not None:
            assert self._distinct.counts == _DistinctScores(self.keys).counts
            assert list(self._distinct.prefixes) == sorted(self._distinct.counts)


def user_of(key: bytes) -> str:
    return key[HEAD_BYTES:].decode()


class _DistinctScores:
    """How many users have each score: what dense ranks count."""

    def __init__(self, keys: Iterable[bytes]) -> None:
        self.counts = {prefix: sum(1 for _ in same) for prefix, same in groupby(keys, lambda key: key[:SCORE_BYTES])}
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
