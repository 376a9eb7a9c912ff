"""The Index on Redis. What happens is in the scripts; here is what goes in and comes out."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Hashable, Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from laurels.adapters.numbering import number_places
from laurels.adapters.redis.connection import Answer, RedisConnection, Script
from laurels.adapters.redis.packing import (
    pack,
    pack_rows,
    read_entries,
    read_held,
    read_score,
    read_time,
    spell_bounds,
    spell_view,
)
from laurels.core.board import Ranking, RankStyle
from laurels.core.distribution import bucket_edges
from laurels.core.order import Order
from laurels.errors import Unavailable
from laurels.ports import (
    Applied,
    AsOf,
    Distribution,
    Found,
    Held,
    IndexState,
    Page,
    Place,
    Placement,
    Position,
    Refill,
    Row,
    Standby,
)
from laurels.tasks import end_tasks

# One script holds everybody else up for as long as it runs.
BUILD_ROWS = 1000
BUILDS_AT_ONCE = 4
LIST_USERS = 10_000
STATES = 500
CLAIM_MS = 10_000
SCAN_KEYS = 1000
LIVE_KEYS = 5
READS = {"around", "ends", "held", "is_outside", "places", "revision", "segments", "spread", "state", "top"}
LOOKS = 20
# The names of so many periods are remembered.
MAX_KEYS = 10_000

_STYLES = {RankStyle.ORDINAL: b"o", RankStyle.COMPETITION: b"c", RankStyle.DENSE: b"d"}


class _Keys(NamedTuple):
    """The names that belong to a period. They share what is in braces, and so a cluster's slot."""

    tag: str
    names: tuple[bytes, ...]
    # Those of the live generation are enough for a read: each name costs its share of the time to send it.
    to_read: tuple[bytes, ...]
    channel: str


