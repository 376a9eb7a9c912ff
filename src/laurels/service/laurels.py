"""The whole service as one value: what an entry point needs, opened and closed in the right order."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

import structlog

from laurels.core.board import DEFAULT_POD, Board
from laurels.errors import LaurelsError, TooMany, Unavailable
from laurels.ports import Broker, Clock, Feed, Index, Ledger, Sender, Spool, Standby
from laurels.service.access import Access
from laurels.service.batcher import Batcher
from laurels.service.boards import Boards
from laurels.service.chores import Chores
from laurels.service.erasure import Erasures
from laurels.service.follower import Follower, Progress
from laurels.service.freezing import Freezer
from laurels.service.healing import Healer
from laurels.service.ingest.alarm import Alarm
from laurels.service.ingest.consumer import Consumer
from laurels.service.ingest.dead_letters import DeadLetters
from laurels.service.ingest.intake import Intake
from laurels.service.ingest.schemas import Schemas
from laurels.service.ingest.topics import Topics
from laurels.service.jobs import Jobs
from laurels.service.live import LiveHub, Reader
from laurels.service.moderation import Moderation
from laurels.service.people import People
from laurels.service.publisher import Publisher
from laurels.service.rank_source import RankSource
from laurels.service.reads import Reads
from laurels.service.rebuild import Rebuilt, rebuild_board
from laurels.service.recorder import Recorder
from laurels.service.registry import Registry
from laurels.service.retention import Retention
from laurels.service.seasons import Seasons
from laurels.service.spooling import Spooler
from laurels.service.submit import Submissions
from laurels.service.verify import Checked, verify_board
from laurels.service.webhooks import Webhooks

log = structlog.get_logger()

# So many rankings are asked to find out whether any can be read.
LOOK_AT = 20
# A server that died keeps a job from the others for so long.
JOBS_LEASE_MS = 10_000
ALERT_PERCENT = 5
LIVE_TICK_MS = 100
MAX_LIVE = 20_000
MAX_LIVE_PER_KEY = 10_000


class Ingest(NamedTuple):
    """That scores are taken from Kafka, too, as a member of a group, and how many records at a time."""

    group: str
    batch: int


class Laurels:
    """`open`, then `load` (reads and writes answer 503 until it is done), then `close`, whatever happened."""

    def __init__(
        self,
        ledger: Ledger,
        index: Index,
        feed: Feed,
        clock: Clock,
        *,
        sender: Sender,
        spool: Spool | None = None,
        broker: Broker | None = None,
        ingest: Ingest | None = None,
        topic_prefix: str = "",
        alert_percent: int = ALERT_PERCENT,
        admin_key: str,
        max_boards: int,
        max_batch: int,
        max_pending: int,
        write_timeout_ms: int,
        repair_interval_ms: int,
        jobs_interval_ms: int,
        jobs_lease_ms: int = JOBS_LEASE_MS,
        live_tick_ms: int = LIVE_TICK_MS,
        max_live: int = MAX_LIVE,
        max_live_per_key: int = MAX_LIVE_PER_KEY,
    ) -> None:
        # Only a ledger that others may write to, too, can answer for an index that is away from it.
        shared = ledger.ranks is not None
        self.clock = clock
        self._ledger = ledger
        self._index = index
        self.feed = feed
        self._healer = Healer(ledger, index, repair_interval_ms / 1000 if shared else None)
        self._follower = Follower(ledger, index, self._healer)
        self._registry = Registry(ledger, feed, shared=shared)
        self.access = Access(ledger, self._registry, clock, admin_key)
        self.boards = Boards(ledger, self._follower, self._registry, clock, max_boards)
        recorder = Recorder(ledger, self.boards)
        self.spooler = None if spool is None else Spooler(spool, recorder, self._follower, self.boards.by_id, clock)
        self._batcher = Batcher(
            recorder,
            self._follower,
            self.spooler,
            max_batch=max_batch,
            max_pending=max_pending,
            timeout_ms=write_timeout_ms,
        )
        self.submissions = Submissions(ledger, self._follower, self._batcher, clock)
        self._freezer = Freezer(ledger, index, self.boards, clock)
        self.seasons = Seasons(ledger, self.boards, self._freezer, clock)
        self.people = People(ledger, self._follower, feed, clock)
        self.moderation = Moderation(ledger, self._follower, self.boards, clock)
        self.erasures = Erasures(ledger, index, self._follower, self.boards, self.people, clock)
        source = RankSource(ledger, index, self._healer)
        self.reads = Reads(ledger, source, self._follower, self.boards, self.seasons, clock)
        self.live = LiveHub(
            Reader(self.reads, self.boards, self.people, clock),
            feed,
            tick_ms=live_tick_ms,
            max_subscriptions=max_live,
            max_per_key=max_live_per_key,
        )
        self._sender = sender
        self.webhooks = Webhooks(ledger.outbox, sender, clock)
        retention = Retention(ledger, self.boards, clock)
        self.schemas = Schemas(ledger, self._registry, clock)
        intake = Intake(self.boards, self.schemas, self.submissions, self._registry)
        self.topics = Topics(topic_prefix)
        self.dead_letters = DeadLetters(broker, self.topics, intake, ledger, clock)
        self._broker = broker
        self._publisher = None if broker is None else Publisher(ledger, broker, self.topics, self.boards)
        self._consumer: Consumer | None = None
        if broker is not None and ingest is not None:
            alarm = Alarm(ledger.outbox, clock, alert_percent)
            self._consumer = Consumer(
                broker, self.topics, intake, self.dead_letters, alarm, group=ingest.group, batch=ingest.batch
            )
        chores = Chores(
            ledger,
            index,
            self._freezer,
            self.boards,
            self.webhooks,
            retention,
            self.moderation,
            self.erasures,
            self._publisher,
            clock,
        )
        self.jobs = Jobs(ledger.jobs, clock, chores.jobs, interval_ms=jobs_interval_ms, lease_ms=jobs_lease_ms)
        self._inspecting = asyncio.Lock()
        # None: not open yet.
        self.ledger_id: str | None = None

    async def open(self) -> list[str]:
        """Open the ledger and what is kept of it in memory; gives the migrations that were applied."""
        migrations = await self._ledger.open()
        await self.access.reload()
        await self.access.create_pod(DEFAULT_POD, "Default")
        await self.boards.open()
        await self.schemas.reload()
        ledger_id = await self._ledger.identity()
        if self.spooler is not None:
            await self.spooler.open(ledger_id)
        if self._publisher is not None:
            await self._publisher.open(await self._ledger.sender())
        await self._index.open(ledger_id)
        # From here on nothing fails, so that all of this can be tried again.
        await self.feed.open(ledger_id)
        self._registry.start(self.access.reload, self.schemas.reload, self.boards.reload)
        self.people.start()
        self._batcher.start()
        if self.spooler is not None:
            self.spooler.start()
        self.ledger_id = ledger_id
        return migrations

    def require_open(self) -> None:
        """Before that, nobody knows which boards and keys there are."""
        if self.ledger_id is None:
            raise Unavailable("starting", "The ledger is being opened. Try again in a moment.")

    async def load(self, progress: Progress = lambda _done, _total: None) -> None:
        """Fill the index from the ledger."""
        await self._follower.load_all(self.boards.all(), progress)
        self._healer.start(self._registry.refresh)
        self.jobs.start()
        if self._consumer is not None:
            self._consumer.start()

    async def close(self) -> None:
        """Finish what was taken, refuse what is new."""
        await self.live.close()
        if self._consumer is not None:
            await self._consumer.close()
        await self.jobs.close()
        await self.moderation.close()
        self.people.close()
        await self._batcher.close()
        await self._follower.buffers.close()
        if self.spooler is not None:
            await self.spooler.close()
        await self._registry.close()
        await self._healer.close()
        await self.feed.close()
        await self._sender.close()
        if self._broker is not None:
            await self._broker.close()
        await self._index.close()
        await self._ledger.close()

    @property
    def is_loaded(self) -> bool:
        return self._follower.is_ready

    async def dependencies(self) -> dict[str, str]:
        """'ok', or why not, for everything that an answer needs."""
        if self.ledger_id is None:
            return {"ledger": "it is being opened, or can't be reached", "index": "loading"}
        parts: dict[str, Ledger | Index | Broker] = {"ledger": self._ledger, "index": self._index}
        if self._broker is not None:
            parts["kafka"] = self._broker
        states = dict(zip(parts, await asyncio.gather(*map(_state_of, parts.values())), strict=True))
        return states if self.is_loaded else states | {"index": "loading"}

    async def answers_without(self, away: str) -> bool:
        """Whether reads are answered while the ledger, the index or Kafka is away."""
        if away == "kafka":
            return self.is_loaded
        if self._ledger.ranks is None or not self.is_loaded:
            return False
        if away == "index":
            return True
        rankings = [board.ranking(period.id) for board in self.boards.all() for period in board.periods][:LOOK_AT]
        states = await self._index.states(rankings)
        return any(
            state.standby is Standby.READY and not self._healer.is_behind(ranking)
            for ranking, state in zip(rankings, states, strict=True)
        )

    async def count_rows(self) -> int:
        """How many rows a check will look at."""
        return await self._ledger.count_rows()

    async def verify(self) -> AsyncIterator[Checked]:
        """Check every board, one run at a time. See service/verify.py."""
        async with self._inspection():
            await self._follower.buffers.flush()
            for board_id in [board.id for board in self.boards.all()]:
                async for checked in verify_board(self._ledger, self._index, board_id, self.boards.by_id):
                    yield checked

    async def rebuild(self, boards: Sequence[Board]) -> AsyncIterator[Rebuilt]:
        """Build every ranking of some boards anew. See service/rebuild.py."""
        async with self._inspection():
            for board in boards:
                async for rebuilt in rebuild_board(self._index, self._healer, board):
                    yield rebuilt

    @contextlib.asynccontextmanager
    async def _inspection(self) -> AsyncIterator[None]:
        if self._inspecting.locked():
            raise TooMany("verify_running", "A check or a rebuild is already running. Try again when it is done.")
        async with self._inspecting:
            self._follower.require_ready()
            yield


async def _state_of(part: Ledger | Index | Broker) -> str:
    try:
        await part.ping()
    except LaurelsError as error:
        return error.message
    return "ok"
