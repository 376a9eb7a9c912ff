"""Reads of a ranking that is split into parts, from all of its parts.

A user is in one part only, so the offset of a user in the whole ranking is the sum, over the parts, of the users who
come before the user's key: the score, the time and the id, in the order of the sorted sets. A page is merged from the
rows of every part around a key.

A read that needs a user's key first asks the part of the user. The answer comes from one gathering of all parts: each
is read at one moment, and they are read at the same time, with one round trip to each node. If the user's key has
changed before the gathering, the read starts again. Costs are O(parts · log n), except for dense ranks: the distinct
scores of the parts overlap, so the better ones are read and merged.
"""

import math
from bisect import bisect_left
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from laurels.adapters.numbering import number_entries
from laurels.adapters.redis.connection import Answer
from laurels.adapters.redis.packing import format_bounds, pack, read_entries, read_score, read_time
from laurels.adapters.redis.part_rows import (
    END,
    START,
    Key,
    Slice,
    SliceWanted,
    Span,
    likely_share,
    merge_rows,
    narrow,
    pack_keys,
    read_rows,
)
from laurels.adapters.redis.part_scripts import PartScripts
from laurels.core.board import Ranking, RankStyle
from laurels.core.distribution import bucket_edges, decile_offsets
from laurels.core.order import Order
from laurels.core.parts import part_of
from laurels.errors import Unavailable
from laurels.ports import Distribution, Page, RankChange, RankEntry

ATTEMPTS = 20
# Samples per part when an offset is searched, and how many rows per part may be left at the end of the search.
SAMPLES = 64
SEEK_ROWS = 64
# The search ends this many rows before the offset, because rows move until the page is read.
SLACK = 64
# Limits of one script, because Redis runs one script at a time.
KEYS_AT_ONCE = 250
DISTINCT_SCORES = 10_000


