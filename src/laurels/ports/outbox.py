"""The Outbox: messages to webhooks. A message is stored in the transaction that causes it, and sent afterwards.

Delivery is at least once.
"""

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct


class Message(Struct, frozen=True):
    """A message to a webhook. `message_id` is unique, so receivers can detect duplicates. `body` is JSON text."""

    message_id: str
    pod_id: str
    period_id: int
    kind: str
    body: str
    created_at: int
    attempts: int = 0


class Webhook(Struct, frozen=True):
    """Where a pod's messages go. The secret is stored in plain text, because it signs the messages."""

    pod_id: str
    url: str
    secret: str
    created_at: int
    # The secret before the last rotation, which also signs messages until an instant.
    old_secret: str | None = None
    old_until: int | None = None


class Outbox(Protocol):
    async def put_webhook(self, webhook: Webhook) -> None:
        """Set or replace the webhook of a pod. Raises `NotFound` if the pod does not exist."""

    async def webhook(self, pod_id: str) -> Webhook | None: ...

    async def delete_webhook(self, pod_id: str) -> bool:
        """Delete a pod's webhook and its undelivered messages; return False if there was no webhook."""

    async def post(self, message: Message) -> None:
        """Add a message that is due now.

        Does nothing if the pod has no webhook or the message id is taken, so the call is idempotent.
        """

    async def due(self, now: int, limit: int, without: Sequence[str] = ()) -> list[Message]:
        """Return the messages to send now, oldest due first: up to `limit` per pod, none of the pods in `without`."""

    async def delivered(self, message_id: str, now: int) -> None: ...

    async def failed(self, message_id: str, next_try_at: int, error: str) -> None: ...

    async def waiting(self) -> int:
        """Return the number of messages that are released and not delivered yet."""

    async def forget(self, delivered_before: int, limit: int) -> int:
        """Remove up to `limit` messages that were delivered before an instant; return how many."""


class Sender(Protocol):
    """Sends messages to webhooks."""

    async def send(self, url: str, headers: dict[str, str], body: bytes) -> None:
        """Send a message, and return once the receiver has accepted it. Raises `Unavailable` with the reason if not."""

    async def close(self) -> None: ...
