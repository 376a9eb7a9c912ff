"""Buffered boards: few batches reach the index, and the ranks are the same as without a buffer."""

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from laurels.core.board import Board, Ranking
from laurels.core.order import Order
from laurels.core.scores import RankState, Rule
from laurels.errors import NotFound
from laurels.ports import Applied, Role, Row, StoredAction
from laurels.service.boards.caller import Caller
from laurels.service.laurels import Laurels
from laurels.service.read.reads import Selection
from laurels.service.write.submissions import Accepted, Submission
from support.services import Stage, differences
from support.waiting import until_async

ADMIN = Caller(Role.ADMIN, None, "test")


@pytest.fixture(params=["embedded", "shared"])
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Stage:
    return Stage(request.param, tmp_path)


class Spy:
    """A recorder of the sizes of the batches that are applied to the index."""

    def __init__(self, laurels: Laurels) -> None:
        self.batches: list[int] = []
        index: Any = laurels.index
        apply = index.apply

        async def spied(ranking: Ranking, rows: Sequence[Row], *rest: Any, **named: Any) -> Applied:
            self.batches.append(len(rows))
            applied: Applied = await apply(ranking, rows, *rest, **named)
            return applied

        index.apply = spied


async def create(laurels: Laurels, **fields: Any) -> Board:
    defaults: dict[str, Any] = {"rule": Rule.BEST, "capacity": 20, "flush_ms": 50}
    fields = defaults | fields
    return await laurels.boards.create(
        Board(id=0, uuid="hot", pod_id="default", name="Hot", created_at=0, **fields), None
    )


async def top(laurels: Laurels, board: Board) -> list[str]:
    return [place.user_id for place in (await laurels.reads.top(board, Selection(), 0, 1000)).value.entries]


async def write(laurels: Laurels, board: Board, scores: list[tuple[str, float]]) -> None:
    async def one(user: str, score: float) -> None:
        answer = await laurels.submissions.submit(board, Submission(user, score))
        # The event is durable; its rank is known after the flush.
        assert (answer.score is not None, answer.rank, answer.rank_state) == (True, None, RankState.BUFFERED)

    await asyncio.gather(*(one(*each) for each in scores))


def test_flush_waits_for_rows_that_are_being_sent(stage: Stage) -> None:
    async def run() -> None:
        async with stage.running(repair_interval_ms=600_000) as laurels:
            board = await create(laurels, flush_ms=1)
            begun, may_go_on = asyncio.Event(), asyncio.Event()
            index: Any = laurels.index
            apply = index.apply

            async def slow(ranking: Ranking, rows: Sequence[Row], *rest: Any, **named: Any) -> Applied:
                begun.set()
                await may_go_on.wait()
                applied: Applied = await apply(ranking, rows, *rest, **named)
                return applied

            index.apply = slow
            await write(laurels, board, [("ada", 1)])
            await begun.wait()
            flushing = asyncio.create_task(laurels.updater.buffers.flush())
            await asyncio.sleep(0.05)
            assert not flushing.done()
            may_go_on.set()
            await flushing
            assert await top(laurels, board) == ["ada"]

    asyncio.run(run())


def test_many_writes_reach_the_index_in_few_batches(stage: Stage) -> None:
    async def run() -> None:
        async with stage.running(repair_interval_ms=600_000) as laurels:
            board = await create(laurels)
            spy = Spy(laurels)
            await write(laurels, board, [(f"u{n:03}", n) for n in range(500)])
            await laurels.updater.buffers.flush()
            assert await top(laurels, board) == [f"u{n:03}" for n in range(499, 479, -1)]
            assert len(spy.batches) < 50
            outside = (await laurels.reads.rank(board, Selection(), "u000")).value
            assert (outside.is_ranked, outside.better, outside.total) == (False, 499, 500)
            # A user beyond the capacity returns with the full score, and the next users replace removed ones.
            await write(laurels, board, [("u000", 1000)])
            await laurels.updater.buffers.flush()
            assert (await top(laurels, board))[0] == "u000"
            for user in await top(laurels, board):
                await laurels.submissions.remove_user(ADMIN, board, user, None)
            await laurels.updater.buffers.flush()
            assert await top(laurels, board) == [f"u{n:03}" for n in range(480, 460, -1)]
            assert await differences(laurels) == []

    asyncio.run(run())


@pytest.mark.parametrize("order", Order)
@pytest.mark.parametrize(
    ("rule", "bounds"),
    [
        (Rule.BEST, {}),
        (Rule.LATEST, {}),
        (Rule.INCREMENT, {}),
        (Rule.INCREMENT, {"min_score": 0.0}),
        (Rule.INCREMENT, {"max_score": 0.0}),
    ],
)
def test_ranks_are_the_same_as_without_a_buffer(stage: Stage, rule: Rule, order: Order, bounds: dict[str, Any]) -> None:
    """For every rule, with removed users and flushes at random times."""
    rng = random.Random(f"{rule}{order}{bounds}")
    low, high = 0 if "min_score" in bounds else -50, 1 if "max_score" in bounds else 50

    async def run() -> None:
        async with stage.running(repair_interval_ms=100) as laurels:
            board = await create(laurels, rule=rule, order=order, capacity=5, flush_ms=5, **bounds)
            for _ in range(12):
                scores = [
                    (f"u{rng.randrange(60)}", float(rng.randrange(low, high))) for _ in range(rng.randrange(1, 90))
                ]
                await write(laurels, board, scores)
                if rng.random() < 0.4:
                    gone = [f"u{rng.randrange(60)}" for _ in range(4)]
                    answers = await asyncio.gather(
                        *(laurels.submissions.remove_user(ADMIN, board, user, None) for user in gone),
                        return_exceptions=True,
                    )
                    assert all(isinstance(answer, StoredAction | NotFound) for answer in answers)
                await asyncio.sleep(rng.choice([0, 0.01]))
                if rng.random() < 0.3:
                    assert await differences(laurels) == []
            assert await differences(laurels) == []

    asyncio.run(run())


def test_unflushed_rows_reach_the_index_after_a_restart(stage: Stage) -> None:
    async def run() -> None:
        async with stage.running(repair_interval_ms=100) as laurels:
            board = await create(laurels, flush_ms=60_000)
            await write(laurels, board, [("ada", 1), ("bob", 2)])
            # Lose the buffer, as if the process ended here.
            laurels.updater.buffers.rows.clear()
        async with stage.running(repair_interval_ms=100) as laurels:
            board = laurels.boards.to_read(ADMIN, "hot")

            async def is_there() -> bool:
                return await top(laurels, board) == ["bob", "ada"]

            await until_async(is_there, "both")

    asyncio.run(run())


def test_board_returns_ranks_at_once_after_buffering_is_disabled(stage: Stage) -> None:
    async def run() -> None:
        async with stage.running() as laurels:
            board = await create(laurels)
            await write(laurels, board, [(f"u{n:03}", n) for n in range(100)])
            board = await laurels.boards.change(board, {"flush_ms": None})
            answer = await laurels.submissions.submit(board, Submission("u000", 500))
            assert isinstance(answer, Accepted)
            assert answer.rank == 1
            await laurels.updater.buffers.flush()
            assert await differences(laurels) == []

    asyncio.run(run())
