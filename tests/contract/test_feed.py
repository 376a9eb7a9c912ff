"""The feed between servers, on Redis and on a Redis Cluster."""

import asyncio
import time

import pytest

from laurels.adapters.redis import RedisConnection, RedisFeed, RedisIndex, parse_redis_url
from laurels.core.board import RankStyle
from support.rankings import RANKING, fill, make_rows
from support.stores import (
    RedisServer,
    shared_cluster,
    shared_redis,
)
from support.waiting import until_so


@pytest.mark.parametrize("kind", ["redis", "cluster"])
def test_feed_reaches_every_server_and_reports_missed_messages(kind: str) -> None:
    store = shared_redis() if kind == "redis" else shared_cluster()

    async def run() -> None:
        ledger_id = f"feed-{time.time_ns()}"
        connections = [RedisConnection(parse_redis_url(store.url), 10_000) for _ in range(2)]
        feeds = [RedisFeed(connection) for connection in connections]
        index = RedisIndex(connections[0])
        await index.open(ledger_id)
        heard: list[list[str | None]] = [[], []]
        changed: list[str | None] = []
        for feed, list_of in zip(feeds, heard, strict=True):
            await feed.open(ledger_id)
            feed.subscribe("registry", list_of.append)
        end = feeds[1].subscribe("ranking/1", changed.append)
        # With this many channels, some are on the same shard but in different slots.
        others: list[str | None] = []
        for number in range(2, 30):
            feeds[1].subscribe(f"ranking/{number}", others.append)
        # The first message is None: messages may have been missed before the subscription.
        await until_so(
            lambda: heard == [[None], [None]] and changed == [None] and others == [None] * 28, "feed messages"
        )
        await feeds[0].publish("registry", "hello")
        await until_so(lambda: heard == [[None, "hello"], [None, "hello"]], "feed messages")
        await fill(index)
        await index.apply(RANKING, make_rows(2, version=3), RankStyle.ORDINAL)
        await until_so(lambda: len(changed) == 3, "feed messages")
        revision = await index.revision(RANKING)
        assert isinstance(revision, bytes)
        assert changed[-1] == revision.decode()
        nodes = [store] if isinstance(store, RedisServer) else store.nodes
        for node in nodes:
            node.call("CLIENT", "KILL", "TYPE", "pubsub")
        await until_so(lambda: heard[0][-1] is None and heard[1][-1] is None and changed[-1] is None, "feed messages")
        await feeds[1].publish("registry", "again")
        await until_so(lambda: heard[0][-1] == heard[1][-1] == "again", "feed messages")
        end()
        before = len(changed)
        await asyncio.sleep(0.5)
        await index.apply(RANKING, make_rows(2, version=4), RankStyle.ORDINAL)
        await asyncio.sleep(0.3)
        assert len(changed) == before
        for feed in feeds:
            await feed.close()
        for connection in connections:
            await connection.close()

    asyncio.run(run())
