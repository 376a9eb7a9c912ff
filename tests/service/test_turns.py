"""Heavy reads take turns, and jobs serve the pods in turn."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from laurels.core.board import Board
from laurels.core.windows import ALL_TIME, Window
from laurels.errors import Unavailable
from laurels.http.routes import build_app
from laurels.service.seasons import freezer as freezer_module
from laurels.service.traffic import turns as module
from laurels.service.traffic.turns import Turns
from laurels.service.write.submissions import Submission
from support.services import running
from support.waiting import until_so


async def read(turns: Turns, pod: str, order: list[str], rows: int = 1000) -> None:
    async with turns.turn(pod, rows):
        order.append(pod)


def test_pod_with_one_heavy_read_does_not_wait_behind_many() -> None:
    async def run() -> None:
        turns, order = Turns(1), list[str]()
        busy = [asyncio.create_task(read(turns, "busy", order)) for _ in range(50)]
        await asyncio.sleep(0)
        await read(turns, "calm", order)
        assert order.count("busy") <= 3
        await asyncio.gather(*busy)
        assert order.count("busy") == 50

    asyncio.run(run())


def test_loop_does_other_work_between_two_heavy_reads() -> None:
    async def run() -> None:
        turns, order = Turns(1), list[str]()
        reads = [asyncio.create_task(read(turns, "busy", order)) for _ in range(5)]

        async def other() -> None:
            while not all(each.done() for each in reads):
                order.append("round")
                await asyncio.sleep(0)

        await other()
        between = "".join("b" if each == "busy" else "." for each in order).strip(".").split("b")[1:-1]
        assert len(between) == 4
        assert all(len(rounds) >= module.ROUNDS for rounds in between), order

    asyncio.run(run())


def test_reads_that_wait_are_bounded_in_number_and_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        turns, order = Turns(1), list[str]()
        free = asyncio.Event()

        async def hold() -> None:
            async with turns.turn("busy", 1000):
                await free.wait()

        holder = asyncio.create_task(hold())
        await asyncio.sleep(0)
        monkeypatch.setattr(module, "PATIENCE_S", 60.0)
        waiting = [asyncio.create_task(read(turns, "busy", order)) for _ in range(module.WAITING)]
        await asyncio.sleep(0)
        with pytest.raises(Unavailable, match="more large reads"):
            await read(turns, "busy", order)
        # Another pod still may wait, but not for ever, even if the turn never ends.
        monkeypatch.setattr(module, "PATIENCE_S", 0.05)
        with pytest.raises(Unavailable, match="more large reads"):
            await read(turns, "calm", order)
        cancelled = waiting.pop()
        cancelled.cancel()
        free.set()
        await asyncio.gather(holder, *waiting)
        assert order == ["busy"] * (module.WAITING - 1)
        # Nothing is held after errors and cancellations.
        await read(turns, "busy", order)

    asyncio.run(run())


def test_reader_that_is_cancelled_as_its_turn_comes_gives_it_back() -> None:
    async def run() -> None:
        for rounds in range(3 * module.ROUNDS):
            turns, order = Turns(1), list[str]()
            free = asyncio.Event()

            async def hold(turns: Turns = turns, free: asyncio.Event = free) -> None:
                async with turns.turn("a", 1000):
                    await free.wait()

            holder = asyncio.create_task(hold())
            await asyncio.sleep(0)
            unlucky = asyncio.create_task(read(turns, "a", order))
            await asyncio.sleep(0)
            free.set()
            for _ in range(rounds):
                await asyncio.sleep(0)
            unlucky.cancel()
            await asyncio.gather(holder, unlucky, return_exceptions=True)
            async with asyncio.timeout(5):
                await read(turns, "a", order)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("small", "large"),
    [
        ("top?limit=10", "top?limit=101"),
        ("users/ada/around?above=50&below=50", "users/ada/around?above=51&below=50"),
        ("users/ada/rank", "distribution"),
        # Pages that wait for SQL don't wait for those of the index.
        ("periods?limit=1000", "search?q=ada"),
    ],
)
def test_large_reads_wait_for_their_turn_and_small_ones_do_not(tmp_path: Path, small: str, large: str) -> None:
    async def run() -> None:
        async with running(tmp_path) as laurels:
            board = await laurels.boards.create(
                Board(id=0, uuid="b", pod_id="default", name="B", created_at=0, public=True), None
            )
            await laurels.submissions.submit(board, Submission("ada", 1))
            transport = httpx.ASGITransport(build_app(laurels))
            headers = {"X-API-Key": "admin"}
            async with (
                httpx.AsyncClient(transport=transport, base_url="http://x", headers=headers) as client,
                asyncio.TaskGroup() as tasks,
            ):
                async with laurels.turns.turn("default", 1000):
                    waiting = tasks.create_task(client.get(f"/api/v1/leaderboards/b/{large}"))
                    assert (await client.get(f"/api/v1/leaderboards/b/{small}")).status_code == 200
                    await asyncio.sleep(0.05)
                    assert not waiting.done()
                assert (await waiting).status_code == 200

    asyncio.run(run())


@asynccontextmanager
async def two_pods(folder: Path, boards: int) -> AsyncIterator[Any]:
    """Run a service with many boards of a busy pod, created first, and one of a calm pod."""
    async with running(folder) as laurels:
        for pod in ("busy", "calm"):
            await laurels.access.create_pod(pod, pod)
        minutely = (ALL_TIME, *(Window(f"w{number}", cron="* * * * *") for number in range(4)))
        for number in range(boards):
            board = Board(id=0, uuid=f"busy-{number}", pod_id="busy", name="B", created_at=0, windows=minutely)
            await laurels.boards.create(board, None)
        calm = Board(id=0, uuid="calm", pod_id="calm", name="B", created_at=0, windows=minutely)
        await laurels.boards.create(calm, None)
        yield laurels


def test_resets_of_one_pod_do_not_delay_those_of_another(tmp_path: Path) -> None:
    async def run() -> None:
        async with two_pods(tmp_path, 10) as laurels:
            frozen: list[str] = []
            made: list[str] = []
            freeze, make_ahead = laurels.freezer.freeze, laurels.boards.make_ahead

            async def noted_freeze(board: Board, period: Any) -> Any:
                frozen.append(board.pod_id)
                return await freeze(board, period)

            async def noted_make(board: Board) -> Board:
                made.append(board.pod_id)
                return await make_ahead(board)  # type: ignore[no-any-return]

            laurels.freezer.freeze, laurels.boards.make_ahead = noted_freeze, noted_make
            # The current minute and its grace time are over.
            laurels.clock.now += 3 * 60_000_000
            await laurels.jobs.run_due()
            await until_so(lambda: frozen.count("calm") >= 4, "the periods of the calm pod are frozen")
            assert made.index("calm") <= 2
            assert [number for number, pod in enumerate(frozen) if pod == "calm"][3] <= 8
            assert frozen.count("busy") >= 40

    asyncio.run(run())


def test_sweeps_of_one_pod_do_not_delay_the_period_ends_of_another(tmp_path: Path) -> None:
    async def run() -> None:
        async with two_pods(tmp_path, 10) as laurels:
            laurels.clock.now += 3 * 60_000_000
            await laurels.jobs.run_due()
            # All of these periods are frozen, and their rows are due to be swept; then a period of the calm pod ends.
            laurels.clock.now += 3 * 60_000_000
            order: list[str] = []
            freeze, sweep = laurels.freezer.freeze, laurels.freezer.sweep_some

            async def noted_freeze(board: Board, period: Any) -> Any:
                order.append(f"freeze {board.pod_id}")
                return await freeze(board, period)

            async def noted_sweep(board: Board, period: Any) -> Any:
                order.append(f"sweep {board.pod_id}")
                return await sweep(board, period)

            laurels.freezer.freeze, laurels.freezer.sweep_some = noted_freeze, noted_sweep
            while order.count("sweep busy") < 40:
                await laurels.jobs.run_due()
            first = {what: order.index(what) for what in ("freeze calm", "sweep calm")}
            assert max(first.values()) <= 6, order[:20]
            assert order.count("freeze busy") >= 40

    asyncio.run(run())


def test_sweep_of_a_large_period_leaves_turns_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(freezer_module, "SWEEP_ROWS", 10)
    monkeypatch.setattr(freezer_module, "SWEEPS_AT_ONCE", 2)

    async def run() -> None:
        async with two_pods(tmp_path, 1) as laurels:
            boards = {board.uuid: board for board in laurels.boards.all()}
            crowd = [Submission(f"u{number}", 1.0) for number in range(100)]
            await laurels.submissions.submit_many(boards["busy-0"], crowd)
            await laurels.submissions.submit_many(boards["calm"], [Submission("ada", 1.0)])
            laurels.clock.now += 3 * 60_000_000
            await laurels.jobs.run_due()
            laurels.clock.now += 3 * 60_000_000
            order: list[str] = []
            sweep = laurels.freezer.sweep_some

            async def noted_sweep(board: Board, period: Any) -> Any:
                removed, is_done = await sweep(board, period)
                order.append(board.pod_id)
                assert removed <= 20
                return removed, is_done

            laurels.freezer.sweep_some = noted_sweep
            while order.count("busy") < 4 * 5:
                await laurels.jobs.run_due()
            assert order.index("calm") <= 2
            assert not await laurels.ledger.periods.unswept(laurels.clock.now - freezer_module.SWEEP_AFTER_US)

    asyncio.run(run())
