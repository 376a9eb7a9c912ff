"""Ledgers for tests: a real one in a temporary folder, and shorthand for what goes into it."""

import uuid
from pathlib import Path
from typing import Any

from laurels.adapters.sqlite import SqliteLedger
from laurels.core.board import Board
from laurels.core.order import Order, Ties
from laurels.core.scores import Rule
from laurels.errors import LaurelsError
from laurels.ports import Event, Ledger, Pod


class FakeClock:
    """A clock that stands still until it is told to move."""

    def __init__(self, now_us: int = 1_800_000_000_000_000) -> None:
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


async def new_board(ledger: Ledger, **fields: Any) -> Board:
    kinds: dict[str, Any] = {"rule": Rule, "order": Order, "ties": Ties}
    fields = {name: kinds.get(name, lambda value: value)(value) for name, value in fields.items()}
    defaults: dict[str, Any] = {"id": 0, "uuid": str(uuid.uuid4()), "pod_id": "pod", "name": "Board", "created_at": 0}
    return await ledger.create_board(Board(**(defaults | fields)))


def new_event(board: Board, event_id: str, user: str, score: float, at: int, **fields: Any) -> Event:
    defaults: dict[str, Any] = {"stamped": False, "received_at": 0}
    return Event(board=board, event_id=event_id, user_id=user, score=score, at=at, **(defaults | fields))
