"""Timed HTTP calls that run in the background of a measurement."""

import threading
import time
from typing import Self

from load import BOARD, user_name
from support.running import RunningServer

CALLERS = 4


class Callers:
    """A few threads that make each kind of call in turn, until the end of the `with` block."""

    def __init__(self, server: RunningServer, users: int) -> None:
        self._server = server
        self._users = users
        self._stopping = threading.Event()
        self.times: dict[str, list[float]] = {"GET top": [], "GET rank": [], "PUT score": []}

    def __enter__(self) -> Self:
        self._threads = [threading.Thread(target=self._call, args=(number,)) for number in range(CALLERS)]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def _call(self, number: int) -> None:
        board = f"/api/v1/leaderboards/{BOARD}"
        with self._server.client() as client:
            while not self._stopping.is_set():
                number = (number * 7919 + 1) % self._users
                user = f"{board}/users/{user_name(number)}"
                for name, address, body in (
                    ("GET top", board + "/top?window=all", None),
                    ("GET rank", user + "/rank?window=all", None),
                    ("PUT score", user, {"score": 1}),
                ):
                    method = name.partition(" ")[0]
                    start = time.perf_counter()
                    assert client.request(method, address, json=body).status_code == 200
                    self.times[name].append(time.perf_counter() - start)


def quantile(times: list[float], share: float) -> float:
    return sorted(times)[int(len(times) * share)] * 1000 if times else float("nan")


def show_calls(alone: dict[str, list[float]], beside: dict[str, list[float]], what: str) -> None:
    for name, times in beside.items():
        before = alone[name]
        print(
            f"  {name:10} p50, p99 ms: alone {quantile(before, 0.5):.1f}, {quantile(before, 0.99):.1f}; "
            f"during {what} {quantile(times, 0.5):.1f}, {quantile(times, 0.99):.1f} ({len(times)} calls)"
        )
