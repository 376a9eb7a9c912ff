"""The Index on Redis.

The logic is in the Lua scripts. This module encodes their arguments and decodes their answers. Writes go to the part of
each user. A ranking with one part is read by one script; one with several by split_ranks.py.
"""

import asyncio
from collections.abc import AsyncIterator, Hashable, Iterable, Sequence
from itertools import pairwise, repeat
from typing import Any

from laurels.adapters.numbering import number_entries
from laurels.adapters.redis.builds import Build
from laurels.adapters.redis.connection import Answer, RedisConnection
from laurels.adapters.redis.keys import read_tag
from laurels.adapters.redis.packing import (
    format_bounds,
    format_capacity,
    format_range,
    format_view,
    pack,
    pack_rows,
    read_entries,
    read_entry,
    read_held,
    read_score,
)
from laurels.adapters.redis.part_scripts import PartScripts, all_of, need_master, need_ok
from laurels.adapters.redis.split_ranks import SplitRanks
from laurels.core.board import Ranking, RankStyle
from laurels.core.distribution import DECILES, PER_PERCENT, bucket_edges
from laurels.core.order import Order
from laurels.core.parts import part_of
from laurels.core.people import GLOBAL
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
    RankChange,
    RankEntry,
    RanksWanted,
    Row,
    ScoreRange,
)

# Limits of the work per script, because Redis runs one script at a time.
LIST_USERS = 10_000
STATES = 500
SCAN_KEYS = 1000
# A script that reads neighbours is sent when it returns this many rows, even if the tick is not over.
GATHERED_ROWS = 500
ATTEMPTS = 20
# What `apply` asks of a part of several: the scores and times from which ranks are counted.
ENTRIES = 3

_STYLES = {RankStyle.ORDINAL: b"o", RankStyle.COMPETITION: b"c", RankStyle.DENSE: b"d"}
# The answers for neighbours: how many users are ranked, the page, and how many are better.
_Neighbours = tuple[Page, int]


