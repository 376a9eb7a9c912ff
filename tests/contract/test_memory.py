"""What the index in memory owes beyond the contract: the one on Redis tells the feed, too (test_redis.py)."""

import asyncio
from collections.abc import AsyncIterator

from laurels.adapters.memory_feed import MemoryFeed
from laurels.adapters.memory_index import MemoryIndex
from laurels.core.board import Ranking, RankStyle
from laurels.core.order import Order, Ties
from laurels.core.people import GLOBAL
from laurels.core.scores import Standing
from laurels.ports import Row


def test_an_index_in_memory_tells_of_every_change_that_can_be_seen() -> None:
    async def run() -> None:
        feed = MemoryFeed()
        index = MemoryIndex(feed)
        told: list[str | None] = []
        end = feed.subscribe("ranking/1", told.append)
        ranking = Ranking(1, GLOBAL, Order.DESC, Ties.EARLIEST, None)

        async def nothing() -> AsyncIterator[list[Row]]:
            yield []

        await index.load(ranking, nothing(), "")
        assert len(told) == 1
        await index.apply(ranking, [Row(1, "ada", Standing(1.0, 0), 1)], RankStyle.ORDINAL)
        assert len(told) == 2
        end()
        await index.apply(ranking, [Row(1, "ada", Standing(2.0, 0), 2)], RankStyle.ORDINAL)
        assert len(told) == 2

    asyncio.run(run())
