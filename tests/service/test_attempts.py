"""Windows that limit attempts: exactly so many scores of a user count, whatever arrives twice, together or late."""

import asyncio
import contextlib
import random
from typing import Any

import pytest

from laurels.core.board import Board
from laurels.core.instants import SECOND_US
from laurels.core.scores import Rule
from laurels.core.windows import ALL_TIME, Window
from laurels.errors import Conflict, Invalid, LaurelsError
from laurels.ports import RecordOutcome, Role
from laurels.service.boards.caller import Caller
from laurels.service.laurels import Laurels
from laurels.service.moderation.moderation import EventFilter
from laurels.service.read.reads import Selection
from laurels.service.write.submissions import Accepted, Submission
from support.services import Stage, differences

ADMIN = Caller(Role.ADMIN, None, "test")
HOUR = 3600 * SECOND_US


async def create(laurels: Laurels, attempts: int = 3, **fields: Any) -> Board:
    fields = {"rule": Rule.INCREMENT, "windows": (Window("daily", attempts=attempts), ALL_TIME)} | fields
    return await laurels.boards.create(Board(id=0, uuid="b", pod_id="default", name="b", created_at=0, **fields), None)


def held(laurels: Laurels) -> Board:
    return laurels.boards.to_read(ADMIN, "b")


async def totals(laurels: Laurels, window: str = "daily") -> dict[str, float]:
    page = await laurels.reads.top(held(laurels), Selection(window=window), 0, 1000)
    return {entry.user_id: entry.score for entry in page.value.entries}


def codes(answers: list[Accepted | LaurelsError]) -> list[str]:
    return [each.code if isinstance(each, LaurelsError) else str(each.outcome) for each in answers]


def test_scores_over_the_limit_count_in_no_window(stage: Stage) -> None:
    async def run() -> None:
        async with stage.running() as laurels:
            await create(laurels)
            for number in range(3):
                await laurels.submissions.submit(held(laurels), Submission("ada", 10, event_id=f"e{number}"))
            with pytest.raises(Conflict) as caught:
                await laurels.submissions.submit(held(laurels), Submission("ada", 10, event_id="e3"))
            assert (caught.value.code, caught.value.field) == ("attempts_used", "userId")
            again = await laurels.submissions.submit(held(laurels), Submission("ada", 10, event_id="e1"))
            assert again.outcome is RecordOutcome.DUPLICATE
            await laurels.submissions.submit(held(laurels), Submission("bob", 1))
            assert await totals(laurels) == await totals(laurels, "all") == {"ada": 30, "bob": 1}
            stage.clock.now += 24 * HOUR
            await laurels.jobs.run_due()
            # The id of a refused score is free.
            await laurels.submissions.submit(held(laurels), Submission("ada", 5, event_id="e3"))
            assert await totals(laurels) == {"ada": 5}
            assert (await totals(laurels, "all"))["ada"] == 35
            assert await differences(laurels) == []

    asyncio.run(run())


def test_attempts_are_counted_within_a_batch(stage: Stage) -> None:
    async def run() -> None:
        async with stage.running() as laurels:
            await create(laurels)
            await laurels.submissions.submit(held(laurels), Submission("ada", 1, event_id="a0"))
            sent = [
                Submission("ada", 1, event_id="a0"),
                Submission("ada", 2, event_id="a1"),
                Submission("bob", 1, event_id="b0"),
                Submission("ada", 2, event_id="a1"),
                Submission("ada", 4, event_id="a2"),
                Submission("ada", 8, event_id="a3"),
                Submission("ada", 8, event_id="a3"),
                Submission("bob", 2, event_id="b1"),
            ]
            answers = await laurels.submissions.submit_many(held(laurels), sent)
            expected = [
                "duplicate",
                "accepted",
                "accepted",
                "duplicate",
                "accepted",
                *["attempts_used"] * 2,
                "accepted",
            ]
            assert codes(answers) == expected
            assert await totals(laurels) == {"ada": 7, "bob": 3}
            assert await differences(laurels) == []

    asyncio.run(run())


def test_void_event_gives_its_attempt_back(stage: Stage) -> None:
    async def run() -> None:
        async with stage.running() as laurels:
            await create(laurels, attempts=1)
            await laurels.submissions.submit(held(laurels), Submission("ada", 10, event_id="bad"))
            await laurels.moderation.void(ADMIN, held(laurels), EventFilter(event_ids=["bad"]), None, None)
            await laurels.submissions.submit(held(laurels), Submission("ada", 3))
            assert await totals(laurels) == {"ada": 3}
            with pytest.raises(Conflict):
                await laurels.submissions.submit(held(laurels), Submission("ada", 3))

    asyncio.run(run())


def test_attempts_need_all_events(stage: Stage) -> None:
    async def run() -> None:
        async with stage.running() as laurels:
            with pytest.raises(Invalid) as caught:
                await create(laurels, keep_events_days=30)
            assert (caught.value.code, caught.value.field) == ("invalid_window", "keepEventsDays")

    asyncio.run(run())


def test_racing_servers_and_batches_count_exactly_the_attempts(stage: Stage) -> None:
    """Several batches at once, from two servers where the stores allow it, with repetitions."""
    rng = random.Random(7)

    async def run() -> None:
        async with contextlib.AsyncExitStack() as stack:
            servers = [await stack.enter_async_context(stage.running())]
            board = await create(servers[0], attempts=5)
            if stage.kind == "shared":
                servers.append(await stack.enter_async_context(stage.running()))
            users = [f"u{number}" for number in range(4)]
            sent = [Submission(rng.choice(users), 1, event_id=f"e{number}") for number in range(200)]
            sent += rng.sample(sent, 50)
            rng.shuffle(sent)
            batches = [sent[start : start + 10] for start in range(0, len(sent), 10)]
            answers = await asyncio.gather(
                *(
                    servers[number % len(servers)].submissions.submit_many(board, batch)
                    for number, batch in enumerate(batches)
                )
            )
            outcomes = [code for some in answers for code in codes(some)]
            assert outcomes.count("accepted") == 20
            assert await totals(servers[0]) == dict.fromkeys(users, 5)
            assert await differences(servers[0]) == []

    asyncio.run(run())
