"""One ranking in memory: two structures that always agree.

`_keys` is a SortedList of byte keys (see core/order.py): position is rank, and a key alone tells score, time and
user. `_held` maps every user to the version last taken over and the key in `_keys`; it also remembers users who are
not in `_keys`, so that an old row can't bring them back.

With a capacity only the best stay in `_keys`, plus a reserve, so that one who drops out is replaced at once. All
users up to `_boundary` are in `_keys`, all others are outside. When the reserve runs low the ranking asks for the
ledger's best rows (`begin_refill`), and while it can't fill its capacity it refuses to be read (`is_short`). The rows
are read from a ledger that goes on: whoever is put outside until they are here is remembered in `_late`, for the new
boundary may let them in.
"""

from collections.abc import Iterable, Sequence
from itertools import count, groupby, pairwise

from sortedcontainers import SortedList

from laurels.adapters.numbering import number_places
from laurels.core.board import Ranking, RankStyle, reserve_of
from laurels.core.distribution import bucket_edges, decile_offsets
from laurels.core.order import SCORE_BYTES, Order, after_score, decode_key, encode_key, encode_score
from laurels.ports import Distribution, Found, Held, Page, Place, Placement, Refill, Row

# Stands for a key: the user has a score and is outside the capacity.
OUTSIDE = b""

# One count for all rankings, so that a ranking that was built anew never has the revision of the one before.
_revisions = count(1)