class _Gathered:
    """Reads of neighbours in one ranking that share scripts: user, above, below; and the future of each result."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int, int]] = []
        self.found: list[asyncio.Future[_Neighbours | None]] = []
        self.rows = 0

    def add(self, user_id: str, above: int, below: int) -> "asyncio.Future[_Neighbours | None]":
        self.asked.append((user_id, above, below))
        self.found.append(asyncio.get_running_loop().create_future())
        self.rows += above + below + 1
        return self.found[-1]


class RedisIndex:
    def __init__(self, connection: RedisConnection) -> None:
        self.connection = connection
        self.scripts = PartScripts(connection)
        self._split = SplitRanks(self.scripts)
        self._ledger_id = ""
        # The reads of this tick of the event loop that share scripts: neighbours by ranking, and revisions by period
        # and number of parts.
        self._gathered: dict[tuple[Ranking, RankStyle], _Gathered] = {}
        self._revisions: dict[tuple[int, int], Sequence[asyncio.Future[Answer]]] = {}
        self._sending: set[asyncio.Task[None]] = set()

    async def open(self, ledger_id: str) -> None:
        self._ledger_id = ledger_id
        self.scripts.start(ledger_id)
        await self.connection.open()

    async def close(self) -> None:
        await self.connection.close()

    async def ping(self) -> None:
        await self.connection.ping()

    @property
    def instant(self) -> None:
        """Return None: every read is a round trip."""
        return

    @property
    def outages(self) -> int:
        return self.connection.outages

    @property
    def known_rankings(self) -> int:
        """Return for how many rankings the index remembers its keys."""
        return self.scripts.names.periods

    # Writes

    async def load(
        self,
        ranking: Ranking,
        rows: AsyncIterator[list[Row]],
        position: Position,
        replacing: Sequence[IndexState] | None = None,
    ) -> None:
        await Build(self.scripts, ranking, position, replacing).run(rows)

    async def apply(
        self,
        ranking: Ranking,
        rows: Sequence[Row],
        style: RankStyle,
        as_of: AsOf = AsOf(),  # noqa: B008 - a frozen value
        wanted: RanksWanted = RanksWanted.BOTH,
    ) -> Applied:
        if ranking.parts > 1:
            return await self._apply_split(ranking, rows, style, as_of, wanted)
        status, *rest = await need_done(self._send_rows(ranking, 0, rows, style, as_of, int(wanted)))
        if status != b"ok":
            return _unranked([status])
        before, after = rest
        if wanted is RanksWanted.AFTER:
            before = repeat(None)
        return Applied(list(map(RankChange, before, after)))

    async def drop(self, ranking: Ranking) -> None:
        for part in range(ranking.parts):
            more = True
            while more:
                # Each call deletes a limited number of segments, so that other clients do not wait for all of them.
                _, more = await self.scripts.run(ranking, part, "drop")
        self.scripts.names.forget(ranking)

    async def forget(self, ranking: Ranking, user_ids: Sequence[str], floor: int) -> None:
        users = _by_part(ranking, user_ids)
        # Every part gets the floor.
        sent = [
            self.scripts.send(ranking, part, "forget", pack(users.get(part, [])), floor)
            for part in range(ranking.parts)
        ]
        for answer in await all_of(sent):
            need_master(answer)

    async def states(self, rankings: Sequence[Ranking]) -> list[tuple[IndexState, ...]]:
        parts = [(ranking, part) for ranking in rankings for part in range(ranking.parts)]
        found: list[IndexState] = []
        # In chunks, so that reads can run in between.
        for start in range(0, len(parts), STATES):
            some = parts[start : start + STATES]
            answers = await asyncio.gather(
                *(self.scripts.run(ranking, part, "state") for ranking, part in some), return_exceptions=True
            )
            found += [_state(part, answer) for (_, part), answer in zip(some, answers, strict=True)]
        states = iter(found)
        return [tuple(next(states) for _ in range(ranking.parts)) for ranking in rankings]

    async def confirm(self, ranking: Ranking, seen: IndexState, position: Position) -> None:
        await self.scripts.run(
            ranking, seen.part, "confirm", seen.epoch, position.text, position.history, position.floor
        )

    async def claim(self, task: str, seconds: float) -> bool:
        key = f"laurels:{self._ledger_id}:claim:{task}"
        answer = await self.scripts.send_to(key, key.encode(), "claim", max(1, int(seconds * 1000)))
        return bool(answer[0] == b"ok")

    async def built(self) -> AsyncIterator[list[tuple[int, int]]]:
        start = f"laurels:{{{self._ledger_id}/"
        async for names in self.connection.scan(start + "*", SCAN_KEYS):
            tags = {name.decode(errors="replace").removeprefix(start).partition("}")[0] for name in names}
            yield list({found for tag in tags if (found := read_tag(tag)) is not None})

    # Reads

    async def top(self, ranking: Ranking, offset: int, limit: int, style: RankStyle) -> Page:
        if ranking.parts > 1:
            return await self._split.top(ranking, offset, limit, style)
        total, first, page = await self._look(ranking, "top", offset, limit, _STYLES[style])
        return Page(number_entries(*read_entries(ranking, page), offset, first, style), total)

    async def revision(self, ranking: Ranking) -> Hashable:
        """See Index.revision. All calls for a period in one tick of the event loop share the scripts."""
        name = (ranking.period_id, ranking.parts)
        running = self._revisions.get(name)
        if running is None:
            sent = [self.scripts.send(ranking, part, "revision", "", GLOBAL, b"") for part in range(ranking.parts)]
            # A cancelled caller must not cancel the reads for the others.
            running = self._revisions[name] = sent
            # The connection sends the scripts at the end of this tick, so later calls need other ones.
            asyncio.get_running_loop().call_soon(self._revisions.pop, name, None)
        answers = await all_of([asyncio.shield(each) for each in running])
        for answer in answers:
            need_ok(need_master(answer)[0])
        return bytes(answers[0][1]) if len(answers) == 1 else b" ".join(answer[1] for answer in answers)

    async def find(self, ranking: Ranking, user_id: str, style: RankStyle) -> Found | None:
        found = await self._around(ranking, user_id, 0, 0, style)
        if found is None:
            return None
        page, better = found
        return Found(page.entries[0], better, page.total)

    async def around(self, ranking: Ranking, user_id: str, above: int, below: int, style: RankStyle) -> Page | None:
        found = await self._around(ranking, user_id, above, below, style)
        return None if found is None else found[0]

    async def find_many(self, ranking: Ranking, user_ids: Sequence[str], style: RankStyle) -> list[RankEntry | None]:
        if ranking.parts > 1:
            return await self._split.find_many(ranking, user_ids, style)
        (found,) = await self._look(ranking, "find_many", pack(list(user_ids)), _STYLES[style])
        return [
            None if each is None else read_entry(ranking, user_id, *each)
            for user_id, each in zip(user_ids, found, strict=True)
        ]

    async def in_range(
        self, ranking: Ranking, scores: ScoreRange, skip: int, limit: int, style: RankStyle, *, from_end: bool = False
    ) -> RangePage:
        if ranking.parts > 1:
            return await self._split.in_range(ranking, scores, skip, limit, style, from_end=from_end)
        asked = (*format_range(ranking, scores), skip, limit, "1" if from_end else "", _STYLES[style])
        total, before, count, start, first, page = await self._look(ranking, "in_range", *asked)
        return RangePage(number_entries(*read_entries(ranking, page), start, first, style), start, before, count, total)

    async def distribution(self, ranking: Ranking, buckets: int, percentiles: Sequence[int] = DECILES) -> Distribution:
        """Count the scores in equal-width buckets, as `Ranks.distribution`.

        The first script returns the lowest and the highest score. The second one returns the counts, all of one moment,
        if these scores are still the same; else both are repeated, up to ATTEMPTS times.
        """
        if ranking.parts > 1:
            return await self._split.distribution(ranking, buckets, percentiles)
        for _ in range(ATTEMPTS):
            total, *ends = await self._look(ranking, "ends")
            if not total:
                return Distribution([], [], [])
            first, last = (read_score(ranking, end) for end in ends)
            edges = bucket_edges(min(first, last), max(first, last), buckets)
            asked = (pack(format_bounds(ranking, edges)), pack(percentiles), 100 * PER_PERCENT, ranking.order)
            status, *rest = await self.scripts.run(ranking, 0, "spread", *ends, *asked, *format_view(ranking))
            if status == b"changed":
                continue
            need_ok(status)
            total, before, scores = rest
            # Edges ascend. In a descending ranking, the users before an edge have scores at or above it.
            below = before if ranking.order is Order.ASC else [total - count for count in before]
            counts = [high - low for low, high in pairwise([0, *below, total])]
            return Distribution(edges, counts, [read_score(ranking, score) for score in scores])
        raise Unavailable("catching_up", "This ranking changes too fast to compute a distribution. Try again.")

    async def count(self, ranking: Ranking) -> int:
        if ranking.parts > 1:
            return await self._split.count(ranking)
        total, *_ = await self._look(ranking, "top", 0, 0, b"o")
        return int(total)

    async def held(self, ranking: Ranking, user_ids: Sequence[str]) -> list[Held | None]:
        users = _by_part(ranking, user_ids)
        answers = await asyncio.gather(
            *(self.scripts.read(ranking, part, "held", pack(some)) for part, some in users.items())
        )
        held: dict[str, Held | None] = {}
        for some, (found,) in zip(users.values(), answers, strict=True):
            held |= {
                user: None if each is None else read_held(ranking, *each)
                for user, each in zip(some, found, strict=True)
            }
        return [held[user_id] for user_id in user_ids]

    async def segments(self, ranking: Ranking) -> list[str]:
        found: set[str] = set()
        for part in range(ranking.parts):
            cursor = "0"
            while True:
                following, some = await self.scripts.read(ranking, part, "segments", cursor)
                found |= {segment.decode() for segment in some}
                cursor = following.decode()
                if cursor == "0":
                    break
        return list(found)

    async def ranked_users(self, ranking: Ranking) -> AsyncIterator[list[str]]:
        if ranking.parts > 1:
            async for users in self._split.ranked_users(ranking, LIST_USERS):
                yield users
            return
        offset = 0
        while True:
            page = await self.top(ranking, offset, LIST_USERS, RankStyle.ORDINAL)
            if page.entries:
                yield [entry.user_id for entry in page.entries]
            offset += len(page.entries)
            if offset >= page.total or not page.entries:
                return

    # Inside

    def _send_rows(
        self, ranking: Ranking, part: int, rows: Sequence[Row], style: RankStyle, as_of: AsOf, wanted: int
    ) -> "asyncio.Future[Answer]":
        keys = self.scripts.names.of(ranking)[part]
        return self.scripts.send(
            ranking,
            part,
            "apply",
            *pack_rows(ranking, rows),
            _STYLES[style],
            keys.channel,
            self.connection.publish_command,
            format_capacity(ranking),
            as_of.history,
            as_of.floor,
            wanted,
        )

    async def _apply_split(
        self, ranking: Ranking, rows: Sequence[Row], style: RankStyle, as_of: AsOf, wanted: RanksWanted
    ) -> Applied:
        """Apply rows to the parts of their users, all at the same time, then count the ranks over all parts."""
        by_part: dict[int, list[Row]] = {}
        for row in rows:
            by_part.setdefault(part_of(row.user_id, ranking.parts), []).append(row)
        asked = 0 if wanted is RanksWanted.NONE else ENTRIES
        answers = await all_of(
            [self._send_rows(ranking, part, some, style, as_of, asked) for part, some in by_part.items()]
        )
        statuses = [need_master(answer)[0] for answer in answers]
        if any(status != b"ok" for status in statuses):
            return _unranked(statuses)
        if wanted is RanksWanted.NONE:
            return Applied([])
        users = [row.user_id for some in by_part.values() for row in some]
        before = [found for answer in answers for found in answer[1]] if wanted is RanksWanted.BOTH else []
        after = [found for answer in answers for found in answer[2]]
        changes = await self._split.changes(ranking, users, before, after, style)
        by_user = dict(zip(users, changes, strict=True))
        return Applied([by_user[row.user_id] for row in rows])

    async def _look(self, ranking: Ranking, script: str, *args: Any) -> Answer:
        """Read one segment of a ranking with one part, with its capacity and viewer."""
        return await self.scripts.read(ranking, 0, script, *args, *format_view(ranking))

    async def _around(
        self, ranking: Ranking, user_id: str, above: int, below: int, style: RankStyle
    ) -> _Neighbours | None:
        """Return a user's neighbours, and how many users are better.

        All calls for a ranking in one tick of the event loop share scripts.
        """
        gathered = self._gathered.get((ranking, style))
        if gathered is None:
            gathered = self._gathered[ranking, style] = _Gathered()
            asyncio.get_running_loop().call_soon(self._send_gathered, ranking, style)
        found = gathered.add(user_id, above, below)
        if gathered.rows >= GATHERED_ROWS:
            self._send_gathered(ranking, style)
        return await found

    def _send_gathered(self, ranking: Ranking, style: RankStyle) -> None:
        gathered = self._gathered.pop((ranking, style), None)
        if gathered is not None:
            sending = asyncio.create_task(self._answer_gathered(ranking, style, gathered), name="read neighbours")
            self._sending.add(sending)
            sending.add_done_callback(self._sending.discard)

    async def _answer_gathered(self, ranking: Ranking, style: RankStyle, gathered: _Gathered) -> None:
        answers: Sequence[_Neighbours | Exception | None]
        try:
            if ranking.parts > 1:
                answers = await self._split.around_many(ranking, gathered.asked, style)
            else:
                (found,) = await self._look(ranking, "around_many", pack(gathered.asked), _STYLES[style])
                answers = [_neighbours(ranking, style, each) if each else None for each in found]
        except Exception as error:  # noqa: BLE001 - each of the reads raises it
            answers = [error] * len(gathered.found)
        for future, answer in zip(gathered.found, answers, strict=True):
            if future.done():
                continue
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)


async def need_done(sent: "asyncio.Future[Answer]") -> Answer:
    return need_master(await sent)


def _unranked(statuses: Iterable[bytes]) -> Applied:
    """Return the result of rows that were not applied everywhere, or to a stale ranking."""
    known = set(statuses)
    if b"refused" in known:
        return Applied(None, refused=True)
    for status in known - {b"ok", b"stale"}:
        need_ok(status)
    return Applied(None)


def _by_part(ranking: Ranking, user_ids: Iterable[str]) -> dict[int, list[str]]:
    users: dict[int, list[str]] = {}
    for user_id in user_ids:
        users.setdefault(part_of(user_id, ranking.parts), []).append(user_id)
    return users


def _neighbours(ranking: Ranking, style: RankStyle, answer: Answer) -> _Neighbours:
    total, first, page, offset, better = answer
    return Page(number_entries(*read_entries(ranking, page), offset, first, style), total), better


def _state(part: int, answer: Answer | BaseException) -> IndexState:
    if isinstance(answer, Unavailable):
        return IndexState(IndexHealth.UNREACHABLE, part=part)
    if isinstance(answer, BaseException):
        raise answer
    if answer[0] == b"cold":
        return IndexState(IndexHealth.MISSING, part=part, loaded=answer[1])
    status, position, epoch, wants_build, generation, loaded = answer
    health = IndexHealth.READY if status == b"ok" else IndexHealth.STALE
    return IndexState(
        health,
        Position.parse(position.decode()),
        epoch.decode(),
        bool(wants_build),
        generation.decode(),
        part,
        loaded,
    )
