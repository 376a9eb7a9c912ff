"""The rankings of one period in memory.

They consist of structures that always agree. `_world` holds a key for every ranked user, `_by_segment` the same keys
for each segment that has users. `_keys` maps every ranked user to the key, which ends with the version last applied;
`_removed` maps users without a key to that version, so that an old row can't restore them. `_segments` has the segments
that a user is ranked in. A newer row replaces all of that at once, so a user who moves is never in two regions.

Users are bytes in `_keys`, because a str of the same length takes more memory.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import count, repeat
from typing import TypeVar

from laurels.adapters.sorted_keys import RankedKeys, SortedKeys, make_key, user_of, version_of
from laurels.core.board import Ranking, RankStyle, ShadowViewer
from laurels.core.order import HEAD_BYTES, decode_head
from laurels.core.people import GLOBAL
from laurels.ports import (
    Distribution,
    Found,
    Held,
    Page,
    RangePage,
    RankChange,
    RankEntry,
    RanksWanted,
    Row,
    ScoreRange,
)

T = TypeVar("T")

# One counter for all rankings, so that a rebuilt ranking never has the revision of the one before.
_revisions = count(1)


class SortedRanking:
    """The rankings of one period.

    A read names a `Ranking`: the segment, the capacity, and the viewer if shadow-banned.
    """

    def __init__(self, ranking: Ranking, floor: int = 0) -> None:
        self._sorting = ranking.sorting
        self._floor = floor
        self._keys: dict[bytes, bytes] = {}
        self._removed: dict[str, int] = {}
        # Only users who have a key and are in a segment.
        self._segments: dict[str, tuple[str, ...]] = {}
        self._by_segment: dict[str, SortedKeys] = {}
        self._nobody = SortedKeys()
        self._world = SortedKeys()
        self.revision = next(_revisions)

    def gather(self, rows: Sequence[Row]) -> None:
        """Take rows before the ranking is first read. O(1) per row, because `settle` sorts them."""
        for row in rows:
            if row.version > self._version_of(row.user_id):
                key = self._key_of(row)
                self._hold(row.user_id, row.version, key)
                if row.segments or self._segments:
                    self._note_segments(row.user_id, row.segments if key else ())

    def settle(self) -> None:
        """Sort the gathered rows. Afterwards the ranking may be read and rows applied. O(n log n)."""
        self._world = SortedKeys(self._keys.values())
        by_segment: dict[str, list[bytes]] = {}
        for user_id, segments in self._segments.items():
            key = self._keys[user_id.encode()]
            for segment in segments:
                by_segment.setdefault(segment, []).append(key)
        self._by_segment = {segment: SortedKeys(keys) for segment, keys in by_segment.items()}

    def apply(self, ranking: Ranking, rows: Sequence[Row], style: RankStyle, wanted: RanksWanted) -> list[RankChange]:
        """See Index.apply."""
        before: Iterable[int | None] = repeat(None)
        if wanted is RanksWanted.BOTH:
            before = self._ranks_of(ranking, rows, style)
        for row in rows:
            old = self._keys.get(row.user_id.encode())
            if row.version > (self._removed.get(row.user_id, -1) if old is None else version_of(old)):
                self._put(row.user_id, row.version, old, self._key_of(row), row.segments)
        if wanted is RanksWanted.NONE:
            return []
        return list(map(RankChange, before, self._ranks_of(ranking, rows, style)))

    def refused(self, rows: Sequence[Row], floor: int) -> bool:
        """Return True if a row may belong to a user who was forgotten after it was read: see Index.apply."""
        return floor < self._floor and any(
            row.version <= self._floor and self._version_of(row.user_id) < 0 for row in rows
        )

    def forget(self, user_ids: Sequence[str], floor: int) -> None:
        """See Index.forget."""
        self._floor = max(self._floor, floor)
        for user_id in user_ids:
            self._removed.pop(user_id, None)

    # Reads

    def top(self, ranking: Ranking, offset: int, limit: int, style: RankStyle) -> Page:
        return self._see(ranking, lambda keys: keys.top(offset, limit, style))

    def find(self, ranking: Ranking, user_id: str, style: RankStyle) -> Found | None:
        if ranking.shadow_viewer is None:
            # As below, without a function: most reads are this one.
            key = self._key_in(ranking, user_id)
            return None if key is None else RankedKeys(ranking, self._keys_of(ranking)).find(key, style)
        return self._see(ranking, lambda keys: keys.find(self._key_in(ranking, user_id), style))

    def around(self, ranking: Ranking, user_id: str, above: int, below: int, style: RankStyle) -> Page | None:
        return self._see(ranking, lambda keys: keys.around(self._key_in(ranking, user_id), above, below, style))

    def find_many(self, ranking: Ranking, user_ids: Sequence[str], style: RankStyle) -> list[RankEntry | None]:
        return self._see(
            ranking, lambda keys: [keys.entry(self._key_in(ranking, user_id), style) for user_id in user_ids]
        )

    def in_range(
        self, ranking: Ranking, scores: ScoreRange, skip: int, limit: int, style: RankStyle, *, from_end: bool
    ) -> RangePage:
        return self._see(ranking, lambda keys: keys.in_range(scores, skip, limit, style, from_end=from_end))

    def distribution(self, ranking: Ranking, buckets: int, percentiles: Sequence[int]) -> Distribution:
        return self._see(ranking, lambda keys: keys.distribution(buckets, percentiles))

    def count(self, ranking: Ranking) -> int:
        return self._see(ranking, lambda keys: keys.total)

    def held(self, user_id: str) -> Held | None:
        key = self._keys.get(user_id.encode())
        if key is None:
            return Held(self._removed[user_id], None, None) if user_id in self._removed else None
        score, subscore, at = decode_head(self._sorting, key)
        return Held(version_of(key), score, at, self._segments.get(user_id, ()), subscore)

    def users(self, ranking: Ranking, offset: int, limit: int) -> list[str]:
        return self._see(ranking, lambda keys: keys.users(offset, limit))

    def segments(self) -> list[str]:
        return list(self._by_segment)

    def check(self) -> None:
        """Assert every invariant. O(n log n)."""
        self._world.check()
        keys = self._world.keys
        ranked = {user.decode(): key for user, key in self._keys.items()}
        assert sorted(ranked.values()) == list(keys)
        assert not self._removed.keys() & ranked.keys()
        for user, key in ranked.items():
            assert user_of(key) == user
        members: dict[str, list[bytes]] = {}
        for user, segments in self._segments.items():
            assert segments
            for segment in segments:
                members.setdefault(segment, []).append(ranked[user])
        assert {segment: list(keys_of_segment.keys) for segment, keys_of_segment in self._by_segment.items()} == {
            segment: sorted(some) for segment, some in members.items()
        }
        for keys_of_segment in self._by_segment.values():
            keys_of_segment.check()
        assert not self._nobody.keys

    # Inside

    def _see(self, ranking: Ranking, ask: Callable[[RankedKeys], T]) -> T:
        """Read a segment. A shadow viewer is in the list during this read only, and no other read runs meanwhile."""
        keys = self._keys_of(ranking)
        viewer = ranking.shadow_viewer
        if viewer is None or viewer.user_id.encode() in self._keys:
            return ask(RankedKeys(ranking, keys))
        key = self._viewer_key(viewer)
        keys.add(key)
        try:
            return ask(RankedKeys(ranking, keys))
        finally:
            keys.remove(key)

    def _keys_of(self, ranking: Ranking) -> SortedKeys:
        return self._world if ranking.segment == GLOBAL else self._by_segment.get(ranking.segment, self._nobody)

    def _viewer_key(self, viewer: ShadowViewer) -> bytes:
        return make_key(self._sorting, viewer.score, viewer.subscore, viewer.achieved_at, viewer.user_id, 0)

    def _key_in(self, ranking: Ranking, user_id: str) -> bytes | None:
        """Return the user's key if it is in the segment."""
        key = self._keys.get(user_id.encode())
        if key is None and ranking.shadow_viewer is not None and ranking.shadow_viewer.user_id == user_id:
            return self._viewer_key(ranking.shadow_viewer)
        if ranking.segment != GLOBAL and ranking.segment not in self._segments.get(user_id, ()):
            return None
        return key

    def _key_of(self, row: Row) -> bytes | None:
        standing = row.ranked
        if standing is None:
            return None
        return make_key(
            self._sorting, standing.score, standing.subscore, standing.achieved_at, row.user_id, row.version
        )

    def _version_of(self, user_id: str) -> int:
        """Return the version last applied for a user, -1 for none."""
        key = self._keys.get(user_id.encode())
        return self._removed.get(user_id, -1) if key is None else version_of(key)

    def _hold(self, user_id: str, version: int, key: bytes | None) -> None:
        if key is None:
            self._keys.pop(user_id.encode(), None)
            self._removed[user_id] = version
        else:
            self._keys[user_id.encode()] = key
            if self._removed:
                self._removed.pop(user_id, None)

    def _put(
        self, user_id: str, version: int, old: bytes | None, key: bytes | None, segments: tuple[str, ...] = ()
    ) -> None:
        self._hold(user_id, version, key)
        if segments or user_id in self._segments:
            self._put_segments(user_id, old, key, segments if key else ())
        if old is not None:
            self._world.remove(old)
        if key is not None:
            self._world.add(key)
        # The user is the same, so only the score, the subscore and the time can differ, besides the version.
        if (old and old[:HEAD_BYTES]) != (key and key[:HEAD_BYTES]):
            self.revision = next(_revisions)

    def _put_segments(self, user_id: str, old: bytes | None, key: bytes | None, segments: tuple[str, ...]) -> None:
        before = self._segments.get(user_id, ())
        if before != segments:
            self.revision = next(_revisions)
        for segment in before:
            assert old, "a user without a key is in no segment"
            keys_of_segment = self._by_segment[segment]
            keys_of_segment.remove(old)
            if not keys_of_segment.keys:
                del self._by_segment[segment]
        for segment in segments:
            assert key, "a user without a key is in no segment"
            self._by_segment.setdefault(segment, SortedKeys()).add(key)
        self._note_segments(user_id, segments)

    def _note_segments(self, user_id: str, segments: tuple[str, ...]) -> None:
        if segments:
            self._segments[user_id] = segments
        else:
            self._segments.pop(user_id, None)

    def _ranks_of(self, ranking: Ranking, rows: Sequence[Row], style: RankStyle) -> list[int | None]:
        ranked, keys = RankedKeys(ranking, self._world), self._keys
        return [ranked.rank(keys.get(row.user_id.encode()), style) for row in rows]
