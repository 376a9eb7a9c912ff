"""Token buckets on Redis, all in one slot, so that one script reads and changes many of them."""

from collections.abc import Sequence

from laurels.adapters.redis.connection import RedisConnection, load_scripts
from laurels.ports import Spending


class RedisBuckets:
    def __init__(self, connection: RedisConnection) -> None:
        self._connection = connection
        self._script = load_scripts()["spend"]
        self._tag = ""

    async def open(self, ledger_id: str) -> None:
        self._tag = f"{ledger_id}/buckets"
        await self._connection.open()

    async def spend(self, spendings: Sequence[Spending]) -> list[float]:
        args = [part for each in spendings for part in (each.bucket, each.tokens, each.per_s, each.size)]
        left = await self._connection.run(self._tag, self._script, [f"laurels:{{{self._tag}}}:meta".encode()], args)
        return [float(each) for each in left]
