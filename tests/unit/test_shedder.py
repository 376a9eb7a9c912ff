"""Load shedding: a burst is cut off at once, pods get fair shares, and nothing is refused without need."""

import random
from collections import Counter
from collections.abc import Callable

import pytest

from laurels.service.traffic.shedder import Shedder

TARGET_S = 0.005


class Server:
    """A model of an event loop: each round answers the calls that have arrived, one after the other."""

    def __init__(self, target_s: float = TARGET_S, refusal_s: float = 0.00002) -> None:
        self.now = 0.0
        self.at_end: list[Callable[[], None]] = []
        self.refusal_s = refusal_s
        self.shedder = Shedder(target_s, self.at_end.append, lambda: self.now)
        self.admitted: Counter[str] = Counter()
        self.delays: list[float] = []

    def serve(self, calls: list[str], cost_s: float = 0.0004, pause_s: float = 0.0) -> None:
        """Serve a round. `pause_s`: other work before the first call."""
        while self.at_end:
            self.at_end.pop()()
        began = self.now
        self.now += pause_s
        for pod in calls:
            if self.shedder.admits(pod):
                self.now += cost_s
                self.admitted[pod] += 1
                self.delays.append(self.now - began)
            else:
                self.now += self.refusal_s


def test_burst_is_cut_off_at_the_target() -> None:
    server = Server()
    server.serve(["a"] * 1000)
    # 0.4 ms each: the first of them take the time up to the target.
    assert 12 <= server.admitted["a"] <= 14
    assert max(server.delays) < 1.2 * TARGET_S
    assert server.shedder.take_refused() == 1000 - server.admitted["a"]
    assert server.shedder.take_refused() == 0


def test_calls_below_the_capacity_are_all_admitted() -> None:
    server = Server()
    for _ in range(200):
        server.serve(["a"] * 10)
    assert server.admitted["a"] == 2000


def test_pause_is_no_overload() -> None:
    """After garbage collection or a long job, the calls that arrived meanwhile are answered."""
    server = Server()
    server.serve(["a"] * 10, pause_s=1.0)
    assert server.admitted["a"] == 10


def test_server_stays_busy_at_five_times_its_capacity() -> None:
    server = Server()
    capacity, began = 1 / 0.0004, server.now
    waiting = 0.0
    while server.now < began + 2:
        before = server.now
        server.serve(["a"] * max(1, round(waiting)))
        waiting = 5 * capacity * (server.now - before)
    assert max(server.delays) < 1.2 * TARGET_S
    assert server.admitted["a"] > 0.5 * capacity * 2


def test_pod_within_its_share_is_not_affected() -> None:
    server = Server()
    sent: Counter[str] = Counter()
    for turn in range(200):
        calls = ["busy"] * 200 + ["calm"] * (turn % 3) + ["other"]
        random.Random(turn).shuffle(calls)
        sent.update(calls)
        server.serve(calls)
    assert server.admitted["calm"] == sent["calm"]
    assert server.admitted["other"] == sent["other"]
    assert server.admitted["busy"] < 200 * 14


def test_busy_pods_get_the_same() -> None:
    server = Server()
    for turn in range(200):
        calls = ["first"] * 300 + ["second"] * 100
        random.Random(turn).shuffle(calls)
        server.serve(calls)
    assert 0.6 < server.admitted["first"] / server.admitted["second"] < 1.7


@pytest.mark.parametrize(("queued_s", "admitted"), [(0.0, True), (TARGET_S, True), (2 * TARGET_S, False)])
def test_write_is_refused_if_it_would_wait_in_the_queue(queued_s: float, admitted: bool) -> None:
    assert Server().shedder.admits("a", queued_s) is admitted
