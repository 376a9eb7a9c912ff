"""Operations on single scores: exact, in the order of time, whatever the order of arrival."""

import asyncio
import contextlib
import random
from fractions import Fraction
from typing import Any

import pytest
from msgspec.structs import replace

from laurels.core.board import Board
from laurels.core.instants import SECOND_US
from laurels.core.order import Order
from laurels.core.people import ProfileChange
from laurels.core.scores import Operation, Rule
from laurels.core.windows import ALL_TIME, Window
from laurels.errors import Conflict, Invalid, LaurelsError
from laurels.ports import RecordOutcome, Role
from laurels.service.boards.caller import Caller
from laurels.service.laurels import Laurels
from laurels.service.moderation.moderation import EventFilter
from laurels.service.read.reads import Selection
from laurels.service.write.submissions import Accepted, Submission
from support.services import Stage, differences

DAY_US = 86_400 * SECOND_US
ADMIN = Caller(Role.ADMIN, None, "test")
EVERY = tuple(Operation)


async def create(laurels: Laurels, **fields: Any) -> Board:
    fields = {"rule": Rule.BEST, "operations": EVERY, "windows": (ALL_TIME, Window("daily"))} | fields
    return await laurels.boards.create(Board(id=0, uuid="b", pod_id="default", name="b", created_at=0, **fields), None)


def held(laurels: Laurels) -> Board:
    return laurels.boards.to_read(ADMIN, "b")


async def scores(laurels: Laurels, **selection: Any) -> dict[str, float]:
    page = await laurels.reads.top(held(laurels), Selection(**selection), 0, 1000)
    return {entry.user_id: entry.score for entry in page.value.entries}


def code(answer: Accepted | LaurelsError) -> str:
    return answer.code if isinstance(answer, LaurelsError) else str(answer.outcome)


def test_operations_change_the_score_one_after_the_other(stage: Stage) -> None:
    async def run() -> None:
        async with stage.running() as laurels:
            await create(laurels)
            results = []
            for number, (score, operation) in enumerate(
                [
                    (10, None),
                    (3, Operation.BEST),
                    (2.5, Operation.INCREMENT),
                    (0.1, Operation.INCREMENT),
                    (4, Operation.SET),
                    (-1, Operation.INCREMENT),
                    (9, None),
                    (1, Operation.LATEST),
                ]
            ):
                sent = Submission("ada", score, event_id=f"e{number}", operation=operation)
                results.append((await laurels.submissions.submit(held(laurels), sent)).score)
                # A repetition changes nothing, and another operation is another payload.
                assert (await laurels.submissions.submit(held(laurels), sent)).outcome is RecordOutcome.DUPLICATE
            assert results == [10, 10, 12.5, 12.6, 4, 3, 9, 1]
            with pytest.raises(Conflict) as caught:
                await laurels.submissions.submit(held(laurels), Submission("ada", 1, event_id="e7"))
            assert caught.value.code == "event_conflict"
            assert await scores(laurels) == await scores(laurels, window="daily") == {"ada": 1}
            assert await differences(laurels) == []

    asyncio.run(run())


def test_scores_count_in_the_order_of_time_whenever_they_arrive(stage: Stage) -> None:
    async def run() -> None:
        now = stage.clock.now
        sent = [
            Submission("ada", 100, at=now - 9, event_id="a"),
            Submission("ada", 2, at=now - 8, event_id="b", operation=Operation.INCREMENT),
            Submission("ada", 7, at=now - 7, event_id="c", operation=Operation.SET),
            # At one time, the ids decide.
            Submission("ada", 3, at=now - 6, event_id="d", operation=Operation.SET),
            Submission("ada", 5, at=now - 6, event_id="e", operation=Operation.INCREMENT),
            Submission("ada", 1, at=now - 5, event_id="f"),
        ]
        async with stage.running() as laurels:
            await create(laurels)
            for seed in range(6):
                rng = random.Random(seed)
                mixed = [replace(each, user_id=f"u{seed}", event_id=f"{seed}{each.event_id}") for each in sent]
                rng.shuffle(mixed)
                await laurels.submissions.submit_many(held(laurels), mixed[:3] * 2)
                for each in mixed[3:]:
                    await laurels.submissions.submit(held(laurels), each)
            assert await scores(laurels) == {f"u{seed}": 8 for seed in range(6)}
            assert await differences(laurels) == []
            # Without a time, after all others, in the order of the list.
            batch = [Submission("bob", 1), Submission("bob", 5, operation=Operation.SET)]
            batch += [Submission("bob", 2, operation=Operation.INCREMENT)] * 3
            await laurels.submissions.submit_many(held(laurels), batch)
            assert (await scores(laurels))["bob"] == 11
            assert await differences(laurels) == []

    asyncio.run(run())


