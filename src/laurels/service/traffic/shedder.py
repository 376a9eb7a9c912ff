"""Load shedding: when work waits too long, refuse some of the new calls at once, so that the others are answered soon.

Every INTERVAL_S, the shedder is told how long work waited at least during that time, because a queue that was short for
a moment is no overload. If that is more than the target, it admits fewer calls than were completed, and waits until
that has had its effect; otherwise it admits a few more, until nothing has to be refused. What it admits is divided
between the pods: those that send less than their share are not affected.
"""

import math
from collections.abc import Mapping

INTERVAL_S = 0.05
# The calls per interval that are always admitted.
FLOOR = 25
# What is admitted in an overload, as a part of what was completed: at least and at most. And the growth per interval.
LEAST, MOST, MORE = 0.3, 0.9, 1.03
# The maximum time to wait for the effect of a change.
HOLD_S = 0.5


class Shedder:
    def __init__(self, target_s: float) -> None:
        self._target_s = target_s
        # By pod: the calls of this interval.
        self._arrived: dict[str, int] = {}
        self._refused = 0
        # The calls to admit per interval.
        self._budget = math.inf
        self._hold_s = 0.0
        # By pod: the part of its calls to admit, if not all, and what is left of the last ones.
        self._ratio: dict[str, float] = {}
        self._credit: dict[str, float] = {}

    def admits(self, pod_id: str) -> bool:
        """Count a call, and return False if it must be refused."""
        self._arrived[pod_id] = self._arrived.get(pod_id, 0) + 1
        ratio = self._ratio.get(pod_id)
        if ratio is None:
            return True
        # Spread evenly, so that the admitted calls don't arrive as a burst.
        credit = self._credit.get(pod_id, 0.0) + ratio
        is_admitted = credit >= 1
        self._credit[pod_id] = credit - is_admitted
        self._refused += not is_admitted
        return is_admitted

    def adjust(self, delay_s: float, completed: int | None = None) -> int:
        """End an interval in which work waited for at least `delay_s`. Return how many calls were refused in it.

        `completed`: the calls that were answered; None if that is as many as were admitted.
        """
        arrived, self._arrived = self._arrived, {}
        refused, self._refused = self._refused, 0
        calls = sum(arrived.values())
        self._hold_s -= INTERVAL_S
        if delay_s > self._target_s:
            if self._hold_s <= 0:
                done = calls - refused if completed is None else completed
                self._budget = max(FLOOR, done * min(MOST, max(LEAST, self._target_s / delay_s)))
                self._hold_s = min(HOLD_S, delay_s)
        elif refused:
            self._budget = self._budget * MORE + 1
        elif not math.isinf(self._budget):
            # Nothing had to be refused. Keep a limit for a while, in case the load comes back.
            self._budget = self._budget * 2 if self._budget < 4 * calls + FLOOR else math.inf
        self._ratio = {} if calls <= self._budget else _ratios(arrived, self._budget)
        if not self._ratio:
            self._credit.clear()
        return refused


def _ratios(arrived: Mapping[str, int], budget: float) -> dict[str, float]:
    """Divide a budget: pods within an equal share keep all calls, and the others divide what these leave over."""
    left, pods = budget, len(arrived)
    share = 0.0
    for calls in sorted(arrived.values()):
        share = left / pods
        if calls > share:
            break
        left -= calls
        pods -= 1
    return {pod_id: share / calls for pod_id, calls in arrived.items() if calls > share}
