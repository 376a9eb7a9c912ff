"""The outbox: what others are to be told, written with what it tells of, in one transaction, and sent afterwards."""

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct


class Message(Struct, frozen=True):
    """`message_id` is unique: receivers know a repetition by it. `body` is JSON text."""

    message_id: str
    pod_id: str
    period_id: int
    kind: str
    body: str
    created_at: int
    attempts: int = 0


class Webhook(Struct, frozen=True):
    """Where a pod's messages go. The secret signs them, so it is kept as it is."""

    pod_id: str
    url: str
    secret: str
    created_at: int


class Outbox(Protocol):
    async def put_webhook(self, webhook: Webhook) -> None:
        """Set or replace the webhook of a pod. NotFound if there is no such pod."""

    async def webhook(self, pod_id: str) -> Webhook | None: ...

    async def delete_webhook(self, pod_id: str) -> bool:
        """Messages that wait for it are given up. False if there was none."""

    async def post(self, message: Message) -> None:
        """Add a message that is to be sent now, if the pod has a webhook. One whose id is taken is left out."""

    async def due(self, now: int, limit: int, without: Sequence[str] = ()) -> list[Message]:
        """Messages that are to be sent now, oldest first: up to `limit` of each pod, of some pods none."""

    async def delivered(self, message_id: str, now: int) -> None: ...

    async def failed(self, message_id: str, next_try_at: int, error: str) -> None: ...

    async def waiting(self) -> int:
        """How many were released and not delivered yet."""

    async def forget(self, delivered_before: int, limit: int) -> int:
        """Remove messages that were delivered long ago."""


class Sender(Protocol):
    """Carries a message out of the house."""

    async def send(self, url: str, headers: dict[str, str], body: bytes) -> None:
        """Return once the receiver has taken it. Unavailable, with the reason, if not."""

    async def close(self) -> None: ...
