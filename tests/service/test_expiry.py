"""Scores that expire: a user leaves the rankings at that moment, exactly, whatever happens around it."""

import asyncio
import contextlib
import random
from typing import Any

import pytest

from laurels.core.board import Board
from laurels.core.instants import SECOND_US
from laurels.core.people import Hidden, ProfileChange
from laurels.core.scores import Rule
from laurels.core.windows import ALL_TIME, Window
from laurels.errors import NotFound
from laurels.ports import Role
from laurels.service.boards.caller import Caller
from laurels.service.laurels import Laurels
from laurels.service.moderation.moderation import EventFilter
from laurels.service.read.reads import Selection
from laurels.service.write.submissions import Submission
from support.services import Stage, differences

ADMIN = Caller(Role.ADMIN, None, "test")
HOUR = 3600 * SECOND_US
TTL_S = 3600


async def create(laurels: Laurels, **fields: Any) -> Board:
    defaults: dict[str, Any] = {"rule": Rule.BEST, "windows": (ALL_TIME, Window("daily")), "score_ttl_s": TTL_S}
    fields = defaults | fields
    return await laurels.boards.create(Board(id=0, uuid="b", pod_id="default", name="b", created_at=0, **fields), None)


def held(laurels: Laurels) -> Board:
    return laurels.boards.to_read(ADMIN, "b")


async def shown(laurels: Laurels, **selection: Any) -> dict[str, float]:
    page = await laurels.reads.top(held(laurels), Selection(**selection), 0, 1000)
    return {entry.user_id: entry.score for entry in page.value.entries}


async def submit(laurels: Laurels, user: str, score: float, **fields: Any) -> Any:
    return await laurels.submissions.submit(held(laurels), Submission(user, score, **fields))


def test_score_leaves_at_its_moment_and_returns_with_the_next_one(stage: Stage) -> None:
    async def run() -> None:
        async with stage.running() as laurels:
            await create(laurels, segments=("global", "region"))
            await laurels.profiles.change("default", [ProfileChange("ada", region="eu")])
            await submit(laurels, "ada", 50)
            stage.clock.now += 10
            await submit(laurels, "bob", 40)
            # A worse score is newer all the same.
            stage.clock.now += 10
            await submit(laurels, "ada", 1)
            stage.clock.now += HOUR - 11
            assert await shown(laurels) == {"ada": 50, "bob": 40}
            stage.clock.now += 1
            assert await shown(laurels) == {"ada": 50}
            with pytest.raises(NotFound):
                await laurels.reads.rank(held(laurels), Selection(), "bob")
            stage.clock.now += 9
            assert await shown(laurels, segment="region:eu") == {"ada": 50}
            stage.clock.now += 1
            assert await shown(laurels, segment="region:eu") == {}
            assert await shown(laurels) == await shown(laurels, window="daily") == {}
            assert await differences(laurels) == []
            answer = await submit(laurels, "ada", 3)
            assert (answer.score, answer.rank) == (50, 1)
            assert await shown(laurels) == {"ada": 50}
            assert await differences(laurels) == []

    asyncio.run(run())


def test_rank_of_a_write_does_not_count_expired_users(stage: Stage) -> None:
    async def run() -> None:
        async with stage.running() as laurels:
            await create(laurels)
            for number in range(5):
                await submit(laurels, f"u{number}", 100 + number)
            stage.clock.now += HOUR
            assert (await submit(laurels, "ada", 1)).rank == 1

    asyncio.run(run())


def test_scores_expire_while_no_server_runs(stage: Stage) -> None:
    async def run() -> None:
        async with stage.running() as laurels:
            await create(laurels)
            await submit(laurels, "ada", 50)
            stage.clock.now += HOUR // 2
            await submit(laurels, "bob", 40)
        stage.clock.now += HOUR // 2
        async with stage.running() as laurels:
            assert await shown(laurels) == {"bob": 40}
            assert await differences(laurels) == []
            [board] = [board for board in laurels.boards.all() if board.uuid == "b"]
            async for _ in laurels.inspections.rebuild([board]):
                pass
            assert await shown(laurels) == {"bob": 40}

    asyncio.run(run())


