"""Alerts in the log, as a metric and by webhook.

- Too many records of a pod become dead letters: to the webhook of the pod.
- A record of a pod that does not exist arrives: to the webhook of the pod `default`, which is the operator's.
"""

from collections import deque
from typing import Any

import msgspec
import structlog

from laurels.core.board import DEFAULT_POD
from laurels.core.instants import SECOND_US, to_datetime
from laurels.errors import LaurelsError
from laurels.logs import LogLimit
from laurels.metrics import DEAD_LETTER_ALERT, UNKNOWN_POD_RECORDS
from laurels.ports import Clock, Message, Outbox
from laurels.settings import KafkaSettings

log = structlog.get_logger()

SPAN_S = 60
# Minimum number of records: a share of fewer is not meaningful.
MIN_RECORDS = 20
KIND = "dead_letters.high"
UNKNOWN_POD = "pod.unknown"
# One message per unknown pod and this time.
UNKNOWN_EVERY_S = 3600


class Alarm:
    """The share of dead letters per pod over the last minute, counted per second."""

    def __init__(self, outbox: Outbox, clock: Clock, settings: KafkaSettings) -> None:
        self._outbox = outbox
        self._clock = clock
        self._limit = settings.dead_letter_alert_percent / 100
        self._seconds: dict[str, deque[list[int]]] = {}
        self._raised: set[str] = set()
        self._unknown_log = LogLimit(UNKNOWN_EVERY_S)

    async def look(self) -> None:
        """Check all raised alerts again, because one must also end when no more records arrive."""
        for pod_id in list(self._raised):
            await self.note(pod_id, 0, 0)

    async def note_unknown(self, pod_id: str, records: int) -> None:
        """Raise the alert for records of a pod that does not exist."""
        UNKNOWN_POD_RECORDS.inc(records)
        if (count := self._unknown_log.count(pod_id)) is not None:
            hint = "create the pod and replay its dead letters, or correct the producer"
            log.error("unknown_pod", pod=pod_id, records=count, hint=hint)
            now = self._clock.now_us()
            # All consumers, and this one after a restart, post the same message id.
            message_id = f"unknown-pod-{pod_id}-{now // (UNKNOWN_EVERY_S * SECOND_US)}"
            await self._post(DEFAULT_POD, message_id, UNKNOWN_POD, {"podId": pod_id, "records": count}, now)

    async def note(self, pod_id: str, records: int, dead: int) -> None:
        now = self._clock.now_us() // SECOND_US
        seconds = self._seconds.setdefault(pod_id, deque())
        if not seconds or seconds[-1][0] != now:
            seconds.append([now, 0, 0])
        seconds[-1][1] += records
        seconds[-1][2] += dead
        while seconds[0][0] <= now - SPAN_S:
            seconds.popleft()
        total, bad = sum(each[1] for each in seconds), sum(each[2] for each in seconds)
        if pod_id in self._raised:
            if bad <= total * self._limit:
                self._raised.discard(pod_id)
                DEAD_LETTER_ALERT.labels(pod_id).set(0)
                log.info("dead_letters_normal", pod=pod_id, records=total, dead=bad)
        elif total >= MIN_RECORDS and bad > total * self._limit:
            self._raised.add(pod_id)
            DEAD_LETTER_ALERT.labels(pod_id).set(1)
            log.error("dead_letters_high", pod=pod_id, records=total, dead=bad, limit_percent=self._limit * 100)
            await self._tell(pod_id, total, bad)

    async def _tell(self, pod_id: str, total: int, bad: int) -> None:
        now = self._clock.now_us()
        data = {"podId": pod_id, "records": total, "deadLetters": bad, "limitPercent": self._limit * 100}
        # Several consumers raise the alert at about the same time: the id allows one message per minute.
        message_id = f"dead-letters-{pod_id}-{now // (SPAN_S * SECOND_US)}"
        await self._post(pod_id, message_id, KIND, data, now)

    async def _post(self, pod_id: str, message_id: str, kind: str, data: dict[str, Any], now: int) -> None:
        body = msgspec.json.encode({"type": kind, "timestamp": to_datetime(now), "data": data}).decode()
        try:
            await self._outbox.post(Message(message_id, pod_id, 0, kind, body, now))
        except LaurelsError as error:
            log.warning("alert_not_posted", pod=pod_id, kind=kind, reason=error.message)
