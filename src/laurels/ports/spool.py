"""The Spool: what waits on the local disk."""

from collections.abc import Sequence
from typing import Protocol


class Spool(Protocol):
    """What waits on the local disk for a ledger that can't be reached. Items are bytes of the service's own making."""

    async def open(self, ledger_id: str) -> None:
        """Take over what an earlier process left behind for this ledger. Unavailable if the folder can't be used."""

    async def append(self, items: Sequence[bytes]) -> None:
        """Keep items. Once this has returned they are on the disk. Unavailable if they can't be kept."""

    async def peek(self, limit: int) -> list[bytes]:
        """The first items that still wait, in the order of their coming; none if none wait."""

    async def drop(self, count: int) -> None:
        """Forget the first items, for they are in the ledger. After a crash some may come again."""

    @property
    def waiting(self) -> int:
        """How many items wait."""

    async def close(self) -> None:
        """Let go of the folder. Idempotent."""
