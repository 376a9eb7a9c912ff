"""Settings → adapters → service.

The only module that knows which adapters are used. Adapters that are not used are not imported.
"""

from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from laurels import tracing
from laurels.adapters.file_lock import holder_address
from laurels.adapters.system_clock import SystemClock
from laurels.config import ledger_path, ledger_url
from laurels.errors import Invalid
from laurels.ports import Broker, Feed, Index, Ledger, SharedBuckets, SigningKeys
from laurels.settings import Settings

if TYPE_CHECKING:
    from laurels.adapters.sql.mapping import RowBatch
    from laurels.adapters.sqlite.backup import Manifest
    from laurels.service.laurels import Laurels

Announce = Callable[[str], None]


def build_ledger(settings: Settings) -> tuple[Ledger, Announce]:
    """Return the ledger, and a function that tells other processes the address of the server that holds it."""
    path = ledger_path(settings)
    if path is None:
        from laurels.adapters.postgres import PostgresLedger

        ledger = PostgresLedger(ledger_url(settings), SystemClock(), settings.storage.ledger_connections)
        return ledger, lambda _address: None
    from laurels.adapters.sqlite import SqliteLedger

    embedded = SqliteLedger(path, SystemClock())
    return embedded, embedded.announce


async def take_over(settings: Settings, path: Path, advance: Callable[[int, int], None]) -> Counter[str]:
    """Copy a SQLite ledger into the PostgreSQL database of the settings, and return the number of rows per table."""
    from laurels.adapters.postgres import PostgresLedger
    from laurels.adapters.sqlite import SqliteLedger

    clock = SystemClock()
    source = SqliteLedger(path, clock)
    target = PostgresLedger(ledger_url(settings), clock, settings.storage.ledger_connections)
    rows: Counter[str] = Counter()
    try:
        # Check the target before the source is opened, so that a failed check leaves the source untouched.
        await target.open()
        await target.need_empty()
        await source.open()
        total = await source.count_contents()

        async def counted() -> AsyncIterator["RowBatch"]:
            rows.clear()
            async for batch in source.contents():
                yield batch
                rows[batch.table] += len(batch.rows)
                advance(rows.total(), total)

        await target.take_over(counted)
    finally:
        await target.close()
        await source.close()
    return rows


def back_up(source: Path, folder: Path, version: str, advance: Callable[[int, int], None]) -> "Manifest":
    """Copy a SQLite ledger, also while a server uses it, and return the manifest of the copy.

    `version`: that of this program.
    """
    from laurels.adapters.sqlite import backup

    return backup.back_up(source, folder, version, advance)


def stream_backup(
    source: Path, folder: Path, version: str, out: BinaryIO, advance: Callable[[int, int], None]
) -> "Manifest":
    """Copy a SQLite ledger to a stream, by way of a folder."""
    from laurels.adapters.sqlite import backup

    return backup.stream(source, folder, version, out, advance)


def rotate_backups(folder: Path, keep: int) -> list[str]:
    """Remove all but the newest backups of a folder."""
    from laurels.adapters.sqlite import backup

    return backup.rotate(folder, keep)


def check_backup(path: Path, advance: Callable[[int, int], None]) -> "Manifest":
    """Return the manifest of a backup, or raise Invalid if it is damaged."""
    from laurels.adapters.sqlite import backup

    return backup.check(path, advance)


def restore_backup(path: Path, target: Path, advance: Callable[[int, int], None]) -> "Manifest":
    """Put a backup into an empty data folder."""
    from laurels.adapters.sqlite import backup

    return backup.restore(path, target, advance)


def build_laurels(settings: Settings, admin_key: str) -> tuple["Laurels", Announce]:
    from laurels.adapters.file_spool import FileSpool
    from laurels.adapters.http_sender import HttpSender
    from laurels.service.laurels import Laurels

    ledger, announce = build_ledger(settings)
    index, feed, buckets = _build_index(settings)
    laurels = Laurels(
        ledger,
        index,
        feed,
        SystemClock(),
        sender=HttpSender(),
        spool=None if settings.storage.spool is None else FileSpool(settings.storage.spool),
        broker=_build_broker(settings),
        signing_keys=_build_signing_keys(settings),
        buckets=buckets,
        admin_key=admin_key,
        settings=settings,
    )
    return laurels, announce


def start_tracing(settings: Settings) -> None:
    """Start traces if there is a collector. Raises Invalid if the packages for it are not installed."""
    if settings.server.otlp_traces is None:
        return
    try:
        from laurels.adapters.otel import OtelTracer
    except ImportError as error:
        raise Invalid(
            "wrong_format",
            f"Traces need more packages: pip install 'laurels[otel]' ({error}).",
            field="LAURELS_OTLP_TRACES",
        ) from error
    tracing.start(OtelTracer(settings.server.otlp_traces), settings.server.trace_percent)


def running_server(settings: Settings) -> str | None:
    """Return the address of the server that holds the ledger.

    Returns None if no process holds it, and "" if the process that holds it has announced no address.
    """
    path = ledger_path(settings)
    return None if path is None else holder_address(path.with_suffix(".lock"))


def _build_broker(settings: Settings) -> Broker | None:
    if settings.kafka.kafka is None:
        return None
    from laurels.adapters.kafka import KafkaBroker, read_client_config

    return KafkaBroker(settings.kafka.kafka, read_client_config(settings.kafka.kafka_config))


def _build_signing_keys(settings: Settings) -> SigningKeys | None:
    if not settings.oauth.is_on:
        return None
    from laurels.adapters.jwks import Jwks

    return Jwks(settings.oauth.oauth_issuer, settings.oauth.oauth_jwks)


def _build_index(settings: Settings) -> tuple[Index, Feed, SharedBuckets | None]:
    if settings.storage.index == "memory://":
        from laurels.adapters.memory_feed import MemoryFeed
        from laurels.adapters.memory_index import MemoryIndex

        feed = MemoryFeed()
        return MemoryIndex(feed), feed, None
    from laurels.adapters.redis import RedisBuckets, RedisConnection, RedisFeed, RedisIndex, parse_redis_url

    connection = RedisConnection(parse_redis_url(settings.storage.index), settings.storage.index_timeout_ms)
    return RedisIndex(connection), RedisFeed(connection), RedisBuckets(connection)
