"""Shorthand for tests of the service: boards with segments, profiles and moderation."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from laurels.core.board import Board
from laurels.core.instants import SECOND_US
from laurels.core.people import ProfileChange
from laurels.core.scores import Rule
from laurels.core.windows import ALL_TIME, Window
from laurels.ports import Role, StoredAction
from laurels.service.boards.caller import Caller
from laurels.service.laurels import Laurels
from laurels.service.moderation.moderation import EventFilter
from laurels.service.read.reads import Selection
from laurels.service.write.submissions import Submission
from support.services import Stage
from support.waiting import until_async

HOUR = 3_600 * SECOND_US
ADMIN = Caller(Role.ADMIN, None, "test")
DAILY = Window("daily")
KINDS = ("global", "region", "circle")

Play = Callable[[Laurels], Awaitable[None]]


def play(stage: Stage, work: Play, **settings: Any) -> None:
    async def run() -> None:
        async with stage.running(**settings) as laurels:
            await work(laurels)

    asyncio.run(run())


async def create(laurels: Laurels, uuid: str = "board", **fields: Any) -> Board:
    board = Board(
        id=0,
        uuid=uuid,
        name=uuid,
        created_at=0,
        **({"pod_id": "default", "windows": (DAILY, ALL_TIME), "segments": KINDS, "rule": Rule.INCREMENT} | fields),
    )
    return await laurels.boards.create(board, None)


def held(laurels: Laurels, uuid: str = "board") -> Board:
    return laurels.boards.to_read(ADMIN, uuid)


async def submit(laurels: Laurels, *scores: tuple[str, float], uuid: str = "board", **fields: Any) -> None:
    for user, score in scores:
        await laurels.submissions.submit(held(laurels, uuid), Submission(user, score, **fields))


async def top(laurels: Laurels, segment: str = "global", uuid: str = "board", **selection: Any) -> list[Any]:
    page = (await laurels.reads.top(held(laurels, uuid), Selection(segment=segment, **selection), 0, 1000)).value
    assert len(page.entries) == page.total
    return [(place.user_id, place.score) for place in page.entries]


async def until_prepared(laurels: Laurels, selection: Selection) -> None:
    """Wait until the index, and not the ledger, answers reads."""

    async def answers() -> bool:
        return not (await laurels.reads.top(held(laurels), selection, 0, 1)).degraded

    await until_async(answers, f"a ranking for {selection}")


async def profile(laurels: Laurels, user: str, **fields: Any) -> None:
    await laurels.profiles.change("default", [ProfileChange(user, **fields)])


async def void(laurels: Laurels, uuid: str = "board", token: str | None = None, **chosen: Any) -> StoredAction:
    return await laurels.moderation.void(ADMIN, held(laurels, uuid), EventFilter(**chosen), "cheated", token)


async def freeze_the_day(laurels: Laurels, stage: Stage) -> str:
    name = next(period.name for period in held(laurels).periods if period.window == "daily")
    for _ in range(26):
        stage.clock.now += HOUR
        await laurels.jobs.run_due()
    return name
