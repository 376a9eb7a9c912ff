"""Delivery of the outbox to the webhooks of pods: at least once, signed, retried until the receiver accepts.

The signature follows standardwebhooks.com: HMAC-SHA256 over id, timestamp and body. A receiver recognizes a repeated
message by its id.
"""

import asyncio
import base64
import hashlib
import hmac
from collections import Counter
from typing import Any

import structlog
from msgspec.structs import replace

from laurels.core.ids import new_secret
from laurels.core.instants import SECOND_US
from laurels.errors import LaurelsError, NotFound, Unavailable
from laurels.logs import LogLimit
from laurels.metrics import DELIVERED, OUTBOX
from laurels.ports import Clock, Message, Outbox, Sender, Webhook
from laurels.retry import Backoff

log = structlog.get_logger()

# Concurrent messages per receiver and in total.
AT_ONCE_EACH = 5
AT_ONCE = 20
# Batches per run; the next run sends the rest.
ROUNDS = 50
RETRIES = Backoff(first_s=5, longest_s=3600, jitter=0.2)
# After this many different failed messages in a row, a receiver gets one message at a time, with pauses.
REFUSED_IN_A_ROW = 10
FIRST_PAUSE_S = 1
LAST_PAUSE_S = 60
FORGET_AFTER_US = 30 * 86_400 * SECOND_US
FORGET_AT_ONCE = 1000
ERROR_CHARS = 500
SECRET_PREFIX = "whsec_"  # noqa: S105 - the prefix of every secret, not a secret


