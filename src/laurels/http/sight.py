"""What operators see of the calls: metrics by route, and the access log.

The hot lane answers tens of thousands of calls per second, so a call adds to plain numbers here, and the numbers go to
the metrics once per second and when they are read.
"""

import re
import secrets
import time
from bisect import bisect_left
from typing import Any

import structlog

from laurels.http.protocol import Headers
from laurels.metrics import CALL_SECONDS, CALLS, LATENCIES_S, RESPONSE_BYTES
from laurels.service.boards.caller import Caller

log = structlog.get_logger()

FLUSH_S = 1.0
# Calls without a route: the path does not exist.
NO_ROUTE = "none"
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")


class Meter:
    """The calls of one route by callers of one class, since the last flush."""

    __slots__ = ("_buckets", "_bytes", "_class", "_route", "_seconds", "_statuses")

    def __init__(self, route: str, caller_class: str) -> None:
        self._route, self._class = route, caller_class
        self._reset()

    def _reset(self) -> None:
        self._statuses: dict[int, int] = {}
        self._buckets = [0] * (len(LATENCIES_S) + 1)
        self._seconds = 0.0
        self._bytes = 0

    def note(self, status: int, seconds: float, size: int) -> None:
        self._statuses[status] = self._statuses.get(status, 0) + 1
        self._buckets[bisect_left(LATENCIES_S, seconds)] += 1
        self._seconds += seconds
        self._bytes += size

    def flush(self) -> None:
        if not self._statuses:
            return
        for status, count in self._statuses.items():
            CALLS.labels(self._route, str(status), self._class).inc(count)
        RESPONSE_BYTES.labels(self._route).inc(self._bytes)
        # A histogram has no call that adds many values at once.
        histogram = CALL_SECONDS.labels(self._route)
        for bucket, count in zip(histogram._buckets, self._buckets, strict=True):  # noqa: SLF001
            bucket.inc(count)
        histogram._sum.inc(self._seconds)  # noqa: SLF001
        self._reset()


class Sight:
    """`access_log`: which calls are logged: off, errors or all."""

    def __init__(self, access_log: str) -> None:
        self._lowest_logged = {"off": 1000, "errors": 400, "all": 0}[access_log]
        self._meters: dict[tuple[str, str], Meter] = {}
        self._flushed_at = time.perf_counter()

    def meter(self, route: str, caller_class: str) -> Meter:
        key = (route, caller_class)
        if key not in self._meters:
            self._meters[key] = Meter(route, caller_class)
        return self._meters[key]

    def note(
        self,
        meter: Meter,
        began: float,
        status: int,
        size: int,
        **told: Any,
    ) -> None:
        """Count a call that is answered. `told`: what the access log shows of it besides."""
        now = time.perf_counter()
        meter.note(status, now - began, size)
        if now - self._flushed_at > FLUSH_S:
            self.flush()
        if status >= self._lowest_logged:
            self._log(status, now - began, size, **told)

    def flush(self) -> None:
        self._flushed_at = time.perf_counter()
        for meter in self._meters.values():
            meter.flush()

    def _log(
        self, status: int, seconds: float, size: int, *, route: str, address: str, key_id: str,
        headers: Headers,
    ) -> None:  # fmt: skip
        # The route, not the path, because paths contain the ids of users.
        log.info(
            "call",
            route=route,
            status=status,
            ms=round(seconds * 1000, 2),
            bytes=size,
            address=address,
            key_id=key_id or None,
            request_id=request_id(headers),
        )


def request_id(headers: Headers) -> str:
    """Return the id that a proxy or the client gave the request, or a new one."""
    for name, value in headers:
        if name == b"x-request-id" and _REQUEST_ID.fullmatch(value):
            return value.decode("ascii")
    return secrets.token_hex(8)


def class_of(caller: Caller | None, pod_id: str | None) -> str:
    """Return how a caller is related to the pod that the call is about."""
    if caller is None or caller.role is None:
        return "no_key"
    if caller.is_admin:
        return "admin"
    return "own_pod" if pod_id in {None, caller.pod_id} else "other_pod"
