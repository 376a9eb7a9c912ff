"""The gate that every call passes: rate limits per address, key, player and pod, and load shedding.

Admin keys have no rate limits.
"""

import asyncio
import enum
import math
import time
from collections.abc import Callable

import structlog

from laurels.core.addresses import limited_address
from laurels.errors import LaurelsError, TooMany, Unavailable
from laurels.logs import LogLimit
from laurels.metrics import QUEUE_DELAY, SHED_CALLS
from laurels.ports import Role
from laurels.service.boards.caller import Caller
from laurels.service.traffic.rates import Rate, Rates, too_many
from laurels.service.traffic.shedder import Shedder
from laurels.service.write.batcher import Batcher
from laurels.settings import LimitSettings
from laurels.tasks import end_tasks

log = structlog.get_logger()

# How often the delay is measured and shown.
LOOK_S = 0.005
INTERVAL_S = 0.05
LOG_EVERY_S = 10.0
# A larger body is that of a bulk call: it has about a hundred scores.
BULK_BYTES = 8192


class Work(enum.Enum):
    """What a call does, as far as load shedding is concerned."""

    READ = "read"
    WRITE = "write"


class Gate:
    """Admits the calls of one caller to one pod."""

    __slots__ = ("_address_rate", "_bulk_bytes", "_limits", "_pod_id", "_queued_s", "_rates", "_shedder")

    def __init__(
        self,
        rates: Rates,
        limits: tuple[Rate, ...],
        address_rate: int,
        shedder: Shedder | None,
        queued_s: Callable[[str], float] | None,
        pod_id: str,
    ) -> None:
        self._rates = rates
        self._limits = limits
        self._address_rate = address_rate
        self._shedder = shedder
        self._queued_s = queued_s
        self._pod_id = pod_id
        # Only writes have bulk.
        self._bulk_bytes = math.inf if queued_s is None else BULK_BYTES

    def sheds(self, body_bytes: int = 0) -> bool:
        """Return True if a call must be refused, because the server is overloaded. Cheap: before the body is decoded.

        Bulk writes are never refused: their queue is bounded, and their senders prefer to wait.
        """
        if self._shedder is None or body_bytes > self._bulk_bytes:
            return False
        queued_s = 0.0 if self._queued_s is None else self._queued_s(self._pod_id)
        return not self._shedder.admits(self._pod_id, queued_s)

    def refuse(self, address: str) -> LaurelsError | None:
        """Count a call for the rates. Return the error to respond with, or None if the call is admitted."""
        if self._address_rate and (whose := limited_address(address)) is not None:
            error = _take(self._rates, Rate.per_second("address", whose, self._address_rate))
            if error is not None:
                return error
        for limit in self._limits:
            error = _take(self._rates, limit)
            if error is not None:
                return error
        return None


class Traffic:
    """Makes gates, and measures the delays of the event loop and of writes."""

    def __init__(self, settings: LimitSettings, rates: Rates, batcher: Batcher) -> None:
        self._settings = settings
        self._rates = rates
        self._batcher = batcher
        target_s = settings.target_delay_ms / 1000
        self._shedders = {work: Shedder(target_s, _call_next_round) for work in Work} if target_s else {}
        # One error for all refused calls, because its response is made only once (http/hot_lane.py).
        self.overloaded = Unavailable(
            "overloaded", "The server has more calls than it can answer soon. Try again later."
        )
        self._wrong_keys_log = LogLimit(LOG_EVERY_S)
        self._shed_log = LogLimit(LOG_EVERY_S)
        self._measuring: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._shedders:
            self._measuring = asyncio.create_task(self._measure(), name="measure delays")

    async def close(self) -> None:
        if self._measuring is not None:
            await end_tasks([self._measuring])

    def gate(self, caller: Caller, pod_id: str | None, work: Work | None) -> Gate:
        """Return the gate of a caller's calls. `pod_id`: the pod that the calls are about. `work` None: never shed."""
        settings = self._settings
        limits = []
        if caller.player is not None and settings.rate_per_player:
            limits.append(Rate.per_second("player", f"{caller.pod_id}/{caller.player}", settings.rate_per_player))
        elif caller.role in {Role.SERVER, Role.CLIENT} and settings.rate_per_key:
            limits.append(Rate.per_second("key", caller.key_id, settings.rate_per_key))
        if pod_id is not None and not caller.is_admin and settings.rate_per_pod:
            limits.append(Rate.per_second("pod", pod_id, settings.rate_per_pod))
        address_rate = settings.rate_per_address if caller.is_from_outside else 0
        shedder = None if work is None else self._shedders.get(work)
        queued_s = self._batcher.queued_s if work is Work.WRITE else None
        return Gate(self._rates, tuple(limits), address_rate, shedder, queued_s, pod_id or "")

    def note_wrong_key(self, address: str) -> None:
        """Count a call with a key that is not valid. Raises TooMany if its sender has sent too many of them."""
        if (count := self._wrong_keys_log.count()) is not None:
            log.warning("wrong_keys", count=count, last_address=address)
        whose = limited_address(address)
        if whose is not None and self._settings.wrong_keys_per_minute:
            rate = Rate.per_minute("wrong-keys", whose, self._settings.wrong_keys_per_minute)
            self._rates.need(rate, "too_many_wrong_keys", "Too many calls with wrong keys came from this address.")

    async def _measure(self) -> None:
        """Show how late the event loop is and how long writes wait, and count what was refused."""
        late_s = float("inf")
        ends = time.monotonic() + INTERVAL_S
        while True:
            asked = time.monotonic()
            await asyncio.sleep(LOOK_S)
            now = time.monotonic()
            # The shortest delay, because a queue that is empty now and then is no overload.
            late_s = min(late_s, max(0.0, now - asked - LOOK_S))
            if now >= ends:
                self._show(Work.READ, late_s)
                self._show(Work.WRITE, late_s + self._batcher.queued_s())
                ends, late_s = now + INTERVAL_S, float("inf")

    def _show(self, work: Work, delay_s: float) -> None:
        QUEUE_DELAY.labels(work.value).set(delay_s)
        refused = self._shedders[work].take_refused()
        if refused:
            SHED_CALLS.labels(work.value).inc(refused)
            if self._shed_log.count(work.value) is not None:
                log.warning("overloaded", work=work.value, refused_now=refused, delay_ms=round(delay_s * 1000))


def _call_next_round(callback: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_soon(callback)


def _take(rates: Rates, rate: Rate) -> TooMany | None:
    wait_s = rates.take(rate)
    if not wait_s:
        return None
    told = f"More than {rate.per_s:g} calls per second for this {rate.policy}. Slow down."
    return too_many(rate, wait_s, "too_many_calls", told)
