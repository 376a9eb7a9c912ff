"""Tasks end when they are cancelled, even if a library loses the cancellation."""

import asyncio

import pytest

from laurels import tasks


def test_end_tasks_cancels_again_if_a_task_ignores_cancellation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "AGAIN_S", 0.01)
    lost = 0

    async def stubborn() -> None:
        nonlocal lost
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                lost += 1
                if lost > 2:
                    raise

    async def broken() -> None:
        raise ZeroDivisionError

    async def run() -> None:
        running = [asyncio.create_task(work()) for work in (stubborn, broken)]
        await asyncio.sleep(0)
        await tasks.end_tasks(running)
        assert all(task.done() for task in running)
        assert running[0].cancelled()

    asyncio.run(run())
    assert lost == 3
