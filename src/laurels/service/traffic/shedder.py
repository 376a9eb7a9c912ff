"""Load shedding: refuse calls at once that would have to wait too long, so that the others are answered soon.

A call waits for the calls that the event loop took up before it in the same round, and a write also for the writes of
its pod that are queued. Both are known when the call arrives, so a burst is cut off at once. A pod that was served less
than the others in a round is served although the round is late, so that a busy pod can't push it out.
"""

import time
from collections.abc import Callable


class Shedder:
    """`call_next_round` calls a function in the next round of the event loop."""

    def __init__(
        self,
        target_s: float,
        call_next_round: Callable[[Callable[[], None]], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._target_s = target_s
        self._call_next_round = call_next_round
        self._clock = clock
        # When the first call of this round arrived, and the admitted calls of the round, by pod and in total.
        self._is_in_round = False
        self._began = 0.0
        self._admitted: dict[str, int] = {}
        self._total = 0
        self._refused = 0

    def admits(self, pod_id: str, queued_s: float = 0.0) -> bool:
        """Return False if a call must be refused. `queued_s`: how long it would wait in a queue."""
        if not self._is_in_round:
            # Time before the first call was spent on other work: that is a pause, and no overload.
            self._is_in_round, self._began = True, self._clock()
            self._call_next_round(self._end_round)
        served = self._admitted.get(pod_id, 0)
        if queued_s > self._target_s or (
            # The first call of a round is never late.
            self._total and self._clock() - self._began > self._target_s and served * len(self._admitted) >= self._total
        ):
            self._refused += 1
            return False
        self._admitted[pod_id] = served + 1
        self._total += 1
        return True

    def _end_round(self) -> None:
        self._is_in_round = False
        self._admitted.clear()
        self._total = 0

    def take_refused(self) -> int:
        """Return how many calls were refused since the last call."""
        refused, self._refused = self._refused, 0
        return refused
