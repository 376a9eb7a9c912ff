"""The Outbox in SQLite."""

import sqlite3
from collections.abc import Sequence

import msgspec

from laurels.adapters.sqlite.registry import need_pod
from laurels.adapters.sqlite.sql import SQL
from laurels.adapters.sqlite.threads import SqliteThreads
from laurels.ports import Message, Webhook


class SqliteOutbox:
    def __init__(self, threads: SqliteThreads) -> None:
        self._threads = threads

    async def put_webhook(self, webhook: Webhook) -> None:
        def put(connection: sqlite3.Connection) -> None:
            need_pod(connection, webhook.pod_id)
            connection.execute(SQL["put_webhook"], msgspec.structs.astuple(webhook))

        await self._threads.write(put)

    async def webhook(self, pod_id: str) -> Webhook | None:
        found = await self._threads.read(lambda c: c.execute(SQL["find_webhook"], (pod_id,)).fetchone())
        return None if found is None else Webhook(*found)

    async def delete_webhook(self, pod_id: str) -> bool:
        def delete(connection: sqlite3.Connection) -> bool:
            connection.execute(SQL["drop_messages"], (pod_id,))
            return bool(connection.execute(SQL["delete_webhook"], (pod_id,)).rowcount)

        return await self._threads.write(delete)

    async def post(self, message: Message) -> None:
        values = msgspec.structs.astuple(message)[:-1]
        await self._threads.write(lambda c: c.execute(SQL["post_message"], values))

    async def due(self, now: int, limit: int, without: Sequence[str] = ()) -> list[Message]:
        def read(connection: sqlite3.Connection) -> list[Message]:
            pods = [pod_id for (pod_id,) in connection.execute(SQL["webhook_pods"]) if pod_id not in without]
            found = [columns for pod in pods for columns in connection.execute(SQL["due_messages"], (pod, now, limit))]
            return [Message(*columns) for _, *columns in sorted(found)]

        return await self._threads.read(read)

    async def delivered(self, message_id: str, now: int) -> None:
        await self._threads.write(lambda c: c.execute(SQL["message_delivered"], (now, message_id)))

    async def failed(self, message_id: str, next_try_at: int, error: str) -> None:
        await self._threads.write(lambda c: c.execute(SQL["message_failed"], (next_try_at, error, message_id)))

    async def waiting(self) -> int:
        return int((await self._threads.read(lambda c: c.execute(SQL["count_messages"]).fetchone()))[0])

    async def forget(self, delivered_before: int, limit: int) -> int:
        return await self._threads.write(
            lambda c: c.execute(SQL["forget_messages"], (delivered_before, limit)).rowcount
        )
