"""Load shedding: it converges to what the server can do, is fair between pods, and ends with the overload."""

import random
from collections import Counter

from laurels.service.traffic.shedder import FLOOR, INTERVAL_S, Shedder

TARGET_S = 0.02


def run(shedder: Shedder, load: dict[str, int], capacity: int, intervals: int) -> tuple[Counter[str], list[float]]:
    """Send calls to a server with a queue. Return the admitted calls by pod, and the delay after each interval."""
    admitted: Counter[str] = Counter()
    queue = 0.0
    delays = []
    calls = [pod for pod, count in load.items() for _ in range(count)]
    for _ in range(intervals):
        random.Random(1).shuffle(calls)
        for pod in calls:
            if shedder.admits(pod):
                admitted[pod] += 1
                queue += 1
        completed = min(queue, capacity)
        queue -= completed
        delays.append(queue / capacity * INTERVAL_S)
        shedder.adjust(delays[-1], int(completed))
    return admitted, delays


def test_nothing_is_refused_without_a_delay() -> None:
    admitted, _ = run(Shedder(TARGET_S), {"a": 900}, 1000, 50)
    assert admitted == {"a": 900 * 50}


def test_delay_stays_bounded_at_five_times_the_capacity() -> None:
    shedder = Shedder(TARGET_S)
    admitted, delays = run(shedder, {"a": 5000}, 1000, 300)
    assert max(delays[100:]) < 5 * TARGET_S
    # And the server stays busy.
    assert admitted["a"] > 0.8 * 1000 * 300


def test_pod_within_its_share_is_not_affected() -> None:
    shedder, load = Shedder(TARGET_S), {"busy": 5000, "calm": 100, "other": 50}
    # The first calls make a queue, which has to be worked off.
    run(shedder, load, 1000, 50)
    admitted, _ = run(shedder, load, 1000, 200)
    assert admitted["calm"] == 100 * 200
    assert admitted["other"] == 50 * 200
    admitted, _ = run(Shedder(TARGET_S), {"first": 5000, "second": 2500}, 1000, 200)
    assert 0.9 < admitted["first"] / admitted["second"] < 1.3


def test_everything_is_admitted_again_after_the_overload() -> None:
    shedder = Shedder(TARGET_S)
    run(shedder, {"a": 5000}, 1000, 50)
    run(shedder, {"a": 300}, 1000, 20)
    admitted, _ = run(shedder, {"a": 900}, 1000, 20)
    assert admitted["a"] == 900 * 20


def test_few_calls_are_always_admitted() -> None:
    shedder = Shedder(TARGET_S)
    for _ in range(50):
        shedder.adjust(10.0)
        assert sum(shedder.admits("a") for _ in range(FLOOR)) == FLOOR
