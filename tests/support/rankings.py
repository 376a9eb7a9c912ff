"""A small ranking, and functions that load it into an index."""

from collections.abc import AsyncIterator

from laurels.core.board import Ranking
from laurels.core.order import Order, Ties
from laurels.core.scores import Standing
from laurels.ports import Index, Position, Row

RANKING = Ranking(1, "global", Order.DESC, Ties.EARLIEST, None)


def make_rows(count: int, version: int = 1) -> list[Row]:
    return [Row(1, f"u{number}", Standing(float(number), 0), version) for number in range(count)]


async def chunks(rows: list[Row]) -> AsyncIterator[list[Row]]:
    yield rows


async def fill(index: Index, count: int = 10) -> None:
    await index.load(RANKING, chunks(make_rows(count)), Position(at="5"))
    assert await index.count(RANKING) == count
