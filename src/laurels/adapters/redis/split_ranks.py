"""Reads of a ranking that is split into parts, from all of its parts.

A user is in one part only, so the offset of a user in the whole ranking is the sum, over the parts, of the users who
come before the user's key: the score, the time and the id, in the order of the sorted sets. A page is merged from the
rows of every part around a key.

Every answer comes from one gathering of all parts: each part is read at one moment, by one script, and they are read
at the same time, with one round trip to each node. What a gathering has to ask for (the key of a user, the first row
of a page, an offset) is found by reads before it; if that has changed meanwhile, the read starts again. Costs are
O(parts · log n), except for dense ranks: the distinct scores of the parts overlap, so the better ones are read and
merged.
"""

import math
from bisect import bisect_left
from collections.abc import AsyncIterator, Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from laurels.adapters.numbering import number_entries, range_bounds
from laurels.adapters.redis.connection import Answer
from laurels.adapters.redis.known_keys import KnownKeys
from laurels.adapters.redis.packing import (
    NO_TIME,
    format_bounds,
    format_range,
    head_bytes,
    pack,
    read_entries,
    read_entry,
    read_score,
)
from laurels.adapters.redis.part_rows import AFTER_ALL, END, START, Key, Slice, Wanted, merge_rows, pack_keys, tie_of
from laurels.adapters.redis.part_scripts import PartScripts
from laurels.adapters.redis.seek import Place, seek
from laurels.core.board import Ranking, RankStyle
from laurels.core.distribution import bucket_edges, percentile_offsets
from laurels.core.order import Order
from laurels.core.parts import part_of
from laurels.errors import Unavailable
from laurels.ports import Distribution, Page, RangePage, RankChange, RankEntry, ScoreRange

ATTEMPTS = 20
# How many standard deviations more rows than its mean share each part is asked for. Doubled with each attempt.
SIGMAS = 4
# Pages up to this row are read from the start.
NEAR_ROWS = 500
# How far users may move between the search for an offset and the gathering.
SLACK_ROWS = 64
# Limits of one script, because Redis runs one script at a time.
KEYS_AT_ONCE = 1000
DISTINCT_SCORES = 20_000


class _Gathering(NamedTuple):
    """What all parts have answered at one moment.

    `distinct`: the distinct scores that are better than `worst`, sorted, each as the key before all users who have it.
    """

    answers: list[Answer]
    total: int
    slices: list[Slice]
    worst: Key
    distinct: list[Key]


class _Asked:
    """A read of the rows around a user."""

    def __init__(self, user_id: str, above: int, below: int) -> None:
        self.user_id, self.above, self.below = user_id, above, below
        self.key: Key | None = None
        # The first row of the page, if the gathering has to count those better than it.
        self.first: Key | None = None

    def wanted(self, key: Key, parts: int) -> list[Wanted]:
        if self.above == self.below == 0:
            return [Wanted(key, 0, 1, owner=part_of(self.user_id, parts))]
        first = [] if self.first is None else [Wanted(self.first)]
        return [Wanted(key, self.above, self.below + 1), *first]


