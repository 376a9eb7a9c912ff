"""When to try again: an exponential backoff, and a circuit breaker."""

import random
import time

# 2 to this power is beyond every longest pause.
MAX_DOUBLINGS = 30


class Backoff:
    """An exponential backoff: pauses from `first_s`, doubled each time up to `longest_s`.

    `jitter` is the part of a pause that is random, so that clients that failed together do not retry together.
    """

    def __init__(self, first_s: float, longest_s: float, jitter: float = 0.0) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._jitter = jitter
        self._failures = 0
        self._until = 0.0

    def pause_s(self, failures: int) -> float:
        """Return the pause in seconds after this many failures in a row, from 1."""
        pause_s = min(self._longest_s, self._first_s * 2.0 ** min(max(0, failures - 1), MAX_DOUBLINGS))
        return pause_s * random.uniform(1 - self._jitter, 1 + self._jitter)  # noqa: S311 - not for security

    def next_s(self) -> float:
        """Note a failure, and return the pause in seconds before the next attempt."""
        self._failures += 1
        pause_s = self.pause_s(self._failures)
        self._until = time.monotonic() + pause_s
        return pause_s

    @property
    def is_pausing(self) -> bool:
        """Return True until the pause of the last failure is over."""
        return time.monotonic() < self._until

    def reset(self) -> None:
        """Note a success."""
        self._failures, self._until = 0, 0.0


class CircuitBreaker:
    """Lets callers fail fast while a dependency is down: one trial at a time, at most every `interval_s`.

    Closed: all calls go through. Open, after `failed`: only a trial does, until `succeeded`.
    """

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self.is_open = False
        self._is_trying = False
        self._next_trial_at = 0.0

    def may_try(self) -> bool:
        """Return True if a call may be made now."""
        return not self.is_open or (not self._is_trying and time.monotonic() >= self._next_trial_at)

    def begin(self) -> None:
        """Note that a call is made."""
        self._is_trying = self.is_open

    def failed(self) -> None:
        """Open, or stay open."""
        self.is_open, self._is_trying = True, False
        self._next_trial_at = time.monotonic() + self._interval_s

    def succeeded(self) -> None:
        """Close."""
        self.is_open = self._is_trying = False
