"""The Index on Redis.

The logic is in the Lua scripts. This module encodes their arguments and decodes their answers.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Hashable, Iterable, Sequence
from itertools import pairwise, repeat
from typing import Any, NamedTuple

from laurels.adapters.numbering import number_entries
from laurels.adapters.redis.connection import Answer, RedisConnection, load_scripts
from laurels.adapters.redis.packing import (
    format_bounds,
    format_capacity,
    format_view,
    pack,
    pack_rows,
    read_entries,
    read_held,
    read_score,
    read_time,
)
from laurels.core.board import Ranking, RankStyle
from laurels.core.distribution import bucket_edges
from laurels.core.order import Order
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
    RankChange,
    RankEntry,
    RanksWanted,
    Row,
)
from laurels.tasks import end_tasks

# Limits of the work per script, because Redis runs one script at a time.
BUILD_ROWS = 1000
BUILDS_AT_ONCE = 4
LIST_USERS = 10_000
STATES = 500
CLAIM_MS = 10_000
SCAN_KEYS = 1000
LIVE_KEYS = 5
# A script that reads neighbours is sent when it returns this many rows, even if the tick is not over.
GATHERED_ROWS = 500
ATTEMPTS = 20
# Maximum number of periods whose key names are cached.
MAX_KEYS = 10_000

_STYLES = {RankStyle.ORDINAL: b"o", RankStyle.COMPETITION: b"c", RankStyle.DENSE: b"d"}


class _Keys(NamedTuple):
    """The keys of a period. They share the part in braces (`tag`), and so a cluster's slot."""

    tag: str
    names: tuple[bytes, ...]
    # Reads send only the keys of the live generation, because each key adds to the time of a call.
    to_read: tuple[bytes, ...]
    channel: str


