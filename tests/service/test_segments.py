"""Segments that are added to a board later: every user is ranked in them, whatever happens meanwhile."""

import asyncio
import random
from typing import Any

import pytest

from laurels.core.board import Board
from laurels.core.instants import SECOND_US
from laurels.core.people import Hidden, ProfileChange
from laurels.core.rewards import Between, Reward
from laurels.core.windows import ALL_TIME, Window
from laurels.errors import Invalid, Unavailable
from laurels.ports import Role
from laurels.service.boards.caller import Caller
from laurels.service.laurels import Laurels
from laurels.service.people import segment_filler
from laurels.service.read.reads import Selection
from laurels.service.write.submissions import Submission
from support.services import Stage, differences

ADMIN = Caller(Role.ADMIN, None, "test")
DAY = 86_400 * SECOND_US
REGIONS = ("eu", "us", "asia")


async def create(laurels: Laurels, **fields: Any) -> Board:
    board = Board(id=0, uuid="b", pod_id="default", name="b", created_at=0, **fields)
    return await laurels.boards.create(board, None)


def held(laurels: Laurels) -> Board:
    return laurels.boards.to_read(ADMIN, "b")


async def ranked(laurels: Laurels, segment: str) -> list[str]:
    page = await laurels.reads.top(held(laurels), Selection(segment=segment), 0, 1000)
    return [entry.user_id for entry in page.value.entries]


async def add_segments(laurels: Laurels, *kinds: str) -> None:
    await laurels.boards.change(held(laurels), {"segments": ("global", *kinds)})


def test_every_user_is_in_the_segments_that_are_added(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_filler, "USERS_PER_STEP", 7)
    rng = random.Random(4)

    async def run() -> None:
        async with stage.running() as laurels:
            await create(laurels, windows=(ALL_TIME, Window("daily")))
            regions = {f"u{number:02}": rng.choice((*REGIONS, None)) for number in range(60)}
            for number, (user, region) in enumerate(regions.items()):
                if region is not None:
                    change = ProfileChange(user, region=region, circles=(f"c{number % 3}",))
                    await laurels.profiles.change("default", [change])
                await laurels.submissions.submit(held(laurels), Submission(user, 1000 - number))
            await laurels.moderation.hide(ADMIN, "default", held(laurels), "u05", Hidden.YES, None, None)

            await add_segments(laurels, "region", "circle")
            board = held(laurels)
            assert (board.segments, board.filling) == (("global", "region", "circle"), ("region", "circle"))
            with pytest.raises(Unavailable) as caught:
                await ranked(laurels, "region:eu")
            assert caught.value.code == "catching_up"
            assert await differences(laurels) == []

            async def play() -> None:
                for number in range(40):
                    user = f"u{rng.randrange(70):02}"
                    regions[user] = rng.choice(REGIONS)
                    await laurels.profiles.change("default", [ProfileChange(user, region=regions[user])])
                    # Rank better than all others before, so that the order of the users stays that of their scores.
                    await laurels.submissions.submit(held(laurels), Submission(user, 2000 + number))

            await asyncio.gather(play(), laurels.jobs.run_due())
            assert held(laurels).filling == ()
            everybody = await ranked(laurels, "global")
            for region in REGIONS:
                expected = [user for user in everybody if regions[user] == region]
                assert await ranked(laurels, f"region:{region}") == expected
            assert len(await ranked(laurels, "circle:c1")) > 10
            assert await differences(laurels) == []
        async with stage.running() as laurels:
            assert await ranked(laurels, "region:eu") == [user for user in everybody if regions[user] == "eu"]
            assert await differences(laurels) == []

    asyncio.run(run())


def test_filling_goes_on_after_a_restart(stage: Stage) -> None:
    async def run() -> None:
        async with stage.running() as laurels:
            await create(laurels)
            await laurels.profiles.change("default", [ProfileChange("ada", region="eu")])
            await laurels.submissions.submit(held(laurels), Submission("ada", 5))
            await add_segments(laurels, "region")
        async with stage.running() as laurels:
            assert held(laurels).filling == ("region",)
            await laurels.jobs.run_due()
            assert await ranked(laurels, "region:eu") == ["ada"]
            assert held(laurels).filling == ()

    asyncio.run(run())


def test_segments_are_not_removed(stage: Stage) -> None:
    async def run() -> None:
        async with stage.running() as laurels:
            await create(laurels, segments=("global", "region"))
            with pytest.raises(Invalid) as caught:
                await add_segments(laurels, "circle")
            assert (caught.value.code, caught.value.field) == ("immutable_field", "segments")

    asyncio.run(run())


def test_best_in_each_circle_is_rewarded_once(stage: Stage) -> None:
    async def run() -> None:
        async with stage.running() as laurels:
            await create(
                laurels,
                segments=("global", "circle"),
                windows=(Window("daily"),),
                rewards=(Reward("guild", "banner", ranks=Between(1, 1), segment="circle"),),
            )
            circles = {"ada": ("x", "y"), "bob": ("y", "z"), "eve": ("z",), "kim": ("x",)}
            for score, (user, own) in enumerate(circles.items()):
                await laurels.profiles.change("default", [ProfileChange(user, circles=own)])
                await laurels.submissions.submit(held(laurels), Submission(user, 100 - score))
            period = held(laurels).current_period("daily", stage.clock.now)
            assert period is not None
            stage.clock.now += 2 * DAY
            await laurels.jobs.run_due()
            grants = await laurels.ledger.periods.grants_of_period(period.id, (0, ""), 10)
            # Ada leads x and y, Bob leads z.
            assert [(each.user_id, each.rank, each.segment) for each in grants] == [
                ("ada", 1, "circle:x"),
                ("bob", 1, "circle:z"),
            ]

    asyncio.run(run())