def test_time_ahead_of_the_clock_keeps_its_period(stage: Stage) -> None:
    """A score at midnight and one without a time just before it: each counts in the period of its own time."""

    async def run() -> None:
        midnight = (stage.clock.now // DAY_US + 1) * DAY_US
        stage.clock.now = midnight - 60 * SECOND_US
        async with stage.running() as laurels:
            await create(laurels)
            await laurels.submissions.submit(held(laurels), Submission("ada", 5, at=midnight + 60 * SECOND_US))
            await laurels.submissions.submit(held(laurels), Submission("ada", 3, operation=Operation.SET))
            await laurels.submissions.submit(held(laurels), Submission("ada", 1, operation=Operation.INCREMENT))
            assert await scores(laurels, window="daily") == {"ada": 4}
            assert await scores(laurels) == {"ada": 5}
            assert await differences(laurels) == []

    asyncio.run(run())


def test_operation_that_the_board_does_not_allow_is_refused(stage: Stage) -> None:
    async def run() -> None:
        async with stage.running() as laurels:
            await create(laurels, operations=(Operation.SET,))
            for operation in (None, Operation.BEST, Operation.SET):
                await laurels.submissions.submit(held(laurels), Submission("ada", 5, operation=operation))
            with pytest.raises(Invalid) as caught:
                await laurels.submissions.submit(held(laurels), Submission("ada", 5, operation=Operation.INCREMENT))
            assert (caught.value.code, caught.value.field) == ("operation_not_allowed", "operation")

    asyncio.run(run())


def expected(order: Order, events: list[tuple[str, float, Operation]]) -> dict[str, float]:
    """Return the scores after events, computed with fractions."""
    totals: dict[str, Fraction] = {}
    better = max if order is Order.DESC else min
    for user, score, operation in events:
        exact = Fraction(repr(score))
        if user not in totals or operation in {Operation.SET, Operation.LATEST}:
            totals[user] = exact
        elif operation is Operation.BEST:
            totals[user] = better(totals[user], exact)
        else:
            totals[user] += exact
    return {user: float(total) for user, total in totals.items()}


@pytest.mark.parametrize("seed", range(4))
def test_random_operations_equal_the_model_also_after_voids_and_restarts(stage: Stage, seed: int) -> None:
    rng = random.Random(seed)
    order = rng.choice(list(Order))
    users = ["ada", "bob", "eve"]

    async def run() -> None:
        done: dict[str, tuple[str, float, Operation]] = {}
        async with stage.running() as laurels:
            await create(laurels, order=order, rule=rng.choice(list(Rule)), segments=("global", "region"))
            for number in range(60):
                user, score = rng.choice(users), rng.choice([0, 0.1, 0.2, 1, -3.5, 7, 1e15 + 1])
                operation = rng.choice(EVERY)
                sent = Submission(
                    user, score, event_id=f"e{number}", operation=operation, region=rng.choice(["eu", "us"])
                )
                await laurels.submissions.submit(held(laurels), sent)
                done[f"e{number}"] = user, score, operation
                if number % 5 == 0:
                    stage.clock.now += 1000
            assert await scores(laurels) == expected(order, list(done.values()))
            gone = rng.sample(sorted(done), 12)
            act = await laurels.moderation.void(ADMIN, held(laurels), EventFilter(event_ids=gone), None, None)
            left = [event for event_id, event in done.items() if event_id not in gone]
            assert await scores(laurels) == expected(order, left)
            assert await differences(laurels) == []
            await laurels.moderation.restore(ADMIN, "default", act.id, None)
            assert await differences(laurels) == []
        async with stage.running() as laurels:
            assert await scores(laurels) == expected(order, list(done.values()))
            assert await differences(laurels) == []

    asyncio.run(run())


def test_racing_increments_and_sets_add_up(stage: Stage) -> None:
    """Several batches at once, from two servers where the stores allow it: nothing is lost or counted twice."""

    async def run() -> None:
        async with contextlib.AsyncExitStack() as stack:
            servers = [await stack.enter_async_context(stage.running())]
            board = await create(servers[0], rule=Rule.INCREMENT)
            if stage.kind == "shared":
                servers.append(await stack.enter_async_context(stage.running()))
            sent = [Submission(f"u{number % 3}", 1, event_id=f"e{number}") for number in range(120)]
            sent += sent[::4]
            batches = [sent[start : start + 10] for start in range(0, len(sent), 10)]
            work = [
                servers[number % len(servers)].submissions.submit_many(board, batch)
                for number, batch in enumerate(batches)
            ]
            profiles = servers[-1].profiles
            moves = [profiles.change("default", [ProfileChange(f"u{n}", region="eu")]) for n in range(3)]
            moving = asyncio.gather(*moves)
            answers = await asyncio.gather(*work)
            await moving
            assert {code(each) for some in answers for each in some} == {"accepted", "duplicate"}
            assert await scores(servers[0]) == {"u0": 40, "u1": 40, "u2": 40}
            assert await differences(servers[0]) == []
            stage.clock.now += SECOND_US
            await servers[0].submissions.submit(board, Submission("u0", 7, operation=Operation.SET))
            assert (await scores(servers[0]))["u0"] == 7

    asyncio.run(run())
