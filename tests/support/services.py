"""The service on the real adapters, with a clock that the test controls."""

import contextlib
import hashlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from laurels.adapters.http_sender import HttpSender
from laurels.adapters.memory_feed import MemoryFeed
from laurels.adapters.memory_index import MemoryIndex
from laurels.adapters.postgres import PostgresLedger
from laurels.adapters.redis import RedisConnection, RedisFeed, RedisIndex, parse_redis_url
from laurels.adapters.sqlite import SqliteLedger
from laurels.ports import Index, Ledger
from laurels.service.index.verify import Difference
from laurels.service.laurels import Laurels
from laurels.settings import SETTINGS, Settings
from support.ledgers import FakeClock
from support.stores import shared_postgres, shared_redis

DEFAULTS: dict[str, Any] = {
    "admin_key": "admin",
    "max_boards": 100,
    "max_batch": 1000,
    "max_pending": 10_000,
    "write_timeout_ms": 10_000,
    "repair_interval_ms": 1000,
    "jobs_interval_ms": 600_000,
    "check_at": "off",
}


def arguments(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `Laurels`: settings by name become `settings`, the others are passed on."""
    values = {**DEFAULTS, "sender": HttpSender(), **given}
    chosen = {name: value for name, value in values.items() if name in SETTINGS and name != "admin_key"}
    others = {name: value for name, value in values.items() if name not in chosen}
    return others | {"settings": Settings.of(chosen)}


@contextlib.asynccontextmanager
async def running(
    folder: Path,
    *,
    ledger: Ledger | None = None,
    index: Index | None = None,
    load: bool = True,
    clock: FakeClock | None = None,
    **settings: Any,
) -> AsyncIterator[Laurels]:
    clock = clock or FakeClock()
    ledger = ledger or SqliteLedger(folder / "laurels.db", clock)
    feed = MemoryFeed()
    laurels = Laurels(ledger, index or MemoryIndex(feed), feed, clock, **arguments(settings))
    try:
        await laurels.open()
        if load:
            await laurels.load()
        yield laurels
    finally:
        await laurels.close()


@contextlib.asynccontextmanager
async def running_shared(database: str, clock: FakeClock, **settings: Any) -> AsyncIterator[Laurels]:
    """Run a service on PostgreSQL and Redis; several can run on one database."""
    connection = RedisConnection(parse_redis_url(shared_redis().url), timeout_ms=10_000)
    laurels = Laurels(
        PostgresLedger(database, clock, max_connections=4),
        RedisIndex(connection),
        RedisFeed(connection),
        clock,
        **arguments(settings),
    )
    try:
        await laurels.open()
        await laurels.load()
        yield laurels
    finally:
        await laurels.close()


class Stage:
    """The stores of a test. Services on them run one after the other or, in shared mode, at the same time."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self.clock = FakeClock()
        self._folder = folder
        name = hashlib.sha256(str(folder).encode()).hexdigest()[:16]
        self._database = shared_postgres().new_database(f"stage_{name}") if kind == "shared" else ""

    def running(self, **settings: Any) -> contextlib.AbstractAsyncContextManager[Laurels]:
        if self.kind == "shared":
            return running_shared(self._database, self.clock, **settings)
        return running(self._folder, clock=self.clock, **settings)


async def differences(laurels: Laurels) -> list[Difference]:
    """Return all differences that `verify` finds."""
    return [each async for checked in laurels.verify() for each in checked.differences]
