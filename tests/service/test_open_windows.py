"""Windows that are open for a part of the time between two resets: a weekend, an evening."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from laurels.core.board import Board
from laurels.core.instants import to_us
from laurels.core.rewards import Between, Reward
from laurels.core.windows import ALL_TIME, Window
from laurels.errors import Conflict, Invalid, NotFound
from laurels.ports import Role
from laurels.service.boards.caller import Caller
from laurels.service.laurels import Laurels
from laurels.service.read.reads import Selection
from laurels.service.write.submissions import Submission
from support.services import Stage, differences

ADMIN = Caller(Role.ADMIN, None, "test")
# Friday 18:00 to Sunday 18:00.
WEEKEND = Window("weekend", cron="0 18 * * fri", open_s=48 * 3600)
# A Wednesday in the future, because PostgreSQL has its own clock.
START = datetime(2030, 3, 6, 12, tzinfo=UTC)
FRIDAY = datetime(2030, 3, 8, 18, tzinfo=UTC)


async def create(laurels: Laurels, windows: tuple[Window, ...] = (WEEKEND,), **fields: Any) -> Board:
    board = Board(id=0, uuid="b", pod_id="default", name="b", created_at=0, windows=windows, **fields)
    return await laurels.boards.create(board, None)


def held(laurels: Laurels) -> Board:
    return laurels.boards.to_read(ADMIN, "b")


async def top(laurels: Laurels, **selection: Any) -> tuple[str, dict[str, float]]:
    shown = await laurels.reads.top(held(laurels), Selection(**selection), 0, 100)
    assert shown.period is not None
    return shown.period.name, {entry.user_id: entry.score for entry in shown.value.entries}


async def at(stage: Stage, laurels: Laurels, moment: datetime) -> None:
    stage.clock.now = to_us(moment)
    await laurels.jobs.run_due()


def test_weekend_takes_scores_only_while_it_is_open(stage: Stage) -> None:
    async def run() -> None:
        stage.clock.now = to_us(START)
        async with stage.running() as laurels:
            await create(laurels, rewards=(Reward("cup", "gold", ranks=Between(1, 1)),))
            with pytest.raises(Conflict) as caught:
                await laurels.submissions.submit(held(laurels), Submission("ada", 5))
            assert caught.value.code == "window_closed"
            assert FRIDAY.isoformat() in caught.value.message
            with pytest.raises(NotFound):
                await top(laurels)

            await at(stage, laurels, FRIDAY)
            await laurels.submissions.submit(held(laurels), Submission("ada", 5))
            await at(stage, laurels, FRIDAY + timedelta(hours=48, microseconds=-1))
            await laurels.submissions.submit(held(laurels), Submission("bob", 7))
            await at(stage, laurels, FRIDAY + timedelta(hours=48))
            with pytest.raises(Conflict) as caught:
                await laurels.submissions.submit(held(laurels), Submission("eve", 9))
            assert caught.value.code == "window_closed"
            # A late score of the weekend counts within the grace time.
            late = Submission("kim", 6, at=to_us(FRIDAY + timedelta(hours=47)))
            await laurels.submissions.submit(held(laurels), late)

            # The result is final on Sunday, and shown until the next Friday.
            for days in (2, 3, 6):
                await at(stage, laurels, FRIDAY + timedelta(days=days, minutes=5))
                assert await top(laurels) == ("weekend-2030-03-08T1800", {"bob": 7, "kim": 6, "ada": 5})
            final = await laurels.seasons.period(held(laurels), "weekend", "current")
            assert final.is_final
            assert final.end == to_us(FRIDAY + timedelta(hours=48))
            grants = await laurels.seasons.rewards_of_period(held(laurels), final, (0, ""), 10)
            assert [each.grant.user_id for each in grants] == ["bob"]

            await at(stage, laurels, FRIDAY + timedelta(days=7))
            await laurels.submissions.submit(held(laurels), Submission("ada", 1))
            assert await top(laurels) == ("weekend-2030-03-15T1800", {"ada": 1})
            assert (await top(laurels, period="previous"))[1]["bob"] == 7
            assert await differences(laurels) == []

    asyncio.run(run())


def test_other_windows_take_scores_while_one_is_closed(stage: Stage) -> None:
    async def run() -> None:
        stage.clock.now = to_us(START)
        async with stage.running() as laurels:
            await create(laurels, (WEEKEND, ALL_TIME))
            accepted = await laurels.submissions.submit(held(laurels), Submission("ada", 5))
            assert ([each.period.window for each in accepted.counted], accepted.late) == (["all"], ("weekend",))
            await at(stage, laurels, FRIDAY)
            accepted = await laurels.submissions.submit(held(laurels), Submission("ada", 6))
            assert [each.period.window for each in accepted.counted] == ["weekend", "all"]
            assert await differences(laurels) == []

    asyncio.run(run())


def test_weekend_can_be_closed_early_and_extended(stage: Stage) -> None:
    async def run() -> None:
        stage.clock.now = to_us(START)
        async with stage.running() as laurels:
            await create(laurels)
            await at(stage, laurels, FRIDAY + timedelta(hours=1))
            name = (await laurels.seasons.period(held(laurels), None, None)).name
            following = to_us(FRIDAY + timedelta(days=7))
            with pytest.raises(Invalid):
                await laurels.seasons.extend(held(laurels), name, following)
            later = to_us(FRIDAY + timedelta(days=3))
            assert (await laurels.seasons.extend(held(laurels), name, later)).end == later
            await at(stage, laurels, FRIDAY + timedelta(days=2, hours=12))
            await laurels.submissions.submit(held(laurels), Submission("ada", 5))
            await at(stage, laurels, FRIDAY + timedelta(days=3, hours=1))
            with pytest.raises(Conflict):
                await laurels.submissions.submit(held(laurels), Submission("ada", 6))
            await at(stage, laurels, FRIDAY + timedelta(days=7, hours=1))
            period = await laurels.seasons.period(held(laurels), None, None)
            assert period.start == following
            await laurels.seasons.close_now(held(laurels), period.name)
            await at(stage, laurels, FRIDAY + timedelta(days=7, hours=2))
            rest = await laurels.seasons.period(held(laurels), None, None)
            assert rest.name == f"{period.name}.2"
            assert rest.end == to_us(FRIDAY + timedelta(days=9))

    asyncio.run(run())


def test_server_that_was_away_for_weeks_makes_no_weekends_that_nobody_could_play(stage: Stage) -> None:
    async def run() -> None:
        stage.clock.now = to_us(START)
        async with stage.running() as laurels:
            await create(laurels, (Window("minute", cron="*/2 * * * *", open_s=60),))
        stage.clock.now = to_us(START + timedelta(days=30, seconds=10))
        async with stage.running() as laurels:
            await laurels.jobs.run_due()
            await laurels.submissions.submit(held(laurels), Submission("ada", 5))
            stage.clock.now += 60_000_000
            with pytest.raises(Conflict) as caught:
                await laurels.submissions.submit(held(laurels), Submission("ada", 5))
            assert caught.value.code == "window_closed"

    asyncio.run(run())
