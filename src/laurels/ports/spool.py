"""The Spool: what waits on the local disk."""

from collections.abc import Sequence
from typing import Protocol


class Spool(Protocol):
    """What waits on the local disk for a ledger that can't be reached. Items are bytes of the service's own making.

    Unavailable with `spool_unavailable` if the disk can't be read or written.
    """

    async def open(self, ledger_id: str) -> None:
        """Take over what an earlier process left behind for this ledger. Unavailable if the folder can't be used."""

    async def append(self, items: Sequence[bytes]) -> None:
        """Keep items. Once this has returned they are on the disk. Unavailable if they can't be kept."""

    async def peek(self, limit: int) -> list[bytes]:
        """The first items that still wait, in the order of their coming; none if none wait.

        An item that was damaged on the disk is left out, counted in `damaged`, and logged.
        """

    async def drop(self, count: int) -> None:
        """Forget the first items of the last `peek`, for they are in the ledger. After a crash some may come again."""

    async def set_aside(self, items: Sequence[bytes]) -> None:
        """Keep items that are not to be given any more. Once this has returned they are on the disk."""

    async def aside(self) -> list[bytes]:
        """All items that were set aside, by any process that shares the folder; some perhaps twice."""

    async def ask_replay(self) -> None:
        """Ask every process that shares the folder to call `replay_aside`."""

    async def replay_aside(self) -> None:
        """Let the items that this process set aside wait again, if somebody asked for it."""

    @property
    def waiting(self) -> int:
        """How many items wait."""

    @property
    def put_aside(self) -> int:
        """How many items were set aside."""

    @property
    def damaged(self) -> int:
        """How many items could not be read since the spool was opened."""

    async def close(self) -> None:
        """Let go of the folder. Idempotent."""
