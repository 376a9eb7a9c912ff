"""The Outbox in PostgreSQL."""

from collections.abc import Sequence

import msgspec

from laurels.adapters.postgres.pool import Connection, PostgresPool, execute
from laurels.adapters.postgres.registry import need_pod
from laurels.adapters.postgres.sql import SQL
from laurels.ports import Message, Webhook


class PostgresOutbox:
    def __init__(self, pool: PostgresPool) -> None:
        self._pool = pool

    async def put_webhook(self, webhook: Webhook) -> None:
        async def put(connection: Connection) -> None:
            await need_pod(connection, webhook.pod_id)
            await connection.execute(SQL["put_webhook"], *msgspec.structs.astuple(webhook))

        await self._pool.write(put, repeat=True)

    async def webhook(self, pod_id: str) -> Webhook | None:
        found = await self._pool.read(lambda c: c.fetchrow(SQL["find_webhook"], pod_id))
        return None if found is None else Webhook(*found)

    async def delete_webhook(self, pod_id: str) -> bool:
        async def delete(connection: Connection) -> bool:
            await connection.execute(SQL["drop_messages"], pod_id)
            return bool(await execute(connection, SQL["delete_webhook"], pod_id))

        return await self._pool.write(delete, repeat=False)

    async def post(self, message: Message) -> None:
        values = msgspec.structs.astuple(message)[:-1]
        await self._pool.write(lambda c: c.execute(SQL["post_message"], *values), repeat=True, statements=1)

    async def due(self, now: int, limit: int, without: Sequence[str] = ()) -> list[Message]:
        found = await self._pool.read(lambda c: c.fetch(SQL["due_messages"], now, limit, list(without)))
        return [Message(*columns) for columns in found]

    async def delivered(self, message_id: str, now: int) -> None:
        await self._pool.write(
            lambda c: c.execute(SQL["message_delivered"], now, message_id), repeat=True, statements=1
        )

    async def failed(self, message_id: str, next_try_at: int, error: str) -> None:
        await self._pool.write(
            lambda c: c.execute(SQL["message_failed"], next_try_at, error, message_id), repeat=True, statements=1
        )

    async def waiting(self) -> int:
        return int(await self._pool.read(lambda c: c.fetchval(SQL["count_messages"])))

    async def forget(self, delivered_before: int, limit: int) -> int:
        return await self._pool.write(
            lambda c: execute(c, SQL["forget_messages"], delivered_before, limit), repeat=True, statements=1
        )
