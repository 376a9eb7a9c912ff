"""Load shedding: when work waits too long, refuse some of the new calls at once, so that the others are answered soon.

Every INTERVAL_S, the shedder is told how long work waited at least during that time, because a queue that was short for
a moment is no overload. If that is more than the target, it admits fewer calls in the next interval, otherwise a few
more, until nothing has to be refused. What it admits is divided between the pods: those that send less than their share
are not affected.
"""

import math
from collections.abc import Mapping

INTERVAL_S = 0.1
# The calls per interval that are always admitted.
FLOOR = 50
# The change of the admitted calls from one interval to the next, at most.
LESS, MORE = 0.5, 1.05


class Shedder:
    def __init__(self, target_s: float) -> None:
        self._target_s = target_s
        # By pod: the calls of this interval.
        self._arrived: dict[str, int] = {}
        self._refused = 0
        # The calls to admit per interval.
        self._budget = math.inf
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

    def adjust(self, delay_s: float) -> int:
        """End an interval in which work waited for at least `delay_s`. Return how many calls were refused in it."""
        arrived, self._arrived = self._arrived, {}
        refused, self._refused = self._refused, 0
        calls = sum(arrived.values())
        if delay_s > self._target_s:
            factor = max(LESS, self._target_s / delay_s)
            self._budget = max(FLOOR, min(self._budget, calls - refused) * factor)
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
