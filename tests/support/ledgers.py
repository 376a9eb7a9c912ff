"""Real ledgers for tests, one per test, and shorthand for boards and events."""

import asyncio
import hashlib
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from laurels.adapters.postgres import PostgresLedger
from laurels.adapters.sqlite import SqliteLedger
from laurels.core.board import Board
from laurels.core.order import Order, Ties
from laurels.core.periods import first_spans
from laurels.core.scores import Rule
from laurels.errors import LaurelsError
from laurels.ports import Event, Ledger, Pod
from support.stores import shared_postgres

Opening = Callable[[Path], Awaitable[Ledger]]
T = TypeVar("T")

_schemas: set[str] = set()


class FakeClock:
    """A clock that stands still until a test moves it.

    It starts far in the future, so that PostgreSQL's own clock is always behind it.
    """

    def __init__(self, now_us: int = 2_683_612_800_000_000) -> None:
        self.now = now_us

    def now_us(self) -> int:
        return self.now


async def open_sqlite(folder: Path, clock: FakeClock | None = None) -> SqliteLedger:
    ledger = SqliteLedger(folder / "laurels.db", clock or FakeClock())
    try:
        await ledger.open()
    except LaurelsError:
        await ledger.close()
        raise
    await ledger.create_pod(Pod("pod", "Pod", 0))
    return ledger


async def open_postgres(folder: Path, clock: FakeClock | None = None) -> PostgresLedger:
    """Open a ledger in a schema of the shared server; the same folder always gets the same schema."""
    server = shared_postgres()
    name = "test_" + hashlib.sha256(str(folder).encode()).hexdigest()[:16]
    if name not in _schemas:
        server.sql(f"CREATE SCHEMA {name}")
        _schemas.add(name)
    ledger = PostgresLedger(server.url(search_path=name), clock or FakeClock(), max_connections=4)
    try:
        await ledger.open()
    except LaurelsError:
        await ledger.close()
        raise
    await ledger.create_pod(Pod("pod", "Pod", 0))
    return ledger


async def new_board(ledger: Ledger, **fields: Any) -> Board:
    kinds: dict[str, Any] = {"rule": Rule, "order": Order, "ties": Ties}
    fields = {name: kinds.get(name, lambda value: value)(value) for name, value in fields.items()}
    defaults: dict[str, Any] = {"id": 0, "uuid": str(uuid.uuid4()), "pod_id": "pod", "name": "Board", "created_at": 0}
    board = Board(**(defaults | fields))
    return await ledger.create_board(board, first_spans(board.windows, board.created_at))


def new_event(board: Board, event_id: str, user: str, score: float, at: int, **fields: Any) -> Event:
    defaults: dict[str, Any] = {"stamped": False, "received_at": 0}
    return Event(board=board, event_id=event_id, user_id=user, score=score, at=at, **(defaults | fields))


def with_ledger(opening: Opening, folder: Path, work: Callable[[Ledger], Coroutine[Any, Any, T]]) -> T:
    async def run() -> T:
        ledger = await opening(folder)
        try:
            return await work(ledger)
        finally:
            await ledger.close()

    return asyncio.run(run())