class SplitRanks:
    def __init__(self, scripts: PartScripts) -> None:
        self._scripts = scripts

    async def top(self, ranking: Ranking, offset: int, limit: int, style: RankStyle) -> Page:
        far = offset > SEEK_ROWS * ranking.parts
        start = await self._seek(ranking, offset) if far else START
        for attempt in range(ATTEMPTS):
            count = 2 * SLACK + SEEK_ROWS * ranking.parts + limit if far else offset + limit
            (found,) = await self._slices(ranking, [SliceWanted(start, 0, count)], exact=attempt > 0)
            total = ranking.limit(found.total)
            stop = min(offset + limit, total)
            if offset >= stop:
                return Page([], total)
            if found.before <= offset and stop - found.before <= len(found.below):
                rows = found.below[offset - found.before : stop - found.before]
                rank = await self._rank_of_first(ranking, found, start, rows[0], offset, style)
                return self._page(ranking, rows, offset, rank, style, total)
            if far and (found.before > offset or found.covers(0, count)):
                # Too many rows have moved since the search.
                start = await self._seek(ranking, offset)
        raise _too_fast()

    async def around_many(
        self, ranking: Ranking, asked: Sequence[tuple[str, int, int]], style: RankStyle
    ) -> list[tuple[Page, int] | None]:
        """Return for each user, above and below: the page around the user and how many users are better.

        None for users who are not ranked.
        """
        found: dict[int, tuple[Page, int] | None] = {}
        waiting = list(range(len(asked)))
        for attempt in range(ATTEMPTS):
            keys = await self._locate(ranking, [asked[number][0] for number in waiting])
            located = {number: key for number, key in zip(waiting, keys, strict=True) if key is not None}
            alone = {number: key for number, key in located.items() if asked[number][1] == asked[number][2] == 0}
            wanted = {
                number: SliceWanted(key, asked[number][1], asked[number][2] + 1)
                for number, key in located.items()
                if number not in alone
            }
            if alone:
                found |= await self._alone(ranking, alone, style)
            if wanted:
                found |= await self._pages_around(ranking, wanted, style, exact=attempt > 0)
            # These users have moved, or rows were missing.
            waiting = [number for number in located if number not in found]
            if not waiting:
                return [found.get(number) for number in range(len(asked))]
        raise _too_fast()

    async def find_many(self, ranking: Ranking, user_ids: Sequence[str], style: RankStyle) -> list[RankEntry | None]:
        found: dict[str, RankEntry] = {}
        for start in range(0, len(user_ids), KEYS_AT_ONCE):
            waiting = list(dict.fromkeys(user_ids[start : start + KEYS_AT_ONCE]))
            for _ in range(ATTEMPTS):
                keys = [key for key in await self._locate(ranking, waiting) if key is not None]
                waiting = []
                if not keys:
                    break
                total, counts = await self._counts(ranking, keys)
                ranks = await self._ranks(ranking, keys, counts, style)
                for key, (before, _, is_there), rank in zip(keys, counts, ranks, strict=True):
                    entry = _entry(ranking, key, rank)
                    if not is_there:
                        waiting.append(entry.user_id)
                    elif before < ranking.limit(total):
                        found[entry.user_id] = entry
            if waiting:
                raise _too_fast()
        return [found.get(user_id) for user_id in user_ids]

    async def count(self, ranking: Ranking) -> int:
        answers = await self._scripts.look_at_all(ranking, "gather", pack([]), b"", b"")
        return ranking.limit(sum(answer[0] for answer in answers))

    async def distribution(self, ranking: Ranking, buckets: int) -> Distribution:
        for _ in range(ATTEMPTS):
            total, first, last = await self._ends(ranking)
            if not total:
                return Distribution([], [], [])
            low, high = sorted((_read(ranking, first), _read(ranking, last)))
            edges = bucket_edges(low, high, buckets)
            offsets = [offset if ranking.order is Order.ASC else total - 1 - offset for offset in decile_offsets(total)]
            # The last row within a capacity has the last score.
            keys = [await self._seek(ranking, offset) for offset in (*offsets, total - 1)]
            count = SEEK_ROWS * ranking.parts + 2 * SLACK
            wanted = [SliceWanted(key, 0, count) for key in keys]
            answers = await self._gather(ranking, wanted, format_bounds(ranking, edges), exact=True)
            slices = merge_rows(answers, wanted)
            if ranking.limit(sum(answer[0] for answer in answers)) != total or _first(answers) != first:
                continue
            scores = [each.score_at(offset) for each, offset in zip(slices, (*offsets, total - 1), strict=True)]
            if None in scores or scores[-1] != last:
                continue
            before = [min(total, sum(column)) for column in zip(*(answer[3] for answer in answers), strict=True)]
            # Edges ascend. In a descending ranking, the users before an edge have scores at or above it.
            below = before if ranking.order is Order.ASC else [total - count for count in before]
            counts = [high - low for low, high in pairwise([0, *below, total])]
            return Distribution(edges, counts, [_read(ranking, score) for score in scores[:-1] if score is not None])
        raise _too_fast()

    async def ranked_users(self, ranking: Ranking, at_once: int) -> AsyncIterator[list[str]]:
        """Yield every ranked user, in order, in chunks of about `at_once`."""
        key, left = START, math.inf
        while left > 0:
            (found,) = await self._slices(ranking, [SliceWanted(key, 0, at_once)])
            left = min(left, ranking.limit(found.total) - found.before)
            rows = found.below[: max(0, int(left))]
            if not rows:
                return
            yield [member[8:].decode() for _, member in rows]
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

        The ranks before are those among the others as they are now.
        """
        old = [_key(user, found) for user, found in zip(users, before, strict=True)] if before else [None] * len(users)
        new = [_key(user, found) for user, found in zip(users, after, strict=True)]
        keys = list(dict.fromkeys(key for key in (*old, *new) if key is not None))
        counted: dict[Key, tuple[int, int]] = {}
        for start in range(0, len(keys), KEYS_AT_ONCE):
            some = keys[start : start + KEYS_AT_ONCE]
            _, counts = await self._counts(ranking, some)
            counted |= {key: (ahead, better) for key, (ahead, better, _) in zip(some, counts, strict=True)}
        moved = [(one, two) for one, two in zip(old, new, strict=True) if one != two]

        def rank_of(key: Key | None, *, was: bool) -> int | None:
            if key is None:
                return None
            ahead, better = counted[key]
            if was:
                # Undo the changes: who is ahead now but was not, and who was ahead.
                for one, two in moved:
                    ahead += (one is not None and one < key) - (two is not None and two < key)
                    better += (one is not None and one[0] < key[0]) - (two is not None and two[0] < key[0])
            if ranking.capacity is not None and ahead >= ranking.capacity:
                return None
            return (ahead if style is RankStyle.ORDINAL else better) + 1

        return [RankChange(rank_of(one, was=True), rank_of(two, was=False)) for one, two in zip(old, new, strict=True)]

    # Inside

    async def _locate(self, ranking: Ranking, user_ids: Sequence[str]) -> list[Key | None]:
        """Return the key of each user from the user's part; None for users who are not ranked."""
        users: dict[int, list[str]] = {}
        for user_id in user_ids:
            users.setdefault(part_of(user_id, ranking.parts), []).append(user_id)
        args = {part: (pack(some),) for part, some in users.items()}
        keys: dict[str, Key | None] = {}
        for some, (found,) in zip(users.values(), await self._scripts.look_at(ranking, "locate", args), strict=True):
            keys |= {user: _key(user, each) for user, each in zip(some, found, strict=True)}
        return [keys[user_id] for user_id in user_ids]

    async def _counts(self, ranking: Ranking, keys: Sequence[Key]) -> tuple[int, list[tuple[int, int, bool]]]:
        """Return how many users are ranked in all, and for each key: before, better, and if a user has this key."""
        owners = [part_of(member[8:].decode(), ranking.parts) for _, member in keys]
        args = {
            part: (*pack_keys((key, 0, int(owner == part)) for key, owner in zip(keys, owners, strict=True)), b"")
            for part in range(ranking.parts)
        }
        answers = await self._scripts.look_at(ranking, "gather", args)
        counts = []
        for number, (key, owner) in enumerate(zip(keys, owners, strict=True)):
            pages = [answer[4][number] for answer in answers]
            is_there = read_rows(pages[owner][3]) == [key]
            counts.append((sum(page[0] for page in pages), sum(page[1] for page in pages), is_there))
        return sum(answer[0] for answer in answers), counts

    async def _slices(self, ranking: Ranking, wanted: Sequence[SliceWanted], *, exact: bool = False) -> list[Slice]:
        """Return the rows around each key.

        They may be fewer than wanted unless `exact`, because each part is asked for its likely share only.
        """
        slices: list[Slice] = []
        for start in range(0, len(wanted), KEYS_AT_ONCE):
            some = wanted[start : start + KEYS_AT_ONCE]
            slices += merge_rows(await self._gather(ranking, some, None, exact=exact), some)
        return slices

    async def _gather(
        self, ranking: Ranking, wanted: Sequence[SliceWanted], bounds: Sequence[str] | None, *, exact: bool
    ) -> list[Answer]:
        share = (lambda rows: rows) if exact else (lambda rows: likely_share(rows, ranking.parts))
        keys = pack_keys((want.key, share(want.above), share(want.below)) for want in wanted)
        return await self._scripts.look_at_all(ranking, "gather", *keys, b"" if bounds is None else pack(bounds))

    async def _ends(self, ranking: Ranking) -> tuple[int, float, float]:
        """Return how many users are ranked, and the first and the last score."""
        for _ in range(ATTEMPTS):
            answers = await self._gather(ranking, [], [], exact=True)
            everybody = sum(answer[0] for answer in answers)
            total = ranking.limit(everybody)
            if not total:
                return 0, 0.0, 0.0
            if total == everybody:
                return total, _first(answers), max(float(answer[2]) for answer in answers if answer[0])
            last = await self.top(ranking, total - 1, 1, RankStyle.ORDINAL)
            if last.entries:
                return total, _first(answers), _stored(ranking, last.entries[0].score)
        raise _too_fast()

    async def _seek(self, ranking: Ranking, offset: int) -> Key:
        """Return a key that was a little before an offset of the whole ranking.

        Each round asks every part for evenly spaced rows between two keys, and moves the keys closer together:
        O(log n) rounds, four for 25 million users in 16 parts.
        """
        low, high = START, END
        while True:
            answers = await self._scripts.look_at_all(
                ranking, "sample", repr(low[0]), low[1], repr(high[0]), high[1], SAMPLES
            )
            spans = [Span(first, last, read_rows(rows)) for _, first, last, rows in answers]
            if sum(span.high - span.low for span in spans) <= SEEK_ROWS * ranking.parts:
                return low
            narrowed = narrow(spans, low, high, offset, SLACK)
            if narrowed == (low, high):
                return low
            low, high = narrowed

    async def _ranks(
        self, ranking: Ranking, keys: Sequence[Key], counts: Sequence[tuple[int, int, bool]], style: RankStyle
    ) -> list[int]:
        if style is RankStyle.DENSE:
            return [ahead + 1 for ahead in await self._distinct_ahead(ranking, [score for score, _ in keys])]
        return [(before if style is RankStyle.ORDINAL else better) + 1 for before, better, _ in counts]

    async def _rank_of_first(
        self, ranking: Ranking, near: Slice, start: Key, row: Key, offset: int, style: RankStyle
    ) -> int:
        """Return the rank of a row of a slice at an offset."""
        if style is RankStyle.ORDINAL:
            return offset + 1
        if style is RankStyle.DENSE:
            return (await self._distinct_ahead(ranking, [row[0]]))[0] + 1
        if row[0] == start[0]:
            return near.better + 1
        # All rows with this score are in the slice, because the key before it has another one.
        return near.before + bisect_left(near.below, (row[0], b"")) + 1

    async def _alone(
        self, ranking: Ranking, keys: Mapping[int, Key], style: RankStyle
    ) -> dict[int, tuple[Page, int] | None]:
        """Return the pages of single users, and how many users are better; without those whose key has changed."""
        total, counts = await self._counts(ranking, list(keys.values()))
        ranks = await self._ranks(ranking, list(keys.values()), counts, style)
        total = ranking.limit(total)
        return {
            number: (self._page(ranking, [key], before, rank, style, total), better) if before < total else None
            for (number, key), (before, better, is_there), rank in zip(keys.items(), counts, ranks, strict=True)
            if is_there
        }

    async def _pages_around(
        self, ranking: Ranking, wanted: Mapping[int, SliceWanted], style: RankStyle, *, exact: bool
    ) -> dict[int, tuple[Page, int] | None]:
        """Return the pages around users like `_alone`; without those for which rows are missing."""
        found: dict[int, tuple[Page, int] | None] = {}
        slices = await self._slices(ranking, list(wanted.values()), exact=exact)
        for (number, want), near in zip(wanted.items(), slices, strict=True):
            if near.below[:1] != [want.key] or not near.covers(want.above, want.below):
                continue
            if near.before >= ranking.limit(near.total):
                found[number] = None
            elif (page := await self._page_around(ranking, near, want, style)) is not None:
                found[number] = page, near.better
        return found

    async def _page_around(self, ranking: Ranking, near: Slice, want: SliceWanted, style: RankStyle) -> Page | None:
        total = ranking.limit(near.total)
        above = near.above[len(near.above) - want.above :] if want.above < len(near.above) else near.above
        rows = [*above, *near.below[: min(want.below, total - near.before)]]
        offset = near.before - len(above)
        if style is RankStyle.ORDINAL:
            return self._page(ranking, rows, offset, offset + 1, style, total)
        score = rows[0][0]
        if style is RankStyle.DENSE:
            (ahead,) = await self._distinct_ahead(ranking, [score])
            return self._page(ranking, rows, offset, ahead + 1, style, total)
        if score == want.key[0]:
            return self._page(ranking, rows, offset, near.better + 1, style, total)
        if len(near.above) == near.before or near.above[0][0] < score:
            # The first row with this score is in the near.
            number = bisect_left(near.above, (score, b""))
            rank = near.before - len(near.above) + number + 1
            return self._page(ranking, rows, offset, rank, style, total)
        # Read all again from the first row on, to count the better scores at the same moment.
        (again,) = await self._slices(ranking, [SliceWanted(rows[0], 0, len(rows))], exact=True)
        if again.below[: len(rows)] != rows:
            return None
        return self._page(ranking, rows, again.before, again.better + 1, style, ranking.limit(again.total))

    async def _distinct_ahead(self, ranking: Ranking, scores: Sequence[float]) -> list[int]:
        """Return how many distinct scores are better than each of these.

        O(parts · distinct scores ahead), read in chunks, each at one moment.
        """
        worst = repr(max(scores))
        better: set[float] = set()
        after = [repr(-math.inf)] * ranking.parts
        parts = list(range(ranking.parts))
        while parts:
            args = {part: (after[part], worst, DISTINCT_SCORES) for part in parts}
            more = []
            for part, (found,) in zip(parts, await self._scripts.look_at(ranking, "distinct", args), strict=True):
                better.update(map(float, found))
                if len(found) == DISTINCT_SCORES:
                    after[part] = found[-1].decode()
                    more.append(part)
            parts = more
        ahead = sorted(better)
        return [bisect_left(ahead, score) for score in scores]

    def _page(
        self, ranking: Ranking, rows: Sequence[Key], offset: int, rank: int, style: RankStyle, total: int
    ) -> Page:
        flat: list[Any] = []
        for score, member in rows:
            flat += (member, score)
        return Page(number_entries(*read_entries(ranking, flat), offset, rank, style), total)


def _key(user_id: str, found: Answer | None) -> Key | None:
    """Return the key of a user from a score and the bytes of a time."""
    return (float(found[0]), found[1] + user_id.encode()) if found else None


def _entry(ranking: Ranking, key: Key, rank: int) -> RankEntry:
    score, member = key
    return RankEntry(member[8:].decode(), _read(ranking, score), read_time(ranking, member[:8]), rank)


def _read(ranking: Ranking, stored: float) -> float:
    return read_score(ranking, repr(stored).encode())


def _stored(ranking: Ranking, score: float) -> float:
    return 0.0 - score if ranking.order is Order.DESC else score


def _first(answers: Iterable[Answer]) -> float:
    return min((float(answer[1]) for answer in answers if answer[0]), default=math.inf)


def _too_fast() -> Unavailable:
    return Unavailable("catching_up", "This ranking changes too fast for this read. Try again.")
