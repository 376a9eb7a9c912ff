"""The Feed: hints between servers."""

from collections.abc import Callable
from typing import Protocol


class Feed(Protocol):
    """Hints between servers that something changed. They may be lost: whoever depends on one also looks by itself."""

    async def open(self, ledger_id: str) -> None:
        """Connect, and go on trying for as long as it takes."""

    async def close(self) -> None:
        """Disconnect. Idempotent."""

    async def publish(self, topic: str, message: str) -> None:
        """Tell every server, this one too. Never raises."""

    def subscribe(self, topic: str, hear: Callable[[str | None], None]) -> Callable[[], None]:
        """Call `hear` with each message, and with None when some may have been missed; gives what ends it."""
