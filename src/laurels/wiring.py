"""Settings → adapters → service. The only place that knows which adapter is used; the others are not even loaded."""

from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING

from laurels.adapters.file_lock import holder_address
from laurels.adapters.system_clock import SystemClock
from laurels.config import Settings
from laurels.ports import Broker, Feed, Index, Ledger

if TYPE_CHECKING:
    from laurels.adapters.sql_ledger import Stretch
    from laurels.service.laurels import Laurels

Announce = Callable[[str], None]


def build_ledger(settings: Settings) -> tuple[Ledger, Announce]:
    """The ledger, and how to tell other processes where the one that holds it can be reached."""
    if settings.ledger_path is None:
        from laurels.adapters.postgres import PostgresLedger

        ledger = PostgresLedger(settings.ledger, SystemClock(), settings.ledger_connections)
        return ledger, lambda _address: None
    from laurels.adapters.sqlite import SqliteLedger

    embedded = SqliteLedger(settings.ledger_path, SystemClock())
    return embedded, embedded.announce


async def take_over(settings: Settings, path: Path, advance: Callable[[int, int], None]) -> Counter[str]:
    """Fill the PostgreSQL of the settings with all that a SQLite ledger holds; gives how many rows of which table."""
    from laurels.adapters.postgres import PostgresLedger
    from laurels.adapters.sqlite import SqliteLedger

    clock = SystemClock()
    source = SqliteLedger(path, clock)
    target = PostgresLedger(settings.ledger, clock, settings.ledger_connections)
    rows: Counter[str] = Counter()
    try:
        # A folder that is not taken over is not touched.
        await target.open()
        await target.need_empty()
        await source.open()
        total = await source.count_contents()

        async def counted() -> AsyncIterator["Stretch"]:
            rows.clear()
            async for stretch in source.contents():
                yield stretch
                rows[stretch.table] += len(stretch.rows)
                advance(rows.total(), total)

        await target.take_over(counted)
    finally:
        await target.close()
        await source.close()
    return rows


def build_laurels(settings: Settings, admin_key: str) -> tuple["Laurels", Announce]:
    from laurels.adapters.file_spool import FileSpool
    from laurels.adapters.http_sender import HttpSender
    from laurels.service.laurels import Ingest, Laurels

    ledger, announce = build_ledger(settings)
    index, feed = _build_index(settings)
    laurels = Laurels(
        ledger,
        index,
        feed,
        SystemClock(),
        sender=HttpSender(),
        spool=None if settings.spool is None else FileSpool(settings.spool),
        broker=_build_broker(settings),
        ingest=Ingest(settings.kafka_group, settings.ingest_batch) if settings.ingest else None,
        topic_prefix=settings.kafka_topic_prefix,
        alert_percent=settings.dead_letter_alert_percent,
        admin_key=admin_key,
        max_boards=settings.max_boards,
        max_batch=settings.max_batch,
        max_pending=settings.max_pending,
        write_timeout_ms=settings.write_timeout_ms,
        repair_interval_ms=settings.repair_interval_ms,
        jobs_interval_ms=settings.jobs_interval_ms,
        live_tick_ms=settings.live_tick_ms,
        max_live=settings.max_live,
        max_live_per_key=settings.max_live_per_key,
    )
    return laurels, announce


def running_server(settings: Settings) -> str | None:
    """The address of the server that holds the ledger; None: nobody holds it, "": somebody, who does not say."""
    if settings.ledger_path is None:
        return None
    return holder_address(settings.ledger_path.with_suffix(".lock"))


def _build_broker(settings: Settings) -> Broker | None:
    if settings.kafka is None:
        return None
    from laurels.adapters.kafka import KafkaBroker, read_client_config

    return KafkaBroker(settings.kafka, read_client_config(settings.kafka_config))


def _build_index(settings: Settings) -> tuple[Index, Feed]:
    if not settings.is_shared:
        from laurels.adapters.memory_feed import MemoryFeed
        from laurels.adapters.memory_index import MemoryIndex

        feed = MemoryFeed()
        return MemoryIndex(feed), feed
    from laurels.adapters.redis import RedisConnection, RedisFeed, RedisIndex, parse_redis_url

    connection = RedisConnection(parse_redis_url(settings.index), settings.index_timeout_ms)
    return RedisIndex(connection), RedisFeed(connection)
