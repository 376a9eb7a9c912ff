"""The rankings of one period in memory: structures that always agree.

`_world` holds a key for everybody who is ranked, `_parts` the same keys for each segment that has somebody. `_held`
maps every user to the version last taken over and the key, `_segments` to the parts that have it; `_held` also
remembers users who have no key, so that an old row can't bring them back. A row that is newer replaces all of it at
once, so a user who moves is never seen in two regions.

With a capacity only the best stay in `_world`, plus a reserve, so that one who drops out is replaced at once. All
users up to `_boundary` are in it, all others are outside. When the reserve runs low the ranking asks for the ledger's
best rows (`begin_refill`), and while it can't fill its capacity it refuses to be read (`is_short`). The rows are read
from a ledger that goes on: whoever is put outside until they are here is remembered in `_late`, for the new boundary
may let them in. Where there are segments nobody is put outside.
"""

from collections.abc import Callable, Sequence
from itertools import count
from typing import TypeVar

from laurels.adapters.sorted_keys import SortedKeys, user_of
from laurels.core.board import Guest, Ranking, RankStyle
from laurels.core.order import decode_key, encode_key
from laurels.core.people import GLOBAL
from laurels.ports import Distribution, Found, Held, Page, Place, Placement, Refill, Row

T = TypeVar("T")

# Stands for a key: the user has a score and is outside the capacity.
OUTSIDE = b""

# One count for all rankings, so that a ranking that was built anew never has the revision of the one before.
_revisions = count(1)


