"""Boards that have not started: their periods begin with them, also if the start is moved."""

import datetime as dt
from pathlib import Path
from typing import Any

import pytest

from laurels.core.board import Status
from laurels.core.limits import DAY_US
from laurels.core.windows import ALL_TIME, Window
from laurels.errors import LaurelsError
from laurels.service.laurels import Laurels
from support.people import DAILY, HOUR, held, play, submit
from support.seasons import create, pass_days, top
from support.services import Stage


@pytest.fixture(params=["embedded", "shared"])
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Stage:
    return Stage(request.param, tmp_path)


async def names(laurels: Laurels, window: str = "daily") -> list[str]:
    """Return the names of all periods that were ever created, oldest first."""
    periods = await laurels.ledger.periods.periods(held(laurels).id, window, None, 1000)
    return [period.name.removeprefix(f"{window}-") for period in reversed(periods)]


def day(at: int) -> str:
    return dt.datetime.fromtimestamp(at / 1e6, dt.UTC).date().isoformat()


async def scores(laurels: Laurels, **selection: Any) -> list[tuple[str, float]]:
    return [(user, score) for _, user, score in await top(laurels, **selection)]


def test_board_that_has_not_started_makes_no_periods(stage: Stage) -> None:
    async def work(laurels: Laurels) -> None:
        now = stage.clock.now
        start = now + 9 * DAY_US + HOUR
        await create(laurels, start_at=start, windows=(DAILY, Window("hourly", cron="0 * * * *"), ALL_TIME))
        expected = [day(start), day(start + DAY_US)]
        assert await names(laurels) == expected
        # The reads show the period with which the board begins.
        assert await scores(laurels) == []
        current = await laurels.seasons.period(held(laurels), "daily", None)
        assert current.name == f"daily-{expected[0]}"
        await pass_days(laurels, stage, 9)
        assert await names(laurels) == expected
        assert len(await names(laurels, "hourly")) == 2
        with pytest.raises(LaurelsError):
            await submit(laurels, ("ada", 1.0))
        stage.clock.now += 2 * HOUR
        await submit(laurels, ("ada", 2.0))
        assert await scores(laurels) == [("ada", 2.0)]
        assert await scores(laurels, window="hourly") == [("ada", 2.0)]
        await pass_days(laurels, stage, 2)
        assert (await names(laurels))[:3] == [day(start + number * DAY_US) for number in range(3)]
        assert await scores(laurels, window="daily", period=f"daily-{expected[0]}") == [("ada", 2.0)]

    play(stage, work)


def test_board_can_start_earlier_than_planned(stage: Stage) -> None:
    async def work(laurels: Laurels) -> None:
        now = stage.clock.now
        await create(laurels, start_at=now + 5 * DAY_US)
        await laurels.boards.change(held(laurels), {}, Status.ACTIVE)
        await submit(laurels, ("ada", 2.0))
        assert await scores(laurels, window="daily") == [("ada", 2.0)]
        await pass_days(laurels, stage, 7)
        # Every day once, without a gap.
        found = await names(laurels)
        assert found[:8] == [day(now + number * DAY_US) for number in range(8)]
        assert await scores(laurels, window="daily", period=f"daily-{day(now)}") == [("ada", 2.0)]

    play(stage, work)


def test_board_can_start_later_than_planned(stage: Stage) -> None:
    async def work(laurels: Laurels) -> None:
        now = stage.clock.now
        first = now + 2 * DAY_US
        await create(laurels, start_at=first)
        start = now + 20 * DAY_US
        await laurels.boards.change(held(laurels), {"start_at": start})
        await pass_days(laurels, stage, 21)
        await submit(laurels, ("ada", 2.0))
        found = await names(laurels)
        # The two that were made for the first plan, and those from the start on.
        assert found[:4] == [day(at) for at in (first, first + DAY_US, start, start + DAY_US)]
        assert await scores(laurels, window="daily") == [("ada", 2.0)]

    play(stage, work)


def test_window_can_be_added_before_the_start(stage: Stage) -> None:
    async def work(laurels: Laurels) -> None:
        start = stage.clock.now + 5 * DAY_US
        board = await create(laurels, start_at=start, windows=(ALL_TIME,))
        await laurels.boards.change(board, {"windows": (ALL_TIME, DAILY)})
        stage.clock.now += 3_000_000
        assert await names(laurels) == [day(start), day(start + DAY_US)]
        await pass_days(laurels, stage, 6)
        await submit(laurels, ("ada", 2.0))
        assert await scores(laurels, window="daily") == [("ada", 2.0)]

    play(stage, work)


def test_board_that_was_ended_before_its_start_can_still_be_changed(stage: Stage) -> None:
    async def work(laurels: Laurels) -> None:
        await create(laurels, start_at=stage.clock.now + DAY_US)
        await laurels.boards.change(held(laurels), {}, Status.ENDED)
        assert held(laurels).start_at == held(laurels).end_at
        assert (await laurels.boards.change(held(laurels), {"name": "Over"})).name == "Over"
        assert (await laurels.reads.counts([held(laurels)])).value == [None]
        with pytest.raises(LaurelsError, match="has not begun"):
            await scores(laurels)

    play(stage, work)