class _Gathered:
    """Reads of neighbours in one ranking that share a script: user, above, below; and the future of each result."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int, int]] = []
        self.found: list[asyncio.Future[Answer | None]] = []
        self.rows = 0

    def add(self, user_id: str, above: int, below: int) -> "asyncio.Future[Answer | None]":
        self.asked.append((user_id, above, below))
        self.found.append(asyncio.get_running_loop().create_future())
        self.rows += above + below + 1
        return self.found[-1]


class RedisIndex:
    def __init__(self, connection: RedisConnection) -> None:
        self.connection = connection
        self._ledger_id = ""
        # By period.
        self._keys: dict[int, _Keys] = {}
        self._scripts = load_scripts()
        # The reads of this tick of the event loop that share a script: neighbours by ranking, and revisions by period.
        self._gathered: dict[tuple[Ranking, RankStyle], _Gathered] = {}
        self._revisions: dict[int, asyncio.Future[Answer]] = {}
        self._sending: set[asyncio.Task[None]] = set()

    async def open(self, ledger_id: str) -> None:
        self._ledger_id = ledger_id
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

    # Writes

    async def load(
        self, ranking: Ranking, rows: AsyncIterator[list[Row]], position: Position, replacing: str | None = None
    ) -> None:
        build_id = secrets.token_hex(8)
        status, *_ = await self.run_script(
            ranking,
            "begin_build",
            build_id,
            CLAIM_MS,
            "any" if replacing is None else replacing,
            position.history,
            position.floor,
        )
        if status == b"busy":
            raise Unavailable("build_running", "Another server is building this ranking, or has just built it.")
        _need_ok(status)
        try:
            await self._load_rows(ranking, build_id, rows)
            keys = self.keys_of(ranking)
            status, *_ = await self.run_script(
                ranking, "finish_build", build_id, position.text, keys.channel, self._publish
            )
            _need_ok(status)
        except BaseException:
            await self._give_up(ranking, build_id)
            raise

    async def apply(
        self,
        ranking: Ranking,
        rows: Sequence[Row],
        style: RankStyle,
        as_of: AsOf = AsOf(),  # noqa: B008 - a frozen value
        wanted: RanksWanted = RanksWanted.BOTH,
    ) -> Applied:
        keys = self.keys_of(ranking)
        packed = pack_rows(ranking, rows)
        known = (as_of.history, as_of.floor, int(wanted))
        status, *rest = await self.run_script(
            ranking, "apply", *packed, _STYLES[style], keys.channel, self._publish, format_capacity(ranking), *known
        )
        if status == b"refused":
            return Applied(None, refused=True)
        if status == b"stale":
            return Applied(None)
        _need_ok(status)
        before, after = rest
        if wanted is RanksWanted.AFTER:
            before = repeat(None)
        return Applied(list(map(RankChange, before, after)))

    async def drop(self, ranking: Ranking) -> None:
        more = True
        while more:
            # Each call deletes a limited number of segments, so that other clients do not wait for all of them.
            _, more = await self.run_script(ranking, "drop")
        self._keys.pop(ranking.period_id, None)

    async def forget(self, ranking: Ranking, user_ids: Sequence[str], floor: int) -> None:
        await self.run_script(ranking, "forget", pack(list(user_ids)), floor)

    async def states(self, rankings: Sequence[Ranking]) -> list[IndexState]:
        found: list[IndexState] = []
        # In chunks, so that reads can run in between.
        for start in range(0, len(rankings), STATES):
            some = rankings[start : start + STATES]
            answers = await asyncio.gather(*(self.run_script(each, "state") for each in some), return_exceptions=True)
            found += [_state(answer) for answer in answers]
        return found

    async def confirm(self, ranking: Ranking, seen: IndexState, position: Position) -> None:
        await self.run_script(ranking, "confirm", seen.epoch, position.text, position.history, position.floor)

    async def claim(self, task: str, seconds: float) -> bool:
        key = f"laurels:{self._ledger_id}:claim:{task}"
        answer = await self.connection.run(key, self._scripts["claim"], (key.encode(),), (max(1, int(seconds * 1000)),))
        return bool(answer[0] == b"ok")

    async def periods(self) -> AsyncIterator[list[int]]:
        start = f"laurels:{{{self._ledger_id}/"
        async for names in self.connection.scan(start + "*", SCAN_KEYS):
            found = {name.decode(errors="replace").removeprefix(start).partition("}")[0] for name in names}
            yield [int(number) for number in found if number.isascii() and number.isdigit()]

    # Reads

    async def top(self, ranking: Ranking, offset: int, limit: int, style: RankStyle) -> Page:
        total, first, page = await self._look(ranking, "top", offset, limit, _STYLES[style])
        return Page(number_entries(*read_entries(ranking, page), offset, first, style), total)

    async def revision(self, ranking: Ranking) -> Hashable:
        """See Index.revision. All calls for a period in one tick of the event loop share a script."""
        running = self._revisions.get(ranking.period_id)
        if running is None:
            loop = asyncio.get_running_loop()
            keys = self.keys_of(ranking)
            running = self.connection.run(keys.tag, self._scripts["revision"], keys.to_read, ("", GLOBAL, b""))
            self._revisions[ranking.period_id] = running
            # The connection sends the script at the end of this tick, so later calls need another one.
            loop.call_soon(self._revisions.pop, ranking.period_id, None)
        # A cancelled caller must not cancel the read for the others.
        status, *rest = _need_master(await asyncio.shield(running))
        _need_ok(status)
        return bytes(rest[0])

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
        (found,) = await self._look(ranking, "find_many", pack(list(user_ids)), _STYLES[style])
        return [
            None
            if each is None
            else RankEntry(user_id, read_score(ranking, each[1]), read_time(ranking, each[2]), each[0])
            for user_id, each in zip(user_ids, found, strict=True)
        ]

    async def distribution(self, ranking: Ranking, buckets: int) -> Distribution:
        """Count the scores in equal-width buckets, as `Ranks.distribution`.

        The first script returns the lowest and the highest score. The second one returns the counts, all of one moment,
        if these scores are still the same; else both are repeated, up to ATTEMPTS times.
        """
        for _ in range(ATTEMPTS):
            total, *ends = await self._look(ranking, "ends")
            if not total:
                return Distribution([], [], [])
            first, last = (read_score(ranking, end) for end in ends)
            edges = bucket_edges(min(first, last), max(first, last), buckets)
            bounds = pack(format_bounds(ranking, edges))
            status, *rest = await self._ask(ranking, "spread", *ends, bounds, ranking.order, *format_view(ranking))
            if status == b"changed":
                continue
            _need_ok(status)
            total, before, scores = rest
            # Edges ascend. In a descending ranking, the users before an edge have scores at or above it.
            below = before if ranking.order is Order.ASC else [total - count for count in before]
            counts = [high - low for low, high in pairwise([0, *below, total])]
            return Distribution(edges, counts, [read_score(ranking, score) for score in scores])
        raise Unavailable("catching_up", "This ranking changes too fast to compute a distribution. Try again.")

    async def count(self, ranking: Ranking) -> int:
        total, *_ = await self._look(ranking, "top", 0, 0, b"o")
        return int(total)

    async def held(self, ranking: Ranking, user_ids: Sequence[str]) -> list[Held | None]:
        if not user_ids:
            return []
        (found,) = await self._read(ranking, "held", pack(list(user_ids)))
        return [None if each is None else read_held(ranking, *each) for each in found]

    async def segments(self, ranking: Ranking) -> list[str]:
        found: set[str] = set()
        cursor = "0"
        while True:
            following, some = await self._read(ranking, "segments", cursor)
            found |= {segment.decode() for segment in some}
            cursor = following.decode()
            if cursor == "0":
                return list(found)

    async def ranked_users(self, ranking: Ranking) -> AsyncIterator[list[str]]:
        offset = 0
        while True:
            page = await self.top(ranking, offset, LIST_USERS, RankStyle.ORDINAL)
            if page.entries:
                yield [entry.user_id for entry in page.entries]
            offset += len(page.entries)
            if offset >= page.total or not page.entries:
                return

    # Inside

    @property
    def known_periods(self) -> int:
        """Return for how many periods the index remembers its keys."""
        return len(self._keys)

    def keys_of(self, ranking: Ranking) -> _Keys:
        keys = self._keys.get(ranking.period_id)
        if keys is None:
            if len(self._keys) >= MAX_KEYS:
                # `drop` runs on one server only, so the others keep names of dropped periods.
                self._keys.clear()
            tag = f"{self._ledger_id}/{ranking.period_id}"
            parts = ("meta", "z", "h", "d", "n", "b:z", "b:h", "b:d", "b:n")
            names = tuple(f"laurels:{{{tag}}}:{part}".encode() for part in parts)
            keys = self._keys[ranking.period_id] = _Keys(tag, names, names[:LIVE_KEYS], f"laurels:{{{tag}}}:feed")
        return keys

    @property
    def _publish(self) -> str:
        return self.connection.publish_command

    async def run_script(self, ranking: Ranking, script: str, *args: Any) -> Answer:
        keys = self.keys_of(ranking)
        chosen = self._scripts[script]
        return _need_master(
            await self.connection.run(keys.tag, chosen, keys.to_read if chosen.reads else keys.names, args)
        )

    async def _ask(self, ranking: Ranking, script: str, *args: Any) -> Answer:
        """Run a script like `_run`; request a rebuild if the script needs dense ranks and the ranking has none."""
        answer = await self.run_script(ranking, script, *args)
        if answer[0] == b"sparse":
            await self.run_script(ranking, "want_dense")
            raise Unavailable("catching_up", "Dense ranks of this ranking are being built. Try again in a moment.")
        return answer

    async def _look(self, ranking: Ranking, script: str, *args: Any) -> Answer:
        """Read one segment, with the capacity and the viewer of the ranking."""
        return await self._read(ranking, script, *args, *format_view(ranking))

    async def _read(self, ranking: Ranking, script: str, *args: Any) -> Answer:
        status, *rest = await self._ask(ranking, script, *args)
        _need_ok(status)
        return rest

    async def _around(
        self, ranking: Ranking, user_id: str, above: int, below: int, style: RankStyle
    ) -> tuple[Page, int] | None:
        """Return a user's neighbours, and how many users are better.

        All calls for a ranking in one tick of the event loop share a script.
        """
        gathered = self._gathered.get((ranking, style))
        if gathered is None:
            gathered = self._gathered[ranking, style] = _Gathered()
            asyncio.get_running_loop().call_soon(self._send_gathered, ranking, style)
        found = gathered.add(user_id, above, below)
        if gathered.rows >= GATHERED_ROWS:
            self._send_gathered(ranking, style)
        answer = await found
        if answer is None:
            return None
        total, first, page, offset, better = answer
        return Page(number_entries(*read_entries(ranking, page), offset, first, style), total), better

    def _send_gathered(self, ranking: Ranking, style: RankStyle) -> None:
        gathered = self._gathered.pop((ranking, style), None)
        if gathered is not None:
            sending = asyncio.create_task(self._answer_gathered(ranking, style, gathered), name="read neighbours")
            self._sending.add(sending)
            sending.add_done_callback(self._sending.discard)

    async def _answer_gathered(self, ranking: Ranking, style: RankStyle, gathered: _Gathered) -> None:
        answers: Sequence[Answer | Exception | None]
        try:
            (answers,) = await self._look(ranking, "around_many", pack(gathered.asked), _STYLES[style])
        except Exception as error:  # noqa: BLE001 - each of the reads raises it
            answers = [error] * len(gathered.found)
        for found, answer in zip(gathered.found, answers, strict=True):
            if found.done():
                continue
            if isinstance(answer, Exception):
                found.set_exception(answer)
            else:
                found.set_result(answer or None)

    async def _load_rows(self, ranking: Ranking, build_id: str, rows: AsyncIterator[list[Row]]) -> None:
        sending: set[asyncio.Task[Answer]] = set()
        try:
            async for chunk in rows:
                for start in range(0, len(chunk), BUILD_ROWS):
                    packed = pack_rows(ranking, chunk[start : start + BUILD_ROWS])
                    sending.add(asyncio.create_task(self.run_script(ranking, "build", build_id, CLAIM_MS, *packed)))
                    if len(sending) >= BUILDS_AT_ONCE:
                        done, sending = await asyncio.wait(sending, return_when=asyncio.FIRST_COMPLETED)
                        _need_built(done)
            if sending:
                done, sending = await asyncio.wait(sending)
                _need_built(done)
        finally:
            await end_tasks(sending)

    async def _give_up(self, ranking: Ranking, build_id: str) -> None:
        try:
            await self.run_script(ranking, "give_up_build", build_id)
        except Unavailable:
            return  # the lease expires


def _need_master(answer: Answer) -> Answer:
    if answer[0] == b"replica":
        raise Unavailable("index_unavailable", "This Redis server is now a replica. Try again in a moment.")
    return answer


def _need_ok(status: bytes) -> None:
    if status != b"ok":
        raise Unavailable("catching_up", f"This ranking is being repaired or rebuilt ({status.decode()}). Try again.")


def _need_built(done: Iterable["asyncio.Task[Answer]"]) -> None:
    for task in done:
        _need_ok(task.result()[0])


def _state(answer: Answer | BaseException) -> IndexState:
    if isinstance(answer, Unavailable):
        return IndexState(IndexHealth.UNREACHABLE)
    if isinstance(answer, BaseException):
        raise answer
    if answer[0] == b"cold":
        return IndexState(IndexHealth.MISSING)
    status, position, epoch, wants_build, generation = answer
    health = IndexHealth.READY if status == b"ok" else IndexHealth.STALE
    return IndexState(health, Position.parse(position.decode()), epoch.decode(), bool(wants_build), generation.decode())
