"""The queue that serves pods fairly."""

from hypothesis import given
from hypothesis import strategies as st

from laurels.core.fair_queue import FairQueue

PODS = ["a", "b", "c"]


@given(st.lists(st.tuples(st.sampled_from(PODS), st.integers(1, 50)), min_size=1, max_size=200))
def test_waiting_pods_are_served_the_same_up_to_one_item(items: list[tuple[str, int]]) -> None:
    queue: FairQueue[int] = FairQueue()
    for number, (pod, cost) in enumerate(items):
        queue.add(pod, cost, number)
    served = dict.fromkeys(PODS, 0.0)
    taken: dict[str, list[int]] = {pod: [] for pod in PODS}
    largest = max(cost for _, cost in items)
    while queue:
        waiting = [pod for pod in PODS if queue.waiting_of(pod)]
        spread = [served[pod] for pod in waiting]
        assert max(spread) - min(spread) <= largest
        pod, due, number = queue.take()
        assert items[number] == (pod, due)
        served[pod] += due
        taken[pod].append(number)
    # Of one pod, in the order in which they came.
    assert all(numbers == sorted(numbers) for numbers in taken.values())
    assert sum(map(len, taken.values())) == len(items)


def test_pod_that_had_nothing_to_do_can_not_save_up() -> None:
    queue: FairQueue[int] = FairQueue()
    for number in range(10):
        queue.add("busy", 1, number)
    for _ in range(5):
        queue.take()
    for number in range(10):
        queue.add("new", 1, number)
    order = []
    while queue:
        order.append(queue.take()[0])
    # From here on they alternate: the new pod does not get five turns first.
    assert order[:10].count("new") == 5


def test_additional_charges_count_and_refunds_are_given_back() -> None:
    queue: FairQueue[int] = FairQueue()
    for number in range(4):
        queue.add("a", 1, number)
        queue.add("b", 1, number)
    assert queue.cost == 8
    pod, _, _ = queue.take()
    assert pod == "a"
    # It took more than was known before.
    queue.charge("a", 2.5)
    assert [queue.take()[0] for _ in range(4)] == ["b", "b", "b", "b"]
    queue.charge("b", -4)
    queue.add("b", 1, 9)
    # But not below the pods that were served meanwhile.
    assert [queue.take()[0] for _ in range(4)] == ["b", "a", "a", "a"]
    assert (queue.cost, bool(queue)) == (0, False)
    queue.forget()