class SortedRanking:
    """Reads are of one segment of it, and as somebody sees it: see `Ranking`."""

    def __init__(self, ranking: Ranking, floor: int = 0) -> None:
        self.ranking = ranking
        self._floor = floor
        self._held: dict[str, tuple[int, bytes | None]] = {}
        # Those of users who have a key.
        self._segments: dict[str, tuple[str, ...]] = {}
        self._parts: dict[str, SortedKeys] = {}
        self._nobody = SortedKeys(ranking)
        self._outside = 0
        self._boundary: bytes | None = None
        self._late: dict[str, bytes] | None = None
        self._refill_token = 0
        self._reserve = ranking.reserve
        # From before `settle`: nobody beyond this key is to be held.
        self._limit: bytes | None = None
        self._world = SortedKeys(ranking)
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
                key = self._key_of(row)
                self._held[row.user_id] = (row.version, key)
                if row.segments or self._segments:
                    self._note_segments(row.user_id, row.segments if key else ())

    def settle(self) -> None:
        """Sort what was gathered: from here on the ranking may be read and applied to. O(n log n)."""
        self._world = SortedKeys(self.ranking, (key for _, key in self._held.values() if key is not None))
        parts: dict[str, list[bytes]] = {}
        for user_id, segments in self._segments.items():
            key = self._held[user_id][1]
            assert key, "who has no key is in no segment"
            for segment in segments:
                parts.setdefault(segment, []).append(key)
        self._parts = {segment: SortedKeys(self.ranking, keys) for segment, keys in parts.items()}
        self._trim()
        if self._limit is not None:
            self._cut_after(self._limit)

    def apply(self, rows: Sequence[Row], style: RankStyle, left_out: int = 0) -> list[Placement]:
        """See Index.apply."""
        before = [self._rank_of(row.user_id, style) for row in rows]
        for row in rows:
            held = self._held.get(row.user_id)
            if held is None or row.version > held[0]:
                self._put(row.user_id, row.version, self._key_of(row), row.segments)
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

    def refused(self, rows: Sequence[Row], floor: int) -> bool:
        """Return True if a row may be of a user who was forgotten since: see Index.apply."""
        return floor < self._floor and any(row.version <= self._floor and row.user_id not in self._held for row in rows)

    def forget(self, user_ids: Sequence[str], floor: int) -> None:
        """See Index.forget."""
        self._floor = max(self._floor, floor)
        for user_id in user_ids:
            if self._held.get(user_id, (0, OUTSIDE))[1] is None:
                del self._held[user_id]

    # Capacity

    @property
    def is_short(self) -> bool:
        return self._outside > 0 and len(self._world.keys) < (self.ranking.capacity or 0)

    @property
    def runs_low(self) -> bool:
        return self._outside > 0 and len(self._world.keys) < (self.ranking.capacity or 0) + self._reserve // 2

    def trim(self, *, forget: bool) -> int:
        """See Index.trim. A refill under way may bring back whom it knows to be outside."""
        capacity = self.ranking.capacity
        if capacity is None or self._late is not None:
            return 0
        gone = max(0, len(self._world.keys) - capacity - self._reserve)
        if gone:
            self._cut(capacity + self._reserve)
            self._boundary = self._world.keys[-1]
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

    def refill(self, refill: Refill, best: Sequence[Row], floor: int = 0) -> None:
        """See Index.refill. O(len(best) · log n)."""
        if refill.token != self._refill_token or self._late is None or floor < self._floor:
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
            self._cut(self._world.keys.bisect_right(self._boundary))
        if complete and self._outside:
            # The ledger has no score of them any more; the rows that say so are on their way.
            for user_id, (version, key) in self._held.items():
                if key == OUTSIDE:
                    self._held[user_id] = (version, None)
            self._outside = 0
        # Those who came late are more than were asked for.
        self._trim()

    # Reads

    def top(self, ranking: Ranking, offset: int, limit: int, style: RankStyle) -> Page:
        return self._see(ranking, lambda keys: keys.top(offset, limit, style))

    def find(self, ranking: Ranking, user_id: str, style: RankStyle) -> Found | None:
        return self._see(ranking, lambda keys: keys.find(self._key_in(ranking, user_id), style))

    def around(self, ranking: Ranking, user_id: str, above: int, below: int, style: RankStyle) -> Page | None:
        return self._see(ranking, lambda keys: keys.around(self._key_in(ranking, user_id), above, below, style))

    def places(self, ranking: Ranking, user_ids: Sequence[str], style: RankStyle) -> list[Place | None]:
        return self._see(
            ranking, lambda keys: [keys.place(self._key_in(ranking, user_id), style) for user_id in user_ids]
        )

    def distribution(self, ranking: Ranking, buckets: int) -> Distribution:
        return self._see(ranking, lambda keys: keys.distribution(buckets))

    def count(self, ranking: Ranking) -> int:
        return self._see(ranking, lambda keys: keys.total)

    def is_outside(self, ranking: Ranking, user_id: str) -> bool:
        key = self._key_in(ranking, user_id)
        return key is not None and self._see(ranking, lambda keys: keys.offset_of(key)) is None

    def held(self, user_id: str) -> Held | None:
        held = self._held.get(user_id)
        if held is None:
            return None
        version, key = held
        if not key:
            return Held(version, None, None)
        score, at, _ = decode_key(self.ranking.order, self.ranking.ties, key)
        return Held(version, score, at, self._segments.get(user_id, ()))

    def users(self, ranking: Ranking) -> list[str]:
        return self._see(ranking, lambda keys: keys.users())

    def segments(self) -> list[str]:
        return list(self._parts)

    # Inside

    def _see(self, ranking: Ranking, ask: Callable[[SortedKeys], T]) -> T:
        """Ask a segment's keys. A guest is among them for as long as this lasts, and nobody else looks meanwhile."""
        keys = self._world if ranking.segment == GLOBAL else self._parts.get(ranking.segment, self._nobody)
        guest = ranking.guest
        if guest is None or self._held.get(guest.user_id, (0, None))[1]:
            return ask(keys)
        key = self._guest_key(guest)
        if self._boundary is not None and key > self._boundary:
            return ask(keys)
        keys.add(key)
        try:
            return ask(keys)
        finally:
            keys.remove(key)

    def _guest_key(self, guest: Guest) -> bytes:
        return encode_key(self.ranking.order, self.ranking.ties, guest.score, guest.achieved_at, guest.user_id)

    def _key_in(self, ranking: Ranking, user_id: str) -> bytes | None:
        """The user's key, if it is one of a segment's."""
        key = self._held.get(user_id, (0, None))[1]
        if not key and ranking.guest is not None and ranking.guest.user_id == user_id:
            key = self._guest_key(ranking.guest)
            return OUTSIDE if self._boundary is not None and key > self._boundary else key
        if ranking.segment != GLOBAL and ranking.segment not in self._segments.get(user_id, ()):
            return None
        return key

    def _key_of(self, row: Row) -> bytes | None:
        standing = row.standing
        if standing is None or row.hidden:
            return None
        return encode_key(self.ranking.order, self.ranking.ties, standing.score, standing.achieved_at, row.user_id)

    def _put(self, user_id: str, version: int, key: bytes | None, segments: tuple[str, ...] = ()) -> None:
        old = self._held.get(user_id, (0, None))[1]
        if key is not None and self._boundary is not None and key > self._boundary:
            if self._late is not None:
                self._late[user_id] = key
            key = OUTSIDE
        self._held[user_id] = (version, key)
        if segments or user_id in self._segments:
            self._put_segments(user_id, old, key, segments if key else ())
        if old != key:
            self.revision = next(_revisions)
            if old:
                self._world.remove(old)
            if key:
                self._world.add(key)
            self._outside += (key == OUTSIDE) - (old == OUTSIDE)
            if not self._outside:
                self._boundary = None

    def _put_segments(self, user_id: str, old: bytes | None, key: bytes | None, segments: tuple[str, ...]) -> None:
        before = self._segments.get(user_id, ())
        if old == key and before == segments:
            return
        self.revision = next(_revisions)
        for segment in before:
            assert old, "who has no key is in no segment"
            part = self._parts[segment]
            part.remove(old)
            if not part.keys:
                del self._parts[segment]
        for segment in segments:
            assert key, "who has no key is in no segment"
            self._parts.setdefault(segment, SortedKeys(self.ranking)).add(key)
        self._note_segments(user_id, segments)

    def _note_segments(self, user_id: str, segments: tuple[str, ...]) -> None:
        if segments:
            self._segments[user_id] = segments
        else:
            self._segments.pop(user_id, None)

    def _trim(self) -> None:
        capacity = self.ranking.capacity
        if capacity is None or len(self._world.keys) <= capacity + 2 * self._reserve:
            return
        self._cut(capacity + self._reserve)
        self._boundary = self._world.keys[-1]

    def _cut_after(self, key: bytes) -> None:
        """Put outside who is beyond a key: some of them may be held with a row that is not the newest."""
        self._boundary = key if self._boundary is None else min(key, self._boundary)
        keep = self._world.keys.bisect_right(self._boundary)
        if keep < len(self._world.keys):
            self._cut(keep)
            self.revision = next(_revisions)

    def _cut(self, keep: int) -> None:
        """Put all but the first `keep` outside."""
        for key in self._world.cut(keep):
            user_id = user_of(key)
            self._held[user_id] = (self._held[user_id][0], OUTSIDE)
            self._outside += 1
            if self._late is not None:
                self._late[user_id] = key

    def _rank_of(self, user_id: str, style: RankStyle) -> int | None:
        return self._world.rank_of(self._held.get(user_id, (0, None))[1], style)

    def _check(self) -> None:
        """Assert every invariant. O(n log n)."""
        self._world._check()  # noqa: SLF001 - one of ours
        keys = self._world.keys
        inside = {user: key for user, (_, key) in self._held.items() if key}
        assert sorted(inside.values()) == list(keys)
        for user, key in inside.items():
            assert user_of(key) == user
        members: dict[str, list[bytes]] = {}
        for user, segments in self._segments.items():
            assert segments
            for segment in segments:
                members.setdefault(segment, []).append(inside[user])
        assert {segment: list(part.keys) for segment, part in self._parts.items()} == {
            segment: sorted(some) for segment, some in members.items()
        }
        for part in self._parts.values():
            part._check()  # noqa: SLF001 - one of ours
        assert not self._nobody.keys
        outside = sum(key == OUTSIDE for _, key in self._held.values())
        assert outside == self._outside
        assert (self._boundary is None) == (outside == 0)
        if self._boundary is not None:
            assert not keys or keys[-1] <= self._boundary
        capacity = self.ranking.capacity
        assert capacity is not None or outside == 0
        assert capacity is None or len(keys) <= capacity + 2 * self._reserve
