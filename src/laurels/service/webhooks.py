"""Tells a pod's webhook what the outbox has for it: at least once, signed, again and again until it is taken.

The signature is that of standardwebhooks.com: HMAC-SHA256 over id, time and body. A receiver knows a repetition by the
id.
"""

import asyncio
import base64
import hashlib
import hmac
import random
from collections import Counter
from typing import Any

import structlog

from laurels.core.ids import new_secret
from laurels.core.instants import SECOND_US
from laurels.errors import LaurelsError, NotFound, Unavailable
from laurels.metrics import DELIVERED, OUTBOX
from laurels.ports import Clock, Message, Outbox, Sender, Webhook

log = structlog.get_logger()

# To one receiver, and to all of them.
AT_ONCE_EACH = 5
AT_ONCE = 20
# Then others have their turn, and it is looked again.
ROUNDS = 50
FIRST_RETRY_S = 5
LAST_RETRY_S = 3600
# A receiver that refused so many different messages in a row is asked less often: one at a time, after a pause.
REFUSED_IN_A_ROW = 10
FIRST_PAUSE_S = 1
LAST_PAUSE_S = 60
FORGET_AFTER_US = 30 * 86_400 * SECOND_US
FORGET_AT_ONCE = 1000
ERROR_CHARS = 500
SECRET_PREFIX = "whsec_"  # noqa: S105 - what the scheme puts before one


class Webhooks:
    def __init__(self, outbox: Outbox, sender: Sender, clock: Clock) -> None:
        self._outbox = outbox
        self._sender = sender
        self._clock = clock
        self._receivers: dict[str, _Receiver] = {}

    async def put(self, pod_id: str, url: str) -> tuple[Webhook, bool]:
        """A new address gets a new secret, which is shown this once. Whether it is new is said, too."""
        before = await self._outbox.webhook(pod_id)
        if before is not None and before.url == url:
            return before, False
        secret = SECRET_PREFIX + base64.b64encode(new_secret().encode()).decode()
        webhook = Webhook(pod_id, url, secret, self._clock.now_us())
        await self._outbox.put_webhook(webhook)
        self._receivers.pop(pod_id, None)
        return webhook, True

    async def get(self, pod_id: str) -> Webhook:
        webhook = await self._outbox.webhook(pod_id)
        if webhook is None:
            raise NotFound("webhook_not_found", f"Pod {pod_id!r} has no webhook.", field="podId")
        return webhook

    async def delete(self, pod_id: str) -> None:
        if not await self._outbox.delete_webhook(pod_id):
            raise NotFound("webhook_not_found", f"Pod {pod_id!r} has no webhook.", field="podId")

    async def has_due(self) -> bool:
        return bool(await self._due())

    async def deliver(self) -> dict[str, Any]:
        """Send what is due, some at a time. Each message has a schedule of its own, and each receiver its share."""
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
        """Let go of what was delivered long ago."""
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
        """Whether it was taken. If not, it is tried again later."""
        receiver = self._receivers.setdefault(message.pod_id, _Receiver())
        webhook = await self._outbox.webhook(message.pod_id)
        body = message.body.encode()
        seconds = str(self._clock.now_us() // SECOND_US)
        try:
            if webhook is None:
                # It was removed while this was written. Another one may come.
                raise Unavailable("overloaded", "The pod has no webhook.")
            headers = {
                "Content-Type": "application/json",
                "webhook-id": message.message_id,
                "webhook-timestamp": seconds,
                "webhook-signature": sign(webhook.secret, message.message_id, seconds, body),
            }
            await self._sender.send(webhook.url, headers, body)
        except LaurelsError as error:
            wait_s = min(LAST_RETRY_S, FIRST_RETRY_S * 2 ** min(message.attempts, 20)) * random.uniform(0.8, 1.2)  # noqa: S311
            next_try = self._clock.now_us() + int(wait_s * SECOND_US)
            await self._outbox.failed(message.message_id, next_try, error.message[:ERROR_CHARS])
            receiver.failed(message.message_id, self._clock.now_us())
            DELIVERED.labels("failed").inc()
            log.info("webhook_failed", pod=message.pod_id, message=message.message_id, reason=error.message)
            return False
        self._receivers.pop(message.pod_id, None)
        await self._outbox.delivered(message.message_id, self._clock.now_us())
        DELIVERED.labels("delivered").inc()
        return True


class _Receiver:
    """What came of the last messages to a pod's webhook. One that takes a message is well again."""

    def __init__(self) -> None:
        self._refused: set[str] = set()
        self._pause_s = FIRST_PAUSE_S
        self.pauses_until = 0

    @property
    def is_failing(self) -> bool:
        return len(self._refused) >= REFUSED_IN_A_ROW

    def failed(self, message_id: str, now: int) -> None:
        """One message again and again says nothing of the receiver; many different ones do."""
        if len(self._refused) < REFUSED_IN_A_ROW:
            self._refused.add(message_id)
        if self.is_failing:
            self.pauses_until = now + self._pause_s * SECOND_US
            self._pause_s = min(LAST_PAUSE_S, 2 * self._pause_s)


def sign(secret: str, message_id: str, seconds: str, body: bytes) -> str:
    key = base64.b64decode(secret.removeprefix(SECRET_PREFIX))
    digest = hmac.new(key, f"{message_id}.{seconds}.".encode() + body, hashlib.sha256).digest()
    return f"v1,{base64.b64encode(digest).decode()}"
