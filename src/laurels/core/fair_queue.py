"""A queue that serves pods fairly: of the pods that wait, the one that was served least comes first."""

import heapq
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class FairQueue(Generic[T]):
    """Items with their costs, by pod. Each call is O(log(number of pods that wait))."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[tuple[float, T]]] = {}
        # By pod: the cost that it was served, counted from the start of the busy time. A pod that had none for a while
        # starts at the count of the pod that was served last, so that it can't save up.
        self._served: dict[str, float] = {}
        self._last_served = 0.0
        # What the waiting pods were served, least first, with the order in which they came. An entry is outdated if the
        # pod was charged since.
        self._order: list[tuple[float, int, str]] = []
        self._number = 0
        self._cost = 0.0

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @property
    def cost(self) -> float:
        """Return the cost of all items that wait. O(1)."""
        return self._cost

    def waiting_of(self, pod_id: str) -> int:
        """Return how many items of a pod wait."""
        return len(self._waiting.get(pod_id, ()))

    def add(self, pod_id: str, cost: float, item: T) -> None:
        if pod_id not in self._waiting:
            self._waiting[pod_id] = deque()
            self._served[pod_id] = max(self._served.get(pod_id, 0.0), self._last_served)
            self._push(pod_id)
        self._waiting[pod_id].append((cost, item))
        self._cost += cost

    def peek(self) -> T:
        """Return the item that `take` would remove."""
        return self._waiting[self._next_pod()][0][1]

    def take(self) -> tuple[str, float, T]:
        """Remove the next item, charge its cost, and return it with its pod and its cost."""
        pod_id = self._next_pod()
        heapq.heappop(self._order)
        cost, item = self._waiting[pod_id].popleft()
        self._cost -= cost
        self._last_served = self._served[pod_id]
        self._served[pod_id] += cost
        if self._waiting[pod_id]:
            self._push(pod_id)
        else:
            del self._waiting[pod_id]
        return pod_id, cost, item

    def charge(self, pod_id: str, cost: float) -> None:
        """Count what a pod was served besides its items; negative: what it was charged and did not take."""
        self._served[pod_id] = self._served.get(pod_id, self._last_served) + cost

    def forget(self) -> None:
        """End the busy time, when nothing waits: all pods start from zero."""
        assert not self._waiting, "only an idle queue forgets"
        self._served.clear()
        self._order.clear()
        self._last_served = 0.0

    def _push(self, pod_id: str) -> None:
        self._number += 1
        heapq.heappush(self._order, (self._served[pod_id], self._number, pod_id))

    def _next_pod(self) -> str:
        while True:
            served, _, pod_id = self._order[0]
            if served == self._served[pod_id]:
                return pod_id
            heapq.heappop(self._order)
            self._push(pod_id)