class Webhooks:
    def __init__(self, outbox: Outbox, sender: Sender, clock: Clock) -> None:
        self._outbox = outbox
        self._sender = sender
        self._clock = clock
        self._receivers: dict[str, _Receiver] = {}
        self._failed_log = LogLimit()

    async def put(self, pod_id: str, url: str) -> tuple[Webhook, bool]:
        """Set the webhook of a pod, and return it with True if it is new.

        A new URL gets a new secret, which the API shows only in this answer. The same URL keeps its secret.
        """
        before = await self._outbox.webhook(pod_id)
        if before is not None and before.url == url:
            return before, False
        webhook = Webhook(pod_id, url, _new_webhook_secret(), self._clock.now_us())
        await self._outbox.put_webhook(webhook)
        self._receivers.pop(pod_id, None)
        return webhook, True

    async def rotate(self, pod_id: str, overlap_s: int) -> Webhook:
        """Replace the secret of a webhook. Both secrets sign the messages of the next `overlap_s` seconds."""
        before = await self.get(pod_id)
        until = self._clock.now_us() + overlap_s * SECOND_US
        webhook = replace(before, secret=_new_webhook_secret(), old_secret=before.secret, old_until=until)
        await self._outbox.put_webhook(webhook)
        return webhook

    async def find(self, pod_id: str) -> Webhook | None:
        return await self._outbox.webhook(pod_id)

    async def get(self, pod_id: str) -> Webhook:
        webhook = await self.find(pod_id)
        if webhook is None:
            raise NotFound("webhook_not_found", f"Pod {pod_id!r} has no webhook.", field="podId")
        return webhook

    async def delete(self, pod_id: str) -> None:
        if not await self._outbox.delete_webhook(pod_id):
            raise NotFound("webhook_not_found", f"Pod {pod_id!r} has no webhook.", field="podId")

    async def has_due(self) -> bool:
        return bool(await self._due())

    async def deliver(self) -> dict[str, Any]:
        """Send the due messages in batches, and return the counts.

        Each message has its own retry schedule. Each receiver gets a limited share of a batch.
        """
        delivered = failed = 0
        for _ in range(ROUNDS):
            messages = await self._due()
            if not messages:
                break
            outcomes = await asyncio.gather(*(self._deliver(message) for message in messages))
            delivered += sum(outcomes)
            failed += len(outcomes) - sum(outcomes)
        waiting = await self._outbox.waiting()
        OUTBOX.set(waiting)
        return {"delivered": delivered, "failed": failed, "waiting": waiting}

    async def forget(self) -> int:
        """Delete messages that were delivered more than 30 days ago, and return how many."""
        forgotten = 0
        while count := await self._outbox.forget(self._clock.now_us() - FORGET_AFTER_US, FORGET_AT_ONCE):
            forgotten += count
        return forgotten

    async def _due(self) -> list[Message]:
        now = self._clock.now_us()
        pausing = [pod_id for pod_id, receiver in self._receivers.items() if receiver.pauses_until > now]
        found = await self._outbox.due(now, AT_ONCE_EACH, pausing)
        chosen: list[Message] = []
        asked: Counter[str] = Counter()
        for message in found:
            receiver = self._receivers.get(message.pod_id)
            if asked[message.pod_id] < (1 if receiver is not None and receiver.is_failing else AT_ONCE_EACH):
                asked[message.pod_id] += 1
                chosen.append(message)
        return chosen[:AT_ONCE]

    async def _deliver(self, message: Message) -> bool:
        """Send a message and return True if the receiver accepted it; if not, schedule a retry."""
        receiver = self._receivers.setdefault(message.pod_id, _Receiver())
        webhook = await self._outbox.webhook(message.pod_id)
        body = message.body.encode()
        seconds = str(self._clock.now_us() // SECOND_US)
        try:
            if webhook is None:
                # The webhook was deleted meanwhile. A new one may be set before the retry.
                raise Unavailable("overloaded", "The pod has no webhook.")
            headers = {
                "Content-Type": "application/json",
                "webhook-id": message.message_id,
                "webhook-timestamp": seconds,
                "webhook-signature": self._signatures(webhook, message.message_id, seconds, body),
            }
            await self._sender.send(webhook.url, headers, body)
        except LaurelsError as error:
            next_try = self._clock.now_us() + int(RETRIES.pause_s(message.attempts + 1) * SECOND_US)
            await self._outbox.failed(message.message_id, next_try, error.message[:ERROR_CHARS])
            receiver.failed(message.message_id, self._clock.now_us())
            DELIVERED.labels("failed").inc()
            if (count := self._failed_log.count(message.pod_id)) is not None:
                log.info(
                    "webhook_failed",
                    pod=message.pod_id,
                    last_message=message.message_id,
                    reason=error.message,
                    count=count,
                )
            return False
        self._receivers.pop(message.pod_id, None)
        await self._outbox.delivered(message.message_id, self._clock.now_us())
        DELIVERED.labels("delivered").inc()
        return True

    def _signatures(self, webhook: Webhook, message_id: str, seconds: str, body: bytes) -> str:
        """Return a signature per valid secret, separated by spaces, as the standard specifies."""
        secrets = [webhook.secret]
        if webhook.old_secret is not None and self._clock.now_us() < (webhook.old_until or 0):
            secrets.append(webhook.old_secret)
        return " ".join(sign(secret, message_id, seconds, body) for secret in secrets)


class _Receiver:
    """The recent failures of a pod's webhook, discarded once it accepts a message."""

    def __init__(self) -> None:
        self._refused: set[str] = set()
        self._pause_s = FIRST_PAUSE_S
        self.pauses_until = 0

    @property
    def is_failing(self) -> bool:
        return len(self._refused) >= REFUSED_IN_A_ROW

    def failed(self, message_id: str, now: int) -> None:
        """Note a failed message, and pause the receiver after too many different ones.

        A single message that keeps failing says nothing about the receiver.
        """
        if len(self._refused) < REFUSED_IN_A_ROW:
            self._refused.add(message_id)
        if self.is_failing:
            self.pauses_until = now + self._pause_s * SECOND_US
            self._pause_s = min(LAST_PAUSE_S, 2 * self._pause_s)


def _new_webhook_secret() -> str:
    return SECRET_PREFIX + base64.b64encode(new_secret().encode()).decode()


def sign(secret: str, message_id: str, seconds: str, body: bytes) -> str:
    key = base64.b64decode(secret.removeprefix(SECRET_PREFIX))
    digest = hmac.new(key, f"{message_id}.{seconds}.".encode() + body, hashlib.sha256).digest()
    return f"v1,{base64.b64encode(digest).decode()}"
