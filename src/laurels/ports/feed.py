"""The Feed: hints between servers."""

from collections.abc import Callable
from typing import Protocol

from laurels.core.board import Ranking


class Feed(Protocol):
    """Hints between servers that something changed (publish/subscribe).

    Messages may be lost, so code that depends on a change must also check for it periodically.
    """

    async def open(self, ledger_id: str) -> None:
        """Start to connect, and retry until it succeeds.

        `ledger_id` keeps the topics of different ledgers apart.
        """

    async def close(self) -> None:
        """Disconnect. Idempotent."""

    async def publish(self, topic: str, message: str) -> None:
        """Send a message to all servers, including this one. Never raises; the message may be lost."""

    def subscribe(self, topic: str, hear: Callable[[str | None], None]) -> Callable[[], None]:
        """Call `hear` with each message of a topic, and return a function that ends the subscription.

        Calls `hear` with None when messages may have been missed, for example after a lost connection.
        """


def ranking_topic(ranking: Ranking) -> str:
    """Return the topic on which the index publishes the changes of a period's rankings."""
    return f"ranking/{ranking.period_id}" if ranking.parts == 1 else f"ranking/{ranking.period_id}/{ranking.parts}"
