"""A queue that serves pods fairly: of the pods that wait, the one that was served least comes first."""

from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class FairQueue(Generic[T]):
    """Items with their costs, by pod. Each call is O(number of pods that wait)."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[tuple[float, T]]] = {}
        # By pod: the cost that it was served, counted from the start of the busy time. A pod that had none for a while
        # starts at the count of the pod that was served last, so that it can't save up.
        self._served: dict[str, float] = {}
        self._last_served = 0.0
        self._cost = 0.0

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @property
    def cost(self) -> float:
        """Return the cost of all items that wait. O(1)."""
        return self._cost

    def peek(self) -> T:
        """Return the item that `take` would remove."""
        return self._waiting[min(self._waiting, key=self._served.__getitem__)][0][1]

    def waiting_of(self, pod_id: str) -> int:
        """Return how many items of a pod wait."""
        return len(self._waiting.get(pod_id, ()))

    def add(self, pod_id: str, cost: float, item: T) -> None:
        if pod_id not in self._waiting:
            self._waiting[pod_id] = deque()
            self._served[pod_id] = max(self._served.get(pod_id, 0.0), self._last_served)
        self._waiting[pod_id].append((cost, item))
        self._cost += cost

    def take(self) -> tuple[str, float, T]:
        """Remove the next item, and return it with its pod and its cost. `charge` counts the cost."""
        pod_id = min(self._waiting, key=self._served.__getitem__)
        cost, item = self._waiting[pod_id].popleft()
        if not self._waiting[pod_id]:
            del self._waiting[pod_id]
        self._cost -= cost
        return pod_id, cost, item

    def charge(self, pod_id: str, cost: float) -> None:
        """Count what a pod was served."""
        self._last_served = self._served.get(pod_id, self._last_served)
        self._served[pod_id] = self._last_served + cost

    def forget(self) -> None:
        """End the busy time: all pods start from zero."""
        self._served = dict.fromkeys(self._waiting, 0.0)
        self._last_served = 0.0
