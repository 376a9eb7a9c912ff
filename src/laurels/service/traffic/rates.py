"""Rate limits: token buckets in this process, which servers share through Redis.

A bucket holds the tokens of BURST_S seconds, and a call takes one. No call waits for Redis: each server takes tokens
from its own copy of a bucket, and reports several times per second what it took. Redis subtracts that and returns what
all servers together have left. A caller can therefore exceed a limit by what it sends to all servers in SHARE_S.
"""

import asyncio
import time
from typing import NamedTuple

import structlog

from laurels.errors import TooMany
from laurels.ports import SharedBuckets, Spending
from laurels.tasks import end_tasks

log = structlog.get_logger()

BURST_S = 2.0
# How often, and how many buckets at once, are reported to the other servers.
SHARE_S = 0.2
SHARED_AT_ONCE = 1000
# The maximum number of buckets. The one that was not used for the longest time is removed.
KEPT = 100_000


class Rate(NamedTuple):
    """A limit: `bucket` gains `per_s` tokens per second and holds `size`. `policy` names the limit in headers."""

    policy: str
    bucket: str
    per_s: float
    size: float

    @classmethod
    def per_second(cls, policy: str, whose: str, per_s: float) -> "Rate":
        return cls(policy, f"{policy}/{whose}", per_s, max(1.0, per_s * BURST_S))

    @classmethod
    def per_minute(cls, policy: str, whose: str, per_minute: float) -> "Rate":
        return cls(policy, f"{policy}/{whose}", per_minute / 60, float(per_minute))


class Rates:
    def __init__(self, shared: SharedBuckets | None = None) -> None:
        self._shared = shared
        # By bucket: what was left, and when. The bucket that was used last is at the end.
        self._left: dict[str, tuple[float, float]] = {}
        # What was taken from buckets since the other servers were told.
        self._unshared: dict[str, tuple[Rate, float]] = {}
        self._sharing: asyncio.Task[None] | None = None

    async def open(self, ledger_id: str) -> None:
        if self._shared is not None:
            await self._shared.open(ledger_id)
            self._sharing = asyncio.create_task(self._share_often(), name="share rates")

    async def close(self) -> None:
        if self._sharing is not None:
            await end_tasks([self._sharing])

    def take(self, rate: Rate) -> float:
        """Take a token, and return 0; if there is none, return the seconds until there is one."""
        now = time.monotonic()
        held = self._left.pop(rate.bucket, None)
        if held is None:
            left = rate.size
            if len(self._left) >= KEPT:
                del self._left[next(iter(self._left))]
        else:
            left = min(rate.size, held[0] + (now - held[1]) * rate.per_s)
        if left < 1:
            self._left[rate.bucket] = (left, now)
            return (1 - left) / rate.per_s
        self._left[rate.bucket] = (left - 1, now)
        if self._shared is not None:
            _, taken = self._unshared.get(rate.bucket, (rate, 0.0))
            self._unshared[rate.bucket] = (rate, taken + 1)
        return 0.0

    def need(self, rate: Rate, code: str, message: str) -> None:
        """Take a token, or raise TooMany."""
        wait_s = self.take(rate)
        if wait_s:
            raise too_many(rate, wait_s, code, message)

    async def _share_often(self) -> None:
        while True:
            await asyncio.sleep(SHARE_S)
            while self._unshared:
                names = list(self._unshared)[:SHARED_AT_ONCE]
                taken = [self._unshared.pop(name) for name in names]
                try:
                    await self._share(taken)
                except Exception as error:  # noqa: BLE001 - sharing must go on; each server limits its own calls meanwhile
                    log.debug("rates_not_shared", reason=str(error))
                    self._take_back(taken)
                    break

    def _take_back(self, taken: list[tuple[Rate, float]]) -> None:
        """Report these tokens next time. A bucket that has refilled since is full whatever was taken before."""
        now = time.monotonic()
        for rate, tokens in taken:
            if rate.bucket in self._left:
                left, then = self._left[rate.bucket]
                if left + (now - then) * rate.per_s < rate.size:
                    _, since_then = self._unshared.get(rate.bucket, (rate, 0.0))
                    self._unshared[rate.bucket] = (rate, min(rate.size, tokens + since_then))

    async def _share(self, taken: list[tuple[Rate, float]]) -> None:
        assert self._shared is not None, "only shared buckets are reported"
        left = await self._shared.spend(
            [Spending(rate.bucket, tokens, rate.per_s, rate.size) for rate, tokens in taken]
        )
        now = time.monotonic()
        for (rate, _), tokens in zip(taken, left, strict=True):
            if rate.bucket in self._left:
                _, since_then = self._unshared.get(rate.bucket, (rate, 0.0))
                self._left[rate.bucket] = (tokens - since_then, now)


def too_many(rate: Rate, wait_s: float, code: str, message: str) -> TooMany:
    """Return the error of a caller that exceeds a rate."""
    error = TooMany(code, message)
    error.retry_after_s = max(1, round(wait_s + 0.499))
    error.policy = rate.policy
    error.quota = int(rate.size)
    error.window_s = max(1, round(rate.size / rate.per_s))
    return error