class SortedRanking:
    def __init__(self, ranking: Ranking) -> None:
        self.ranking = ranking
        self._held: dict[str, tuple[int, bytes | None]] = {}
        self._outside = 0
        self._boundary: bytes | None = None
        self._distinct: _DistinctScores | None = None
        self._late: dict[str, bytes] | None = None
        self._refill_token = 0
        self._reserve = reserve_of(ranking.capacity) if ranking.capacity else 0
        # From before `settle`: nobody beyond this key is to be held.
        self._limit: bytes | None = None
        self._keys = SortedList()
        self.revision = next(_revisions)

    def gather(self, rows: Sequence[Row], left_out: int = 0) -> None:
        """Take over rows before the ranking is first read. O(1) a row, for the sorting is left to `settle`."""
        if left_out:
            self._outside += left_out
            last = self._key_of(rows[-1])
            self._limit = last if self._limit is None or last is None else min(last, self._limit)
        for row in rows:
            held = self._held.get(row.user_id)
            if held is None or row.version > held[0]:
                self._held[row.user_id] = (row.version, self._key_of(row))

    def settle(self) -> None:
        """Sort what was gathered: from here on the ranking may be read and applied to. O(n log n)."""
        self._keys = SortedList(key for _, key in self._held.values() if key is not None)
        self._trim()
        if self._limit is not None:
            self._cut_after(self._limit)

    def apply(self, rows: Sequence[Row], style: RankStyle, left_out: int = 0) -> list[Placement]:
        """See Index.apply."""
        before = [self._rank_of(row.user_id, style) for row in rows]
        for row in rows:
            held = self._held.get(row.user_id)
            if held is None or row.version > held[0]:
                self._put(row.user_id, row.version, self._key_of(row))
        last = self._key_of(rows[-1]) if left_out else None
        if last is not None:
            # They are held nowhere, so they never leave this count; a refill that finds nobody else sets it right.
            self._outside += left_out
            self._cut_after(last)
            # A refill under way does not know of them.
            self._late = None
        self._trim()
        if self._late is not None and not self.runs_low:
            # Others filled it up: the refill under way is not needed any more.
            self._late = None
        return [Placement(old, self._rank_of(row.user_id, style)) for old, row in zip(before, rows, strict=True)]

    # Capacity

    @property
    def total(self) -> int:
        """How many users are ranked. O(1)."""
        held = len(self._keys)
        capacity = self.ranking.capacity
        return held if capacity is None else min(held, capacity)

    @property
    def is_short(self) -> bool:
        return self._outside > 0 and len(self._keys) < (self.ranking.capacity or 0)

    @property
    def runs_low(self) -> bool:
        return self._outside > 0 and len(self._keys) < (self.ranking.capacity or 0) + self._reserve // 2

    def trim(self, *, forget: bool) -> int:
        """See Index.trim. A refill under way may bring back whom it knows to be outside."""
        capacity = self.ranking.capacity
        if capacity is None or self._late is not None:
            return 0
        gone = max(0, len(self._keys) - capacity - self._reserve)
        if gone:
            self._cut(capacity + self._reserve)
            self._boundary = self._keys[-1]
        if forget:
            outside = [user_id for user_id, (_, key) in self._held.items() if key == OUTSIDE]
            for user_id in outside:
                del self._held[user_id]
            gone += len(outside)
        return gone

    def begin_refill(self) -> Refill | None:
        """See Index.begin_refill. A refill that has begun goes on: it remembers what the second one needs, too."""
        if not self.runs_low:
            return None
        if self._late is None:
            self._late, self._refill_token = {}, next(_revisions)
        return Refill((self.ranking.capacity or 0) + self._reserve, self._refill_token)

    def refill(self, refill: Refill, best: Sequence[Row]) -> None:
        """See Index.refill. O(len(best) · log n)."""
        if refill.token != self._refill_token or self._late is None:
            return
        late, self._late = self._late, None
        complete = len(best) < refill.wanted
        self._boundary = None if complete else self._key_of(best[-1])
        for row in best:
            version, key = self._held.get(row.user_id, (0, None))
            if row.version > version or (row.version == version and key == OUTSIDE):
                self._put(row.user_id, row.version, self._key_of(row))
        for user_id, key in late.items():
            if self._held[user_id][1] == OUTSIDE:
                self._put(user_id, self._held[user_id][0], key)
        if self._boundary is not None:
            # The ledger may be ahead: others may have passed users that are held here with an older row.
            self._cut(self._keys.bisect_right(self._boundary))
        if complete and self._outside:
            # The ledger has no score of them any more; the rows that say so are on their way.
            for user_id, (version, key) in self._held.items():
                if key == OUTSIDE:
                    self._held[user_id] = (version, None)
            self._outside = 0
        # Those who came late are more than were asked for.
        self._trim()

    # Reads

    def top(self, offset: int, limit: int, style: RankStyle) -> Page:
        """O(log n + limit)."""
        total = self.total
        stop = min(offset + limit, total)
        return Page(self._places(offset, stop, style) if offset < stop else [], total)

    def find(self, user_id: str, style: RankStyle) -> Found | None:
        """O(log n)."""
        offset = self._offset_of(user_id)
        if offset is None:
            return None
        (place,) = self._places(offset, offset + 1, style)
        return Found(place, self._better(self._keys[offset]), self.total)

    def around(self, user_id: str, above: int, below: int, style: RankStyle) -> Page | None:
        """O(log n + above + below)."""
        offset = self._offset_of(user_id)
        if offset is None:
            return None
        total = self.total
        return Page(self._places(max(0, offset - above), min(total, offset + below + 1), style), total)

    def place(self, user_id: str, style: RankStyle) -> Place | None:
        """O(log n)."""
        offset = self._offset_of(user_id)
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
        descending = self.ranking.order is Order.DESC
        deciles = [self._score_at(total - 1 - offset if descending else offset) for offset in decile_offsets(total)]
        return Distribution(edges, counts, deciles)

    def is_outside(self, user_id: str) -> bool:
        key = self._held.get(user_id, (0, None))[1]
        return key is not None and self._offset_of(user_id) is None

    def held(self, user_id: str) -> Held | None:
        held = self._held.get(user_id)
        if held is None:
            return None
        version, key = held
        if not key:
            return Held(version, None, None)
        score, at, _ = decode_key(self.ranking.order, self.ranking.ties, key)
        return Held(version, score, at)

    def users(self) -> list[str]:
        return [key[SCORE_BYTES * 2 :].decode() for key in self._keys.islice(0, self.total)]

    def __len__(self) -> int:
        return self.total

    # Inside

    def _key_of(self, row: Row) -> bytes | None:
        if row.standing is None:
            return None
        standing = row.standing
        return encode_key(self.ranking.order, self.ranking.ties, standing.score, standing.achieved_at, row.user_id)

    def _put(self, user_id: str, version: int, key: bytes | None) -> None:
        old = self._held.get(user_id, (0, None))[1]
        if key is not None and self._boundary is not None and key > self._boundary:
            if self._late is not None:
                self._late[user_id] = key
            key = OUTSIDE
        self._held[user_id] = (version, key)
        if old != key:
            self.revision = next(_revisions)
            if old:
                self._keys.remove(old)
                if self._distinct is not None:
                    self._distinct.remove(old[:SCORE_BYTES])
            if key:
                self._keys.add(key)
                if self._distinct is not None:
                    self._distinct.add(key[:SCORE_BYTES])
            self._outside += (key == OUTSIDE) - (old == OUTSIDE)
            if not self._outside:
                self._boundary = None

    def _trim(self) -> None:
        capacity = self.ranking.capacity
        if capacity is None or len(self._keys) <= capacity + 2 * self._reserve:
            return
        self._cut(capacity + self._reserve)
        self._boundary = self._keys[-1]

    def _cut_after(self, key: bytes) -> None:
        """Put outside who is beyond a key: some of them may be held with a row that is not the newest."""
        self._boundary = key if self._boundary is None else min(key, self._boundary)
        keep = self._keys.bisect_right(self._boundary)
        if keep < len(self._keys):
            self._cut(keep)
            self.revision = next(_revisions)

    def _cut(self, keep: int) -> None:
        """Put all but the first `keep` outside."""
        for key in self._keys[keep:]:
            user_id = key[SCORE_BYTES * 2 :].decode()
            self._held[user_id] = (self._held[user_id][0], OUTSIDE)
            self._outside += 1
            if self._late is not None:
                self._late[user_id] = key
            if self._distinct is not None:
                self._distinct.remove(key[:SCORE_BYTES])
        del self._keys[keep:]

    def _offset_of(self, user_id: str) -> int | None:
        key = self._held.get(user_id, (0, None))[1]
        if not key:
            return None
        offset = self._keys.bisect_left(key)
        return offset if offset < self.total else None

    def _rank_of(self, user_id: str, style: RankStyle) -> int | None:
        offset = self._offset_of(user_id)
        return None if offset is None else self._rank_at(offset, self._keys[offset], style)

    def _rank_at(self, offset: int, key: bytes, style: RankStyle) -> int:
        match style:
            case RankStyle.ORDINAL:
                return offset + 1
            case RankStyle.COMPETITION:
                return self._better(key) + 1
            case RankStyle.DENSE:
                if self._distinct is None:
                    # Only boards that are asked for dense ranks pay for them: O(n), once.
                    self._distinct = _DistinctScores(self._keys)
                return self._distinct.rank(key[:SCORE_BYTES])

    def _better(self, key: bytes) -> int:
        # A score's 8 bytes come before every key that starts with them.
        return int(self._keys.bisect_left(key[:SCORE_BYTES]))

    def _places(self, start: int, stop: int, style: RankStyle) -> list[Place]:
        order, ties = self.ranking.order, self.ranking.ties
        entries: list[tuple[str, float, int]] = []
        for key in self._keys.islice(start, stop):
            score, at, user_id = decode_key(order, ties, key)
            entries.append((user_id, score, at))
        first = self._rank_at(start, self._keys[start], style) if entries else 0
        return number_places(entries, start, first, style)

    def _score_at(self, offset: int) -> float:
        return decode_key(self.ranking.order, self.ranking.ties, self._keys[offset])[0]

    def _count_below(self, score: float) -> int:
        prefix = encode_score(self.ranking.order, score)
        total = self.total
        if self.ranking.order is Order.ASC:
            return min(total, int(self._keys.bisect_left(prefix)))
        return total - min(total, int(self._keys.bisect_left(after_score(prefix))))

    def _check(self) -> None:
        """Assert every invariant. O(n log n)."""
        self._keys._check()  # noqa: SLF001 - the library's own self-check
        inside = {user: key for user, (_, key) in self._held.items() if key}
        assert sorted(inside.values()) == list(self._keys)
        for user, key in inside.items():
            assert key[SCORE_BYTES * 2 :].decode() == user
        outside = sum(key == OUTSIDE for _, key in self._held.values())
        assert outside == self._outside
        assert (self._boundary is None) == (outside == 0)
        if self._boundary is not None:
            assert not self._keys or self._keys[-1] <= self._boundary
        capacity = self.ranking.capacity
        assert capacity is not None or outside == 0
        assert capacity is None or len(self._keys) <= capacity + 2 * self._reserve
        if self._distinct is not None:
            assert self._distinct.counts == _DistinctScores(self._keys).counts
            assert list(self._distinct.prefixes) == sorted(self._distinct.counts)


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
