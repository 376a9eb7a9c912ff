"""Token buckets that servers share through Redis."""

import asyncio
import uuid

from laurels.adapters.redis import RedisBuckets, RedisConnection, parse_redis_url
from laurels.ports import Spending
from laurels.service.traffic.rates import SHARE_S, Rate, Rates
from support.stores import shared_redis
from support.waiting import until_so


def test_bucket_is_emptied_by_all_servers_and_fills_again() -> None:
    async def run() -> None:
        connection = RedisConnection(parse_redis_url(shared_redis().url), 10_000)
        buckets = RedisBuckets(connection)
        await buckets.open(str(uuid.uuid4()))
        slow, fast = Spending("slow", 4, 0.001, 10), Spending("fast", 10, 1000, 10)
        assert [round(left) for left in await buckets.spend([slow, fast])] == [6, 0]
        assert [round(left) for left in await buckets.spend([slow, slow])] == [2, -2]
        # Never less than the size below zero, so that it fills again soon enough.
        assert round((await buckets.spend([slow._replace(tokens=1000)]))[0]) == -10
        await asyncio.sleep(0.1)
        assert await buckets.spend([fast._replace(tokens=0)]) == [10]
        # A bucket that is full again is not kept.
        name = f"laurels:{{{buckets._tag}}}:fast".encode()  # noqa: SLF001
        await until_so(lambda: not shared_redis().call("EXISTS", name), "the end of the bucket")
        await connection.close()

    asyncio.run(run())


def test_servers_limit_a_caller_together() -> None:
    async def run() -> None:
        ledger_id = str(uuid.uuid4())
        connections = [RedisConnection(parse_redis_url(shared_redis().url), 10_000) for _ in range(3)]
        servers = [Rates(RedisBuckets(connection)) for connection in connections]
        for server in servers:
            await server.open(ledger_id)
        rate = Rate("key", "key/a", 0.001, 12.0)
        taken = 0
        for _ in range(8):
            taken += sum(server.take(rate) == 0 for server in servers)
            await asyncio.sleep(3 * SHARE_S)
        for server, connection in zip(servers, connections, strict=True):
            await server.close()
            await connection.close()
        # Three servers with buckets of their own would take 24.
        assert 12 <= taken <= 15

    asyncio.run(run())
