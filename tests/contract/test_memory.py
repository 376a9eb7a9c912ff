"""The index in memory, beyond the contract: concurrent builds, and changes published on the feed."""

import asyncio
from collections.abc import AsyncIterator

from laurels.adapters.memory_feed import MemoryFeed
from laurels.adapters.memory_index import MemoryIndex
from laurels.core.board import Ranking, RankStyle
from laurels.core.order import Order, Ties
from laurels.core.people import GLOBAL
from laurels.core.scores import Standing
from laurels.ports import Position, Row
from support.waiting import until_so


def test_concurrent_builds_of_a_ranking_run_in_turn_and_lose_no_rows() -> None:
    async def run() -> None:
        index = MemoryIndex()
        ranking = Ranking(1, GLOBAL, Order.DESC, Ties.EARLIEST, None)
        gates = [asyncio.Event() for _ in range(3)]
        begun: list[int] = []

        async def rows(number: int) -> AsyncIterator[list[Row]]:
            begun.append(number)
            yield []
            await gates[number].wait()

        gates[0].set()
        await index.load(ranking, rows(0), Position())
        builds = [asyncio.create_task(index.load(ranking, rows(number), Position())) for number in (1, 2)]
        for number, build in enumerate(builds, 1):
            await until_so(lambda: begun[-1] == number, f"build {number}")  # noqa: B023
            # The build read the ledger before this row was committed.
            await index.apply(ranking, [Row(1, f"u{number}", Standing(1.0, 0), number)], RankStyle.ORDINAL)
            gates[number].set()
            await build
            assert await index.count(ranking) >= 1
            assert (await index.top(ranking, 0, 9, RankStyle.ORDINAL)).entries[-1].user_id == f"u{number}"

    asyncio.run(run())


def test_memory_index_publishes_every_change_of_a_ranking() -> None:
    async def run() -> None:
        feed = MemoryFeed()
        index = MemoryIndex(feed)
        told: list[str | None] = []
        end = feed.subscribe("ranking/1", told.append)
        ranking = Ranking(1, GLOBAL, Order.DESC, Ties.EARLIEST, None)

        async def nothing() -> AsyncIterator[list[Row]]:
            yield []

        await index.load(ranking, nothing(), Position())
        assert len(told) == 1
        await index.apply(ranking, [Row(1, "ada", Standing(1.0, 0), 1)], RankStyle.ORDINAL)
        assert len(told) == 2
        end()
        await index.apply(ranking, [Row(1, "ada", Standing(2.0, 0), 2)], RankStyle.ORDINAL)
        assert len(told) == 2

    asyncio.run(run())
