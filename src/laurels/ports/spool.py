"""The Spool: events that wait on the local disk."""

from collections.abc import Sequence
from typing import Protocol


class Spool(Protocol):
    """A queue on the local disk for events that wait while the ledger is unreachable.

    Items are bytes that the service encodes. Methods raise `Unavailable` with `spool_unavailable` if the disk can't be
    read or written.
    """

    async def open(self, ledger_id: str) -> None:
        """Open the spool, and take over the items that earlier processes left for this ledger.

        Raises `Unavailable` if the folder can't be used.
        """

    async def append(self, items: Sequence[bytes]) -> None:
        """Append items. When this returns, they are on the disk.

        Raises `Unavailable` if they can't be stored.
        """

    async def peek(self, limit: int) -> list[bytes]:
        """Return up to `limit` of the first waiting items, in the order of arrival; empty if none wait.

        An item that was damaged on the disk is left out, counted in `damaged`, and logged.
        """

    async def drop(self, count: int) -> None:
        """Remove the first `count` items of the last `peek`, because they are in the ledger.

        After a crash `peek` may return some of them again.
        """

    async def set_aside(self, items: Sequence[bytes]) -> None:
        """Store items that can't be replayed, so that `peek` no longer returns them. Durable when this returns."""

    async def aside(self) -> list[bytes]:
        """Return all items that were set aside by any process that shares the folder, some possibly twice."""

    async def ask_replay(self) -> None:
        """Ask every process that shares the folder to call `replay_aside`."""

    async def replay_aside(self) -> None:
        """Move the items that this process set aside back to the queue, if `ask_replay` was called."""

    @property
    def waiting(self) -> int:
        """Return the number of items that wait."""

    @property
    def put_aside(self) -> int:
        """Return the number of items that were set aside."""

    @property
    def damaged(self) -> int:
        """Return the number of items that could not be read since the spool was opened."""

    async def close(self) -> None:
        """Release the folder. Idempotent."""
