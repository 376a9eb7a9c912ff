"""Boards with seasons for tests, and a function that lets days pass."""

from typing import Any

from laurels.core.board import Board
from laurels.core.windows import ALL_TIME
from laurels.service.laurels import Laurels
from laurels.service.read.reads import Selection
from support.people import DAILY, HOUR, held
from support.services import Stage


async def create(laurels: Laurels, uuid: str = "board", **fields: Any) -> Board:
    board = Board(
        id=0, uuid=uuid, pod_id="default", name=uuid, created_at=0, **({"windows": (DAILY, ALL_TIME)} | fields)
    )
    return await laurels.boards.create(board, None)


async def pass_days(laurels: Laurels, stage: Stage, days: int) -> None:
    """Advance the clock by days, and run the due jobs every hour."""
    for _ in range(days * 24):
        stage.clock.now += HOUR
        await laurels.jobs.run_due()


async def top(laurels: Laurels, uuid: str = "board", **selection: Any) -> list[tuple[int, str, float]]:
    page = (await laurels.reads.top(held(laurels, uuid), Selection(**selection), 0, 100)).value
    return [(place.rank, place.user_id, place.score) for place in page.entries]
