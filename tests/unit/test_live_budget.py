"""The budget of rows for live views: bounded in total, and fair between pods."""

import asyncio
import time

import pytest

from laurels.service.live.budget import Budget
from support.waiting import until_so


def test_pod_with_few_views_does_not_wait_behind_a_pod_with_many() -> None:
    """One pod asks for ten seconds' worth of rows at once."""

    async def run() -> None:
        budget = Budget(10_000, 100)
        order: list[str] = []

        async def read(pod: str, rows: int) -> None:
            await budget.take(pod, rows)
            order.append(pod)

        busy = [asyncio.create_task(read("busy", 1000)) for _ in range(100)]
        await asyncio.sleep(0)
        for _ in range(3):
            await read("calm", 10)
        # A read of the busy pod may already have its turn each time.
        assert order.count("busy") <= 5
        for task in busy:
            task.cancel()
        await asyncio.gather(*busy, return_exceptions=True)
        await budget.close()

    asyncio.run(run())


def test_busy_pods_are_served_the_same_number_of_rows() -> None:
    async def run() -> None:
        budget = Budget(1_000_000, 100)
        rows = {"large": 0, "small": 0}

        async def read(pod: str, size: int) -> None:
            await budget.take(pod, size)
            rows[pod] += size

        reads = [asyncio.create_task(read("large", 1000)) for _ in range(200)]
        reads += [asyncio.create_task(read("small", 10)) for _ in range(20_000)]
        await until_so(lambda: sum(rows.values()) >= 100_000, "some of the rows")
        assert abs(rows["large"] - rows["small"]) <= 2000
        for task in reads:
            task.cancel()
        await asyncio.gather(*reads, return_exceptions=True)
        await budget.close()

    asyncio.run(run())


def test_rows_per_second_are_bounded() -> None:
    async def run() -> None:
        budget = Budget(10_000, 1000)
        start = time.monotonic()
        await asyncio.gather(*(budget.take(f"pod-{number % 3}", 100) for number in range(40)))
        # 4,000 rows: 1,000 at once, the others at 10,000 per second.
        assert time.monotonic() - start >= 0.28
        await budget.close()

    asyncio.run(run())


@pytest.mark.parametrize("waits", [False, True])
def test_read_that_is_cancelled_takes_nothing_from_the_others(waits: bool) -> None:
    async def run() -> None:
        budget = Budget(1000, 10)
        first = asyncio.create_task(budget.take("pod", 100))
        await asyncio.sleep(0)
        cancelled = asyncio.create_task(budget.take("pod", 10**9))
        await asyncio.sleep(0.01 if waits else 0)
        cancelled.cancel()
        await asyncio.gather(cancelled, return_exceptions=True)
        await first
        async with asyncio.timeout(10):
            await budget.take("pod", 1)
        await budget.close()

    asyncio.run(run())


def test_pod_is_charged_what_its_reads_found() -> None:
    """Views of 1,000 rows on boards with one user cost as much as views of one row."""

    async def run() -> None:
        budget = Budget(10_000, 100)
        began = time.monotonic()
        for _ in range(200):
            await budget.take("pod", 1000)
            budget.correct("pod", 1 - 1000)
        # 200,000 rows would take 20 s.
        assert time.monotonic() - began < 10
        await budget.close()

    asyncio.run(run())