class RedisIndex:
    def __init__(self, connection: RedisConnection) -> None:
        self._connection = connection
        self._ledger_id = ""
        # By period.
        self._keys: dict[int, _Keys] = {}
        self._scripts = {
            name: Script(name)
            for name in (
                "apply", "around", "begin_build", "begin_refill", "build", "claim", "confirm", "drop", "ends",
                "finish_build", "forget", "give_up_build", "held", "is_outside", "places", "refill", "revision",
                "segments", "spread", "state", "top", "trim", "want_dense",
            )
        }  # fmt: skip

    async def open(self, ledger_id: str) -> None:
        self._ledger_id = ledger_id
        await self._connection.open()

    async def close(self) -> None:
        await self._connection.close()

    async def ping(self) -> None:
        await self._connection.ping()

    @property
    def outages(self) -> int:
        return self._connection.outages

    # Writes

    async def load(
        self, ranking: Ranking, rows: AsyncIterator[list[Row]], position: Position, replacing: str | None = None
    ) -> None:
        build_id = secrets.token_hex(8)
        capacity = ranking.capacity
        status, *_ = await self._run(
            ranking,
            "begin_build",
            build_id,
            CLAIM_MS,
            "" if capacity is None else capacity,
            ranking.reserve,
            "any" if replacing is None else replacing,
            position.history,
            position.floor,
        )
        if status == b"busy":
            raise Unavailable("build_running", "Another server is building this ranking.")
        _need_ok(status)
        try:
            await self._load_rows(ranking, build_id, rows)
            keys = self._keys_of(ranking)
            status, *_ = await self._run(ranking, "finish_build", build_id, position.text, keys.channel, self._publish)
            _need_ok(status)
        except BaseException:
            await self._give_up(ranking, build_id)
            raise

    async def apply(
        self,
        ranking: Ranking,
        rows: Sequence[Row],
        style: RankStyle,
        left_out: int = 0,
        as_of: AsOf = AsOf(),  # noqa: B008 - a frozen value
    ) -> Applied:
        keys = self._keys_of(ranking)
        packed = pack_rows(ranking, rows)
        known = (as_of.history, as_of.floor)
        status, *rest = await self._run(
            ranking, "apply", *packed, _STYLES[style], keys.channel, self._publish, left_out, *known
        )
        if status == b"refused":
            return Applied(None, refused=True)
        if status == b"behind":
            return Applied(None)
        _need_ok(status)
        before, after, short = rest
        return Applied([Placement(*ranks) for ranks in zip(before, after, strict=True)], bool(short))

    async def drop(self, ranking: Ranking) -> None:
        more = True
        while more:
            # Segment by segment, so that nobody waits for all of them.
            _, more = await self._run(ranking, "drop")
        self._keys.pop(ranking.period_id, None)

    async def forget(self, ranking: Ranking, user_ids: Sequence[str], floor: int) -> None:
        await self._run(ranking, "forget", pack(list(user_ids)), floor)

    async def trim(self, ranking: Ranking, *, forget: bool) -> int:
        gone, cursor = 0, "0"
        while True:
            status, *rest = await self._run(ranking, "trim", int(forget), cursor)
            _need_ok(status)
            gone += int(rest[0])
            cursor = rest[1].decode()
            if cursor == "0":
                return gone

    async def begin_refill(self, ranking: Ranking) -> Refill | None:
        status, *rest = await self._run(ranking, "begin_refill", secrets.randbits(48))
        if status == b"no":
            return None
        _need_ok(status)
        wanted, token = rest
        return Refill(wanted, int(token))

    async def refill(
        self,
        ranking: Ranking,
        refill: Refill,
        best: Sequence[Row],
        as_of: AsOf = AsOf(),  # noqa: B008 - a frozen value
    ) -> None:
        packed = pack_rows(ranking, best)
        known = (as_of.history, as_of.floor)
        status, *_ = await self._run(ranking, "refill", refill.token, refill.wanted, *packed, *known)
        if status != b"gone":
            _need_ok(status)

    async def states(self, rankings: Sequence[Ranking]) -> list[IndexState]:
        found: list[IndexState] = []
        # Some at a time, so that readers get through in between.
        for start in range(0, len(rankings), STATES):
            some = rankings[start : start + STATES]
            answers = await asyncio.gather(*(self._run(each, "state") for each in some), return_exceptions=True)
            found += [_state(answer) for answer in answers]
        return found

    async def confirm(self, ranking: Ranking, seen: IndexState, position: Position) -> None:
        await self._run(ranking, "confirm", seen.epoch, position.text, position.history, position.floor)

    async def claim(self, task: str, seconds: float) -> bool:
        key = f"laurels:{self._ledger_id}:claim:{task}"
        answer = await self._connection.run(
            key, self._scripts["claim"], (key.encode(),), (max(1, int(seconds * 1000)),)
        )
        return bool(answer[0] == b"ok")

    async def periods(self) -> AsyncIterator[list[int]]:
        start = f"laurels:{{{self._ledger_id}/"
        async for names in self._connection.scan(start + "*", SCAN_KEYS):
            found = {name.decode(errors="replace").removeprefix(start).partition("}")[0] for name in names}
            yield [int(number) for number in found if number.isascii() and number.isdigit()]

    # Reads

    async def top(self, ranking: Ranking, offset: int, limit: int, style: RankStyle) -> Page:
        total, first, page = await self._look(ranking, "top", offset, limit, _STYLES[style])
        return Page(number_places(read_entries(ranking, page), offset, first, style), total)

    async def revision(self, ranking: Ranking) -> Hashable:
        (revision,) = await self._look(ranking, "revision")
        return bytes(revision)

    async def find(self, ranking: Ranking, user_id: str, style: RankStyle) -> Found | None:
        found = await self._around(ranking, user_id, 0, 0, style)
        if found is None:
            return None
        page, better = found
        return Found(page.places[0], better, page.total)

    async def around(self, ranking: Ranking, user_id: str, above: int, below: int, style: RankStyle) -> Page | None:
        found = await self._around(ranking, user_id, above, below, style)
        return None if found is None else found[0]

    async def places(self, ranking: Ranking, user_ids: Sequence[str], style: RankStyle) -> list[Place | None]:
        (found,) = await self._look(ranking, "places", pack(list(user_ids)), _STYLES[style])
        return [
            None if each is None else Place(user_id, read_score(ranking, each[1]), read_time(ranking, each[2]), each[0])
            for user_id, each in zip(user_ids, found, strict=True)
        ]

    async def distribution(self, ranking: Ranking, buckets: int) -> Distribution:
        """The ends first, then the rest, as of one moment if the ends are still the same then."""
        for _ in range(LOOKS):
            total, *ends = await self._look(ranking, "ends")
            if not total:
                return Distribution([], [], [])
            first, last = (read_score(ranking, end) for end in ends)
            edges = bucket_edges(min(first, last), max(first, last), buckets)
            bounds = pack(spell_bounds(ranking, edges))
            status, *rest = await self._ask(ranking, "spread", *ends, bounds, ranking.order, *spell_view(ranking))
            if status == b"moved":
                continue
            _need_ok(status)
            total, before, scores = rest
            # Edges go up. In a descending ranking those before an edge are the ones at or above it.
            below = before if ranking.order is Order.ASC else [total - count for count in before]
            counts = [high - low for low, high in pairwise([0, *below, total])]
            return Distribution(edges, counts, [read_score(ranking, score) for score in scores])
        raise Unavailable("catching_up", "This ranking changes too fast for a distribution. Try again.")

    async def count(self, ranking: Ranking) -> int:
        total, *_ = await self._look(ranking, "top", 0, 0, b"o")
        return int(total)

    async def is_outside(self, ranking: Ranking, user_id: str) -> bool:
        (outside,) = await self._look(ranking, "is_outside", user_id)
        return bool(outside)

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
            if page.places:
                yield [place.user_id for place in page.places]
            offset += len(page.places)
            if offset >= page.total or not page.places:
                return

    # Inside

    def _keys_of(self, ranking: Ranking) -> _Keys:
        keys = self._keys.get(ranking.period_id)
        if keys is None:
            if len(self._keys) >= MAX_KEYS:
                # Not every server hears of the end of a period.
                self._keys.clear()
            tag = f"{self._ledger_id}/{ranking.period_id}"
            parts = ("meta", "z", "h", "d", "n", "late", "b:z", "b:h", "b:d", "b:n")
            names = tuple(f"laurels:{{{tag}}}:{part}".encode() for part in parts)
            keys = self._keys[ranking.period_id] = _Keys(tag, names, names[:LIVE_KEYS], f"laurels:{{{tag}}}:feed")
        return keys

    @property
    def _publish(self) -> str:
        return self._connection.publish_command

    async def _run(self, ranking: Ranking, script: str, *args: Any) -> Answer:
        keys = self._keys_of(ranking)
        names = keys.to_read if script in READS else keys.names
        answer = await self._connection.run(keys.tag, self._scripts[script], names, args)
        if answer[0] == b"replica":
            raise Unavailable("index_unavailable", "Redis is a replica now.")
        return answer

    async def _ask(self, ranking: Ranking, script: str, *args: Any) -> Answer:
        """As `_run`; a ranking that would have to be built anew for this is marked."""
        answer = await self._run(ranking, script, *args)
        if answer[0] == b"sparse":
            await self._run(ranking, "want_dense")
            raise Unavailable("catching_up", "Dense ranks of this ranking are being prepared.")
        return answer

    async def _look(self, ranking: Ranking, script: str, *args: Any) -> Answer:
        """A read of one segment, as somebody sees it."""
        return await self._read(ranking, script, *args, *spell_view(ranking))

    async def _read(self, ranking: Ranking, script: str, *args: Any) -> Answer:
        status, *rest = await self._ask(ranking, script, *args)
        _need_ok(status)
        return rest

    async def _around(
        self, ranking: Ranking, user_id: str, above: int, below: int, style: RankStyle
    ) -> tuple[Page, int] | None:
        status, *rest = await self._ask(ranking, "around", user_id, above, below, _STYLES[style], *spell_view(ranking))
        if status == b"nobody":
            return None
        _need_ok(status)
        total, first, page, offset, better = rest
        return Page(number_places(read_entries(ranking, page), offset, first, style), total), better

    async def _load_rows(self, ranking: Ranking, build_id: str, rows: AsyncIterator[list[Row]]) -> None:
        sending: set[asyncio.Task[Answer]] = set()
        try:
            async for chunk in rows:
                for start in range(0, len(chunk), BUILD_ROWS):
                    packed = pack_rows(ranking, chunk[start : start + BUILD_ROWS])
                    sending.add(asyncio.create_task(self._run(ranking, "build", build_id, CLAIM_MS, *packed)))
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
            await self._run(ranking, "give_up_build", build_id)
        except Unavailable:
            return  # its claim ends by itself


def _need_ok(status: bytes) -> None:
    if status != b"ok":
        raise Unavailable("catching_up", f"This ranking is being completed ({status.decode()}). Try again in a moment.")


def _need_built(done: Iterable["asyncio.Task[Answer]"]) -> None:
    for task in done:
        _need_ok(task.result()[0])


def _state(answer: Answer | BaseException) -> IndexState:
    if isinstance(answer, Unavailable):
        return IndexState(Standby.UNREACHABLE)
    if isinstance(answer, BaseException):
        raise answer
    if answer[0] == b"cold":
        return IndexState(Standby.COLD)
    status, position, epoch, capacity, wants_build, generation = answer
    standby = Standby.READY if status == b"ok" else Standby.BEHIND
    return IndexState(
        standby, Position.parse(position.decode()), epoch.decode(), capacity, bool(wants_build), generation.decode()
    )
