"""Settings → adapters → service. The only place that knows which adapter is used."""

from laurels.adapters.file_lock import holder_address
from laurels.adapters.memory_feed import MemoryFeed
from laurels.adapters.memory_index import MemoryIndex
from laurels.adapters.sqlite import SqliteLedger
from laurels.adapters.system_clock import SystemClock
from laurels.config import Settings
from laurels.service.laurels import Laurels


def build_ledger(settings: Settings) -> SqliteLedger:
    return SqliteLedger(settings.ledger_path, SystemClock())


def build_laurels(settings: Settings, admin_key: str) -> tuple[Laurels, SqliteLedger]:
    """The service, and the ledger under it, which tells other processes who holds it."""
    ledger = build_ledger(settings)
    laurels = Laurels(
        ledger,
        MemoryIndex(),
        MemoryFeed(),
        SystemClock(),
        admin_key=admin_key,
        max_boards=settings.max_boards,
        max_batch=settings.max_batch,
        max_pending=settings.max_pending,
        write_timeout_ms=settings.write_timeout_ms,
        repair_interval_ms=settings.repair_interval_ms,
    )
    return laurels, ledger


def running_server(settings: Settings) -> str | None:
    """The address of the server that holds the ledger; None: nobody holds it, "": somebody, who does not say."""
    return holder_address(settings.ledger_path.with_suffix(".lock"))
