"""The whole service in one object for the entry points, opened and closed in the right order."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import structlog

from laurels.core.board import DEFAULT_POD, Board
from laurels.core.quotas import Quotas
from laurels.errors import LaurelsError, Unavailable
from laurels.ports import Broker, Clock, Feed, Index, IndexHealth, Ledger, Sender, SharedBuckets, SigningKeys, Spool
from laurels.service.audit.audit_log import AuditLog
from laurels.service.boards.access import Access
from laurels.service.boards.boards import Boards
from laurels.service.boards.deletions import Deletions
from laurels.service.boards.oauth import OAuth
from laurels.service.boards.registry import Registry
from laurels.service.boards.templates import Templates
from laurels.service.index.expirer import Expirer
from laurels.service.index.inspections import Inspections
from laurels.service.index.rebuild import Rebuilt
from laurels.service.index.repairer import IndexRepairer
from laurels.service.index.resharder import Resharder
from laurels.service.index.updater import IndexUpdater, Progress
from laurels.service.index.verify import Checked
from laurels.service.ingest.alarm import Alarm
from laurels.service.ingest.consumer import Consumer
from laurels.service.ingest.dead_letters import DeadLetters
from laurels.service.ingest.intake import Intake
from laurels.service.ingest.schemas import Schemas
from laurels.service.ingest.topics import Topics
from laurels.service.jobs.definitions import JobDefinitions
from laurels.service.jobs.retention import Retention
from laurels.service.jobs.runner import LEASE_MS, JobRunner
from laurels.service.live import LiveHub, Reader
from laurels.service.moderation.moderation import Moderation
from laurels.service.moderation.reviews import Reviews
from laurels.service.people.erasures import Erasures
from laurels.service.people.profiles import Profiles
from laurels.service.people.segment_filler import SegmentFiller
from laurels.service.publish.publisher import Publisher
from laurels.service.publish.webhooks import Webhooks
from laurels.service.read.by_score import ScoreReads
from laurels.service.read.rank_source import RankSource
from laurels.service.read.reads import Reads
from laurels.service.seasons.freezer import Freezer
from laurels.service.seasons.seasons import Seasons
from laurels.service.traffic import Rates, Traffic
from laurels.service.traffic.turns import Turns
from laurels.service.traffic.usage import Usage
from laurels.service.write.batcher import Batcher
from laurels.service.write.recorder import Recorder
from laurels.service.write.review_gate import ReviewGate
from laurels.service.write.spooler import Spooler
from laurels.service.write.submissions import Submissions
from laurels.settings import QuotaSettings, Settings

log = structlog.get_logger()

# Heavy reads that run at the same time if they wait for another server or for the ledger.
WAITING_TURNS = 4
# `answers_without` checks at most this many rankings.
LOOK_AT = 20


class Laurels:
    """The service and its lifecycle: `open`, then `load`, then `close`.

    Reads and writes return 503 until `load` is done. Call `close` even if `open` or `load` failed.
    """

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
        signing_keys: SigningKeys | None = None,
        buckets: SharedBuckets | None = None,
        admin_key: str,
        settings: Settings,
        jobs_lease_ms: int = LEASE_MS,
    ) -> None:
        # Only the ledger of the shared mode (PostgreSQL) can compute ranks while the index is unavailable.
        shared = ledger.ranks is not None
        self.clock = clock
        self.metrics_key = settings.server.metrics_key
        self.ledger = ledger
        self.index = index
        self.feed = feed
        repair_s = settings.storage.repair_interval_ms / 1000
        self.repairer = IndexRepairer(ledger, index, repair_s if shared else None)
        self.updater = IndexUpdater(ledger, index, self.repairer)
        self.audit_log = AuditLog(ledger, clock, settings.server.audit_days)
        self.registry = Registry(ledger, feed, shared=shared)
        self.access = Access(
            ledger,
            self.registry,
            clock,
            admin_key,
            None if signing_keys is None else OAuth(settings.oauth, signing_keys, clock),
            _default_quotas(settings.quotas),
        )
        self.boards = Boards(ledger, self.updater, self.registry, clock, self.access.quotas_of)
        self.templates = Templates(ledger, self.boards, self.registry, clock)
        self.usage = Usage(ledger, index, self.access, self.boards, clock)
        recorder = Recorder(ledger, self.boards)
        self.spooler = None if spool is None else Spooler(spool, recorder, self.updater, self.boards.by_id, clock)
        self.batcher = Batcher(recorder, self.updater, self.spooler, settings.writes, self.usage.note)
        self.rates = Rates(buckets)
        self.turns = Turns(1 if index.instant is not None else WAITING_TURNS)
        self.list_turns = Turns(WAITING_TURNS)
        self.traffic = Traffic(settings.limits, self.rates, self.batcher)
        self.submissions = Submissions(
            ledger, self.updater, self.batcher, self.usage, ReviewGate(ledger, self.boards, clock), clock
        )
        self.expirer = Expirer(ledger, self.updater, self.boards, clock)
        self.freezer = Freezer(ledger, index, self.boards, self.expirer, clock)
        self.seasons = Seasons(ledger, self.boards, self.freezer, clock)
        self.profiles = Profiles(ledger, self.updater, feed, clock)
        self.moderation = Moderation(ledger, self.updater, self.boards, clock)
        self.reviews = Reviews(ledger, self.moderation, clock)
        self.erasures = Erasures(ledger, index, self.updater, self.boards, self.profiles, clock)
        self.reads = Reads(
            ledger,
            RankSource(ledger, index, self.repairer, self.expirer),
            self.updater,
            self.boards,
            self.seasons,
            clock,
        )
        self.score_reads = ScoreReads(self.reads, ledger)
        self.live = LiveHub(Reader(self.reads, self.boards, self.profiles, clock), feed, settings.live)
        self._sender = sender
        self.webhooks = Webhooks(ledger.outbox, sender, clock)
        self.schemas = Schemas(ledger, self.registry, clock)
        self.intake = Intake(self.boards, self.templates, self.schemas, self.submissions, self.registry)
        self.topics = Topics(settings.kafka.kafka_topic_prefix)
        self.dead_letters = DeadLetters(broker, self.topics, self.intake, ledger, clock)
        self.broker = broker
        self.publisher = None if broker is None else Publisher(ledger, broker, self.topics, self.boards)
        self.consumer: Consumer | None = None
        if broker is not None and settings.kafka.ingest:
            self.consumer = Consumer(
                broker,
                self.topics,
                self.intake,
                self.dead_letters,
                Alarm(ledger.outbox, clock, settings.kafka),
                settings.kafka,
            )
        self.resharder = Resharder(index, self.boards, self.repairer, clock)
        self.deletions = Deletions(ledger, index, self.boards, clock)
        self.inspections = Inspections(
            ledger, index, self.updater, self.repairer, self.boards, clock, settings.jobs.check_at
        )
        definitions = JobDefinitions(
            ledger,
            index,
            self.freezer,
            self.boards,
            self.webhooks,
            Retention(ledger, self.boards, clock),
            self.audit_log,
            self.moderation,
            self.erasures,
            self.publisher,
            self.resharder,
            self.inspections,
            self.deletions,
            SegmentFiller(ledger, self.boards, self.updater),
            clock,
        )
        self.jobs = JobRunner(ledger.jobs, clock, definitions.jobs, settings.jobs, jobs_lease_ms)
        # None until `open` is done.
        self.ledger_id: str | None = None

    async def open(self) -> list[str]:
        """Open the ledger, the index and the feed, and return the names of the migrations that were applied.

        Also loads the keys, boards and schemas into memory. After an error, the caller can call it again.
        """
        migrations = await self.ledger.open()
        await self.access.open()
        await self.access.create_pod(DEFAULT_POD, "Default")
        await self.boards.open()
        await self.schemas.reload()
        await self.templates.reload()
        await self.usage.open()
        ledger_id = await self.ledger.identity()
        if self.spooler is not None:
            await self.spooler.open(ledger_id)
        if self.publisher is not None:
            await self.publisher.open(await self.ledger.sender())
        await self.index.open(ledger_id)
        await self.rates.open(ledger_id)
        # Nothing after this line can fail, so `open` can be retried as a whole.
        await self.feed.open(ledger_id)
        self.registry.start(self.access.reload, self.schemas.reload, self.templates.reload, self.boards.reload)
        self.access.start()
        self.profiles.start()
        self.batcher.start()
        self.traffic.start()
        self.usage.start()
        if self.spooler is not None:
            self.spooler.start()
        self.ledger_id = ledger_id
        return migrations

    def require_open(self) -> None:
        """Raise Unavailable until `open` is done, because boards and keys are unknown until then."""
        if self.ledger_id is None:
            raise Unavailable("starting", "The ledger is being opened. Try again in a moment.")

    async def load(self, progress: Progress = lambda _done, _total: None) -> None:
        """Fill the index from the ledger, then start the repair pass, the jobs and the Kafka consumer."""
        await self.updater.load_all(self.boards.all(), progress)
        self.repairer.start(self.registry.refresh)
        self.expirer.start()
        self.jobs.start()
        if self.consumer is not None:
            self.consumer.start()

    async def close(self) -> None:
        """Reject new work, finish accepted work, then close all parts."""
        await self.live.close()
        if self.consumer is not None:
            await self.consumer.close()
        await self.jobs.close()
        await self.expirer.close()
        await self.moderation.close()
        self.profiles.close()
        await self.batcher.close()
        await self.updater.buffers.close()
        if self.spooler is not None:
            await self.spooler.close()
        await self.usage.close()
        await self.access.close()
        await self.traffic.close()
        await self.rates.close()
        await self.registry.close()
        await self.repairer.close()
        await self.feed.close()
        await self._sender.close()
        if self.broker is not None:
            await self.broker.close()
        await self.index.close()
        await self.ledger.close()

    @property
    def is_loaded(self) -> bool:
        return self.updater.is_ready

    async def dependencies(self) -> dict[str, str]:
        """Return the state of each dependency: 'ok', or the reason why it is not."""
        if self.ledger_id is None:
            return {"ledger": "not open yet, or unreachable", "index": "loading"}
        parts: dict[str, Ledger | Index | Broker] = {"ledger": self.ledger, "index": self.index}
        if self.broker is not None:
            parts["kafka"] = self.broker
        states = dict(zip(parts, await asyncio.gather(*map(_state_of, parts.values())), strict=True))
        return states if self.is_loaded else states | {"index": "loading"}

    async def answers_without(self, away: str) -> bool:
        """Return True if the server can answer reads while `away` (ledger, index or kafka) is unavailable.

        Without Kafka, it can once it is loaded. Without the index, it can in shared mode, because the ledger answers.
        Without the ledger, it can in shared mode if the index has at least one complete ranking.
        """
        if away == "kafka":
            return self.is_loaded
        if self.ledger.ranks is None or not self.is_loaded:
            return False
        if away == "index":
            return True
        rankings = [board.ranking(period.id) for board in self.boards.all() for period in board.periods][:LOOK_AT]
        states = await self.index.states(rankings)
        return any(
            all(state.health is IndexHealth.READY for state in parts) and not self.repairer.is_stale(ranking)
            for ranking, parts in zip(rankings, states, strict=True)
        )

    async def count_rows(self) -> int:
        """Return the number of rows in the ledger, to report the progress of `verify` and `rebuild`."""
        return await self.ledger.count_rows()

    def verify(self) -> AsyncIterator[Checked]:
        """Verify every board: see Inspections.verify."""
        return self.inspections.verify()

    def rebuild(self, boards: Sequence[Board]) -> AsyncIterator[Rebuilt]:
        """Rebuild every ranking of these boards: see Inspections.rebuild."""
        return self.inspections.rebuild(boards)


def _default_quotas(settings: QuotaSettings) -> Quotas:
    return Quotas(
        boards=settings.max_boards,
        windows=settings.max_windows,
        min_reset_seconds=settings.min_reset_s,
        users=settings.max_users,
        events_per_day=settings.max_events_per_day,
        parts=settings.max_parts,
    )


async def _state_of(part: Ledger | Index | Broker) -> str:
    try:
        await part.ping()
    except LaurelsError as error:
        return error.message
    return "ok"
