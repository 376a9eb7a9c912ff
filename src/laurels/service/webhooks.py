"""Tells a pod's webhook what the outbox has for it: at least once, signed, again and again until it is taken.

The signature is that of standardwebhooks.com: HMAC-SHA256 over id, time and body. A receiver knows a repetition by the
id.
"""

import asyncio
import base64
import hashlib
import hmac
import random
from typing import Any

import structlog

from laurels.core.ids import new_secret
from laurels.core.instants import SECOND_US
from laurels.errors import LaurelsError, NotFound, Unavailable
from laurels.metrics import DELIVERED, OUTBOX
from laurels.ports import Clock, Message, Outbox, Sender, Webhook

log = structlog.get_logger()

AT_ONCE = 20
# Then others have their turn, and it is looked again.
ROUNDS = 50
FIRST_RETRY_S = 5
LAST_RETRY_S = 3600
FORGET_AFTER_US = 30 * 86_400 * SECOND_US
FORGET_AT_ONCE = 1000
ERROR_CHARS = 500
SECRET_PREFIX = "whsec_"  # noqa: S105 - what the scheme puts before one


class Webhooks:
    def __init__(self, outbox: Outbox, sender: Sender, clock: Clock) -> None:
        self._outbox = outbox
        self._sender = sender
        self._clock = clock

    async def put(self, pod_id: str, url: str) -> tuple[Webhook, bool]:
        """A new address gets a new secret, which is shown this once. Whether it is new is said, too."""
        before = await self._outbox.webhook(pod_id)
        if before is not None and before.url == url:
            return before, False
        secret = SECRET_PREFIX + base64.b64encode(new_secret().encode()).decode()
        webhook = Webhook(pod_id, url, secret, self._clock.now_us())
        await self._outbox.put_webhook(webhook)
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
        return bool(await self._outbox.due(self._clock.now_us(), 1))

    async def deliver(self) -> dict[str, Any]:
        """Send what is due, some at a time. A pod whose receiver fails waits as a whole, and keeps nobody else."""
        delivered = failed = 0
        for _ in range(ROUNDS):
            messages = await self._outbox.due(self._clock.now_us(), AT_ONCE)
            if not messages:
                break
            outcomes = await asyncio.gather(*(self._deliver(message) for message in messages))
            delivered += outcomes.count(None)
            failed += len(outcomes) - outcomes.count(None)
            for message, next_try in zip(messages, outcomes, strict=True):
                if next_try is not None:
                    await self._outbox.postpone(message.pod_id, next_try)
        waiting = await self._outbox.waiting()
        OUTBOX.set(waiting)
        return {"delivered": delivered, "failed": failed, "waiting": waiting}

    async def forget(self) -> int:
        """Let go of what was delivered long ago."""
        forgotten = 0
        while count := await self._outbox.forget(self._clock.now_us() - FORGET_AFTER_US, FORGET_AT_ONCE):
            forgotten += count
        return forgotten

    async def _deliver(self, message: Message) -> int | None:
        """None: it was taken. Else when to try again."""
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
            DELIVERED.labels("failed").inc()
            log.info("webhook_failed", pod=message.pod_id, message=message.message_id, reason=error.message)
            return next_try
        await self._outbox.delivered(message.message_id, self._clock.now_us())
        DELIVERED.labels("delivered").inc()
        return None


def sign(secret: str, message_id: str, seconds: str, body: bytes) -> str:
    key = base64.b64decode(secret.removeprefix(SECRET_PREFIX))
    digest = hmac.new(key, f"{message_id}.{seconds}.".encode() + body, hashlib.sha256).digest()
    return f"v1,{base64.b64encode(digest).decode()}"