def test_late_score_is_due_by_its_own_time(stage: Stage) -> None:
    async def run() -> None:
        async with stage.running() as laurels:
            await create(laurels)
            await submit(laurels, "ada", 50)
            assert await shown(laurels) == {"ada": 50}
            await submit(laurels, "bob", 40, at=stage.clock.now - HOUR + 5)
            assert await shown(laurels) == {"ada": 50, "bob": 40}
            stage.clock.now += 5
            assert await shown(laurels) == {"ada": 50}
            await submit(laurels, "eve", 40, at=stage.clock.now - 2 * HOUR)
            assert await shown(laurels) == {"ada": 50}

    asyncio.run(run())


def test_final_ranks_are_those_at_the_end_of_the_period(stage: Stage) -> None:
    async def run() -> None:
        async with stage.running() as laurels:
            board = await create(laurels)
            period = board.current_period("daily", stage.clock.now)
            assert period is not None
            assert period.end is not None
            stage.clock.now = period.end - HOUR - 5
            await submit(laurels, "gone", 90)
            stage.clock.now = period.end - 5
            await submit(laurels, "ada", 50)
            stage.clock.now = period.end + 24 * HOUR
            await laurels.jobs.run_due()
            assert await shown(laurels, window="daily", period=period.name) == {"ada": 50}
            assert await shown(laurels) == {}
            await laurels.seasons.refreeze(ADMIN, held(laurels), period.name, None, None)
            await laurels.jobs.run_due()
            assert await shown(laurels, window="daily", period=period.name) == {"ada": 50}

    asyncio.run(run())


def test_hides_and_voids_of_expired_users(stage: Stage) -> None:
    async def run() -> None:
        async with stage.running() as laurels:
            await create(laurels)
            await submit(laurels, "ada", 50, event_id="old")
            stage.clock.now += HOUR // 2
            await submit(laurels, "ada", 10, event_id="new")
            stage.clock.now += HOUR
            assert await shown(laurels) == {}
            await laurels.moderation.hide(ADMIN, "default", held(laurels), "ada", Hidden.YES, None, None)
            await laurels.moderation.hide(ADMIN, "default", held(laurels), "ada", Hidden.NO, None, None)
            assert await shown(laurels) == {}
            await laurels.moderation.void(ADMIN, held(laurels), EventFilter(event_ids=["old"]), None, None)
            assert await shown(laurels) == {}
            assert await differences(laurels) == []
            await submit(laurels, "ada", 7)
            assert await shown(laurels) == {"ada": 10}
            stage.clock.now += HOUR // 2
            # Without the newest score, the one before it has expired.
            newest = (await laurels.reads.history(held(laurels), "ada", None, 1))[0].event_id
            await laurels.moderation.void(ADMIN, held(laurels), EventFilter(event_ids=[newest]), None, None)
            assert await shown(laurels) == {}
            assert await differences(laurels) == []

    asyncio.run(run())


@pytest.mark.parametrize("rule", Rule)
def test_random_scores_equal_the_model_on_every_server(stage: Stage, rule: Rule) -> None:
    rng = random.Random(f"{rule}")

    async def run() -> None:
        async with contextlib.AsyncExitStack() as stack:
            servers = [await stack.enter_async_context(stage.running())]
            await create(servers[0], rule=rule, windows=(ALL_TIME,))
            if stage.kind == "shared":
                servers.append(await stack.enter_async_context(stage.running()))
            last: dict[str, int] = {}
            for number in range(120):
                user, now = f"u{rng.randrange(8)}", stage.clock.now
                at = now - rng.choice([0, 0, HOUR // 3])
                await submit(rng.choice(servers), user, rng.randrange(50), at=at, event_id=f"e{number}")
                last[user] = max(at, last.get(user, 0))
                stage.clock.now += rng.choice([1, HOUR // 20, HOUR // 7, HOUR // 2])
                alive = {user for user, at in last.items() if at + HOUR > stage.clock.now}
                if len(servers) == 1 or rng.random() < 0.5:
                    server = servers[0] if len(servers) == 1 else rng.choice(servers)
                    await server.expirer.settle(held(server))
                    if len(servers) > 1:
                        # The other server's late scores are known after a second.
                        stage.clock.now += SECOND_US
                        alive = {user for user, at in last.items() if at + HOUR > stage.clock.now}
                    assert set(await shown(server)) == alive, number
            assert await differences(servers[0]) == []

    asyncio.run(run())