class SplitRanks:
    def __init__(self, scripts: PartScripts) -> None:
        self._scripts = scripts
        self._known = KnownKeys()

    async def top(self, ranking: Ranking, offset: int, limit: int, style: RankStyle) -> Page:
        found = await self.in_range(ranking, ScoreRange(), offset, limit, style)
        return Page(found.entries, found.total)

    async def in_range(
        self, ranking: Ranking, scores: ScoreRange, skip: int, limit: int, style: RankStyle, *, from_end: bool = False
    ) -> RangePage:
        place: Place | None = None
        first: Key | None = None
        sigmas = SIGMAS
        key, bounds = _edge(ranking, scores, from_end=from_end), format_range(ranking, scores)
        if key == START and skip > NEAR_ROWS:
            (place,) = await self._seek(ranking, [skip])
        for _ in range(ATTEMPTS):
            if place is not None:
                wanted = [Wanted(place.key, 0, SLACK_ROWS + limit, place.shares)]
            elif abs(skip) <= NEAR_ROWS:
                wanted = [Wanted(key, max(0, -skip), max(0, skip + limit))]
            else:
                wanted = [Wanted(key)]
            if first is not None:
                wanted.append(Wanted(first))
            found = await self._gather(ranking, wanted, style, sigmas, [] if first is None else [first], bounds)
            total = ranking.limit(found.total)
            before, after = map(sum, _columns(found))
            before, after, start, stop = range_bounds(before, after, total, skip, limit, from_end=from_end)
            if start >= stop:
                return RangePage([], start, before, after - before, total)
            near = found.slices[0]
            begin = near.before - len(near.above)
            rows = [*near.above, *near.below][max(0, start - begin) : stop - begin]
            if begin > start or len(rows) < stop - start:
                # The rows are far from the edge of the range, too many rows have moved since the search, or a part has
                # more of the rows than is likely.
                (place,) = await self._seek(ranking, [start])
                sigmas = 2 * sigmas
                continue
            rank = _rank_of_first(ranking, found, rows[0], start, style)
            if rank is not None:
                entries = _page(ranking, rows, start, rank, style, total).entries
                return RangePage(entries, start, before, after - before, total)
            first = rows[0]
        raise _too_fast()

    async def around_many(
        self, ranking: Ranking, asked: Sequence[tuple[str, int, int]], style: RankStyle
    ) -> list[tuple[Page, int] | None]:
        """Return for each user, above and below: the page around the user and how many users are better.

        None for users who are not ranked.
        """
        found: dict[int, tuple[Page, int] | None] = {}
        waiting = {number: _Asked(*each) for number, each in enumerate(asked)}
        sigmas = SIGMAS
        for _ in range(ATTEMPTS):
            lost = [each for each in waiting.values() if each.key is None]
            for each, key in zip(lost, await self._locate(ranking, [each.user_id for each in lost]), strict=True):
                each.key = key
            found |= {number: None for number, each in waiting.items() if each.key is None}
            waiting = {number: each for number, each in waiting.items() if each.key is not None}
            for some in _chunks(list(waiting), KEYS_AT_ONCE // 2):
                read = [waiting[number] for number in some]
                for number, page in zip(some, await self._pages(ranking, read, style, sigmas), strict=True):
                    self._known.note(ranking, waiting[number].user_id, waiting[number].key)
                    if page is not _AGAIN:
                        found[number] = page
                        del waiting[number]
            if not waiting:
                return [found[number] for number in range(len(asked))]
            sigmas *= 2
        raise _too_fast()

    async def find_many(self, ranking: Ranking, user_ids: Sequence[str], style: RankStyle) -> list[RankEntry | None]:
        """Return the entries of users, all from one gathering for up to KEYS_AT_ONCE users."""
        found: dict[str, RankEntry] = {}
        for some in _chunks(list(dict.fromkeys(user_ids)), KEYS_AT_ONCE):
            for _ in range(ATTEMPTS):
                keys = [key for key in await self._locate(ranking, some) if key is not None]
                if not keys or (entries := await self._entries(ranking, keys, style)) is not None:
                    found |= {entry.user_id: entry for entry in entries} if keys and entries else {}
                    break
                for user_id in some:
                    self._known.note(ranking, user_id, None)
            else:
                raise _too_fast()
        return [found.get(user_id) for user_id in user_ids]

    async def count(self, ranking: Ranking) -> int:
        return ranking.limit((await self._gather(ranking, [])).total)

    async def distribution(self, ranking: Ranking, buckets: int, percentiles: Sequence[int]) -> Distribution:
        for _ in range(ATTEMPTS):
            total, first, last = await self._ends(ranking)
            if not total:
                return Distribution([], [], [])
            low, high = sorted((_read(ranking, first), _read(ranking, last)))
            edges = bucket_edges(low, high, buckets)
            offsets = percentile_offsets(total, percentiles)
            if ranking.order is Order.DESC:
                offsets = [total - 1 - offset for offset in offsets]
            # The last row within a capacity has the last score.
            offsets.append(total - 1)
            places = await self._seek(ranking, offsets)
            wanted = [Wanted(place.key, 0, SLACK_ROWS, place.shares) for place in places]
            found = await self._gather(ranking, wanted, bounds=format_bounds(ranking, edges))
            scores = [each.score_at(offset) for each, offset in zip(found.slices, offsets, strict=True)]
            if ranking.limit(found.total) != total or _first(found.answers) != first or None in scores:
                continue
            if scores.pop() != last:
                continue
            before = [min(total, sum(column)) for column in _columns(found)]
            # Edges ascend. In a descending ranking, the users before an edge have scores at or above it.
            below = before if ranking.order is Order.ASC else [total - count for count in before]
            counts = [high - low for low, high in pairwise([0, *below, total])]
            return Distribution(edges, counts, [_read(ranking, score) for score in scores if score is not None])
        raise _too_fast()

    async def ranked_users(self, ranking: Ranking, at_once: int) -> AsyncIterator[list[str]]:
        """Yield every ranked user, in order, in chunks of about `at_once`."""
        key, left = START, math.inf
        while left > 0:
            (found,) = (await self._gather(ranking, [Wanted(key, 0, at_once)])).slices
            left = min(left, ranking.limit(found.total) - found.before)
            rows = found.below[: max(0, int(left))]
            if not rows:
                return
            yield [member[head_bytes(ranking) :].decode() for _, member in rows]
            left -= len(rows)
            # The first key after the last row.
            key = (rows[-1][0], rows[-1][1] + b"\0")

    async def changes(
        self,
        ranking: Ranking,
        users: Sequence[str],
        before: Sequence[Answer],
        after: Sequence[Answer],
        style: RankStyle,
    ) -> list[RankChange]:
        """Return the ranks of users before and after a change, from their scores and times before and after it.

        A rank is the one among the other users. Those who have changed together count as they were before the change
        for the ranks before it, unless they have changed once more; all others count as they are now.
        """
        old = [_key(user, found) for user, found in zip(users, before, strict=True)] if before else [None] * len(users)
        new = [_key(user, found) for user, found in zip(users, after, strict=True)]
        for user, key in zip(users, new, strict=True):
            self._known.note(ranking, user, key)
        keys, width = list(dict.fromkeys(key for key in (*old, *new) if key is not None)), head_bytes(ranking)
        counted: dict[Key, tuple[Slice, int]] = {}
        for some in _chunks(keys, KEYS_AT_ONCE):
            wanted = [Wanted(key, 0, 1, owner=_owner(key, ranking)) for key in some]
            found = await self._gather(ranking, wanted, style, distinct=some, without_user=True)
            for key, each in zip(some, found.slices, strict=True):
                counted[key] = each, bisect_left(found.distinct, tie_of(key, width))
        undo = _Undo(
            [(one, two) for one, two in zip(old, new, strict=True) if one != two and _is_as_counted(counted, two)],
            width,
        )

        def rank_of(key: Key | None, other: Key | None, *, was: bool) -> int | None:
            if key is None:
                return None
            each, distinct = counted[key]
            ahead, better = each.before, each.better
            if was:
                ahead, better = ahead + undo.ahead(key), better + undo.better(key)
                if other is not None and other != key and _is_as_counted(counted, other):
                    # The user's own move is undone, too, but was not counted.
                    ahead, better = ahead + (other < key), better + (tie_of(other, width) < tie_of(key, width))
            if ranking.capacity is not None and ahead >= ranking.capacity:
                return None
            return (ahead, better, distinct)[_STYLES.index(style)] + 1

        return [
            RankChange(rank_of(one, two, was=True), rank_of(two, one, was=False))
            for one, two in zip(old, new, strict=True)
        ]

    # Inside

    async def _pages(
        self, ranking: Ranking, asked: Sequence[_Asked], style: RankStyle, sigmas: int
    ) -> list[tuple[Page, int] | None]:
        """Return the page around each user, and how many users are better; _AGAIN if it must be read again."""
        parts = ranking.parts
        wanted = [each.wanted(each.key, parts) for each in asked if each.key is not None]
        flat = [want for some in wanted for want in some]
        found = await self._gather(ranking, flat, style, sigmas, [want.key for want in flat])
        slices = iter(found.slices)
        pages: list[tuple[Page, int] | None] = []
        for each, some in zip(asked, wanted, strict=True):
            near, *_ = own = [next(slices) for _ in some]
            pages.append(_page_around(ranking, each, found._replace(slices=own), near, style))
        return pages

    async def _entries(self, ranking: Ranking, keys: Sequence[Key], style: RankStyle) -> list[RankEntry] | None:
        """Return the entries of the users with these keys; None if one of the keys has changed."""
        wanted = [Wanted(key, 0, 1, owner=_owner(key, ranking)) for key in keys]
        found = await self._gather(ranking, wanted, style, distinct=keys)
        total, width = ranking.limit(found.total), head_bytes(ranking)
        entries = []
        for key, near in zip(keys, found.slices, strict=True):
            if near.below[:1] != [key]:
                return None
            if near.before < total:
                distinct = bisect_left(found.distinct, tie_of(key, width))
                rank = (near.before, near.better, distinct)[_STYLES.index(style)] + 1
                entries.append(_entry(ranking, key, rank))
        return entries

    async def _locate(self, ranking: Ranking, user_ids: Sequence[str]) -> list[Key | None]:
        """Return the key of each user; None for users who are not ranked.

        A key that was used before may be outdated: the gathering tells, and the caller then forgets it and asks again.
        Other keys come from the users' parts.
        """
        keys = {user_id: self._known.find(ranking, user_id) for user_id in user_ids}
        users: dict[int, list[str]] = {}
        for user_id, key in keys.items():
            if key is None:
                users.setdefault(part_of(user_id, ranking.parts), []).append(user_id)
        args = {part: (pack(some),) for part, some in users.items()}
        for some, (found,) in zip(users.values(), await self._scripts.look_at(ranking, "locate", args), strict=True):
            keys |= {user: _key(user, each) for user, each in zip(some, found, strict=True)}
        return [keys[user_id] for user_id in user_ids]

    async def _gather(
        self,
        ranking: Ranking,
        wanted: Sequence[Wanted],
        style: RankStyle = RankStyle.ORDINAL,
        sigmas: int = SIGMAS,
        distinct: Sequence[Key] = (),
        bounds: Sequence[str] | None = None,
        *,
        without_user: bool = False,
    ) -> _Gathering:
        """Read all parts once.

        `distinct`: the keys for which the better distinct scores are needed, if the style is dense. `without_user`: the
        user of each key does not count.
        """
        width = head_bytes(ranking)
        worst = max((tie_of(key, width) for key in distinct), default=(-math.inf, b""))
        scores = repr(worst[0]) if style is RankStyle.DENSE else ""
        rest = (b"" if bounds is None else pack(bounds), scores, DISTINCT_SCORES + 1, "1" if without_user else "")
        packed: dict[tuple[tuple[int, int], ...], tuple[bytes, bytes]] = {}
        args = {}
        for part in range(ranking.parts):
            rows = tuple([want.rows_of(part, ranking.parts, sigmas) for want in wanted])
            if rows not in packed:
                packed[rows] = pack_keys(((want.key, *each) for want, each in zip(wanted, rows, strict=True)), width)
            args[part] = (*packed[rows], *rest)
        answers = await self._scripts.look_at(ranking, "gather", args)
        better: set[Key] = set()
        for answer in answers:
            # Names and scores. With subscores, a name begins with the bytes of the subscore.
            names, texts = answer[5][::2], answer[5][1::2]
            if len(names) > DISTINCT_SCORES:
                raise Unavailable("overloaded", "This ranking has too many different scores for dense ranks.")
            ties = ((float(text), name[: width - 8]) for name, text in zip(names, texts, strict=True))
            better.update(tie for tie in ties if tie < worst)
        total = sum(answer[0] for answer in answers)
        return _Gathering(answers, total, merge_rows(answers, wanted), worst, sorted(better))

    async def _ends(self, ranking: Ranking) -> tuple[int, float, float]:
        """Return how many users are ranked, and the first and the last score."""
        for _ in range(ATTEMPTS):
            found = await self._gather(ranking, [], bounds=[])
            total = ranking.limit(found.total)
            if not total:
                return 0, 0.0, 0.0
            if total == found.total:
                return total, _first(found.answers), max(float(answer[2]) for answer in found.answers if answer[0])
            last = await self.top(ranking, total - 1, 1, RankStyle.ORDINAL)
            if last.entries:
                return total, _first(found.answers), _stored(ranking, last.entries[0].score)
        raise _too_fast()

    async def _seek(self, ranking: Ranking, offsets: Sequence[int]) -> list[Place]:
        async def count(wanted: Sequence[Wanted]) -> list[Slice]:
            return (await self._gather(ranking, wanted)).slices

        return await seek(
            ranking.parts, offsets, lambda script, args: self._scripts.look_at(ranking, script, args), count
        )


_STYLES = (RankStyle.ORDINAL, RankStyle.COMPETITION, RankStyle.DENSE)
# In place of a page that must be read again.
_AGAIN: Any = object()


class _Undo:
    """Counts how the users before a key differ if some moves had not happened. O(log(moves)) per key."""

    def __init__(self, moves: Iterable[tuple[Key | None, Key | None]], width: int) -> None:
        moves = list(moves)
        self._width = width
        self._old = sorted(old for old, _ in moves if old is not None)
        self._new = sorted(new for _, new in moves if new is not None)

    def ahead(self, key: Key) -> int:
        return bisect_left(self._old, key) - bisect_left(self._new, key)

    def better(self, key: Key) -> int:
        return self.ahead(tie_of(key, self._width))


def _is_as_counted(counted: dict[Key, tuple[Slice, int]], key: Key | None) -> bool:
    """Return True if a user still had this key when the users were counted."""
    return key is None or counted[key][0].below[:1] == [key]


def _page_around(
    ranking: Ranking, asked: _Asked, found: _Gathering, near: Slice, style: RankStyle
) -> tuple[Page, int] | None:
    """Return the page around a user and how many users are better; _AGAIN if it must be read again."""
    if near.below[:1] != [near.key]:
        asked.key = asked.first = None
        return _again()
    total = ranking.limit(near.total)
    if near.before >= total:
        return None
    if asked.above == asked.below == 0:
        distinct = bisect_left(found.distinct, tie_of(near.key, head_bytes(ranking)))
        rank = (near.before, near.better, distinct)[_STYLES.index(style)] + 1
        return _page(ranking, [near.key], near.before, rank, style, total), near.better
    if not near.covers(asked.above, asked.below + 1):
        return _again()
    above = near.above[max(0, len(near.above) - asked.above) :]
    rows = [*above, *near.below[: min(asked.below + 1, total - near.before)]]
    offset = near.before - len(above)
    rank_of_first = _rank_of_first(ranking, found, rows[0], offset, style)
    if rank_of_first is None:
        asked.first = rows[0]
        return _again()
    return _page(ranking, rows, offset, rank_of_first, style, total), near.better


def _again() -> tuple[Page, int] | None:
    again: tuple[Page, int] | None = _AGAIN
    return again


def _rank_of_first(ranking: Ranking, found: _Gathering, row: Key, offset: int, style: RankStyle) -> int | None:
    """Return the rank of the first row of a page; None if the gathering does not tell."""
    if style is RankStyle.ORDINAL or offset == 0:
        return offset + 1
    if style is RankStyle.DENSE:
        tie = tie_of(row, head_bytes(ranking))
        return bisect_left(found.distinct, tie) + 1 if tie <= found.worst else None
    for near in found.slices:
        if (better := near.better_than(row, head_bytes(ranking))) is not None:
            return better + 1
    return None


def _page(ranking: Ranking, rows: Sequence[Key], offset: int, rank: int, style: RankStyle, total: int) -> Page:
    flat: list[Any] = []
    for score, member in rows:
        flat += (member, score)
    return Page(number_entries(*read_entries(ranking, flat), offset, rank, style), total)


def _edge(ranking: Ranking, scores: ScoreRange, *, from_end: bool) -> Key:
    """Return the key at which a range of scores begins, or the one after its end."""
    if from_end:
        return END if scores.worst is None else (_stored(ranking, scores.worst), AFTER_ALL)
    return START if scores.best is None else (_stored(ranking, scores.best), NO_TIME)


def _columns(found: _Gathering) -> Iterable[tuple[int, ...]]:
    """Return how many users of each part come before each bound, bound by bound."""
    return zip(*(answer[3] for answer in found.answers), strict=True)


def _chunks(items: Sequence[Any], size: int) -> Iterable[Sequence[Any]]:
    return (items[start : start + size] for start in range(0, len(items), size))


def _owner(key: Key, ranking: Ranking) -> int:
    return part_of(key[1][head_bytes(ranking) :].decode(), ranking.parts)


def _key(user_id: str, found: Answer | None) -> Key | None:
    """Return the key of a user from a score and the head of the member."""
    return (float(found[0]), found[1] + user_id.encode()) if found else None


def _entry(ranking: Ranking, key: Key, rank: int) -> RankEntry:
    score, member = key
    width = head_bytes(ranking)
    return read_entry(ranking, member[width:].decode(), rank, repr(score).encode(), member[:width])


def _read(ranking: Ranking, stored: float) -> float:
    return read_score(ranking, repr(stored).encode())


def _stored(ranking: Ranking, score: float) -> float:
    return 0.0 - score if ranking.order is Order.DESC else score


def _first(answers: Iterable[Answer]) -> float:
    return min((float(answer[1]) for answer in answers if answer[0]), default=math.inf)


def _too_fast() -> Unavailable:
    return Unavailable("overloaded", "This ranking changes too fast for this read. Try again.")
