"""The service on the real embedded adapters, with a clock that the test holds."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from laurels.adapters.http_sender import HttpSender
from laurels.adapters.memory_feed import MemoryFeed
from laurels.adapters.memory_index import MemoryIndex
from laurels.adapters.sqlite import SqliteLedger
from laurels.ports import Index, Ledger
from laurels.service.laurels import Laurels
from support.ledgers import FakeClock

DEFAULTS: dict[str, Any] = {
    "admin_key": "admin",
    "max_boards": 100,
    "max_batch": 1000,
    "max_pending": 10_000,
    "write_timeout_ms": 10_000,
    "repair_interval_ms": 1000,
    "jobs_interval_ms": 600_000,
}


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
    settings = {"sender": HttpSender()} | DEFAULTS | settings
    laurels = Laurels(ledger, index or MemoryIndex(), MemoryFeed(), clock, **settings)
    try:
        await laurels.open()
        if load:
            await laurels.load()
        yield laurels
    finally:
        await laurels.close()
