"""The StreamStore in SQLite."""

import json
import sqlite3
from collections.abc import Sequence

from laurels.adapters.sql.mapping import (
    PUBLISHED,
    format_cursors,
    read_cursors,
    read_period,
    read_schema,
    schema_values,
)
from laurels.adapters.sqlite.registry import need_pod
from laurels.adapters.sqlite.scores import read_events
from laurels.adapters.sqlite.sql import SQL
from laurels.adapters.sqlite.threads import SqliteThreads
from laurels.core.schemas import Schema, SchemaState
from laurels.core.windows import Period
from laurels.ports import Cursors, Replay, StoredEvent


class SqliteStreamStore:
    def __init__(self, threads: SqliteThreads) -> None:
        self._threads = threads

    async def schemas(self) -> list[Schema]:
        return [
            read_schema(columns) for columns in await self._threads.read(lambda c: c.execute(SQL["schemas"]).fetchall())
        ]

    async def put_schema(self, schema: Schema, *, keep_state: bool) -> Schema:
        def put(connection: sqlite3.Connection) -> Schema:
            need_pod(connection, schema.pod_id)
            stored = connection.execute(SQL["put_schema"], (*schema_values(schema), keep_state)).fetchone()
            connection.execute(SQL["registry_changed"])
            return read_schema(stored)

        return await self._threads.write(put)

    async def set_schema_state(self, pod_id: str, version: str, state: SchemaState, now: int) -> Schema | None:
        def change(connection: sqlite3.Connection) -> Schema | None:
            stored = connection.execute(SQL["set_schema_state"], (state.value, now, pod_id, version)).fetchone()
            connection.execute(SQL["registry_changed"])
            return None if stored is None else read_schema(stored)

        return await self._threads.write(change)

    async def delete_schema(self, pod_id: str, version: str) -> bool:
        def delete(connection: sqlite3.Connection) -> bool:
            connection.execute(SQL["registry_changed"])
            return bool(connection.execute(SQL["delete_schema"], (pod_id, version)).rowcount)

        return await self._threads.write(delete)

    async def replays(self, pod_id: str, record_ids: Sequence[str]) -> list[Replay]:
        asked = (pod_id, json.dumps(list(record_ids)))
        found = await self._threads.read(lambda c: c.execute(SQL["replays"], asked).fetchall())
        return [Replay(*columns) for columns in found]

    async def note_replays(self, pod_id: str, replays: Sequence[Replay]) -> None:
        rows = [(pod_id, each.record_id, each.outcome, each.replayed_at, each.reason) for each in replays]
        await self._threads.write(lambda c: c.executemany(SQL["note_replay"], rows))

    async def begin_publishing(self) -> Cursors:
        def begin(connection: sqlite3.Connection) -> Cursors:
            found = connection.execute(SQL["find_fact"], (PUBLISHED,)).fetchone()
            if found is not None:
                return read_cursors(str(found[0]))
            cursor = str(connection.execute(SQL["last_event"]).fetchone()[0])
            connection.execute(SQL["skip_past_periods"])
            connection.execute(SQL["put_fact"], (PUBLISHED, cursor))
            return Cursors(cursor)

        return await self._threads.write(begin)

    async def accepted_after(
        self,
        cursor: str,
        limit: int,
        *,
        up_to: str | None = None,
        pod_id: str | None = None,
        without: Sequence[str] = (),
    ) -> tuple[list[tuple[int, StoredEvent]], str]:
        """See StreamStore.accepted_after. With one writer, events are committed in the order of arrival."""
        asked = {
            "after": int(cursor),
            "up_to": None if up_to is None else int(up_to),
            "pod": pod_id,
            "without": json.dumps(list(without)),
            "limit": limit,
        }
        found = await self._threads.read(lambda c: c.execute(SQL["accepted_after"], asked).fetchall())
        events = read_events(columns[1:] for columns in found)
        boards = [columns[0] for columns in found]
        return list(zip(boards, events, strict=True)), str(events[-1].seq) if events else cursor

    async def move_cursors(self, before: Cursors, after: Cursors) -> bool:
        asked = (PUBLISHED, format_cursors(before), format_cursors(after))
        return bool(await self._threads.write(lambda c: c.execute(SQL["replace_fact"], asked).rowcount))

    async def unpublished_periods(self, limit: int, without: Sequence[str] = ()) -> list[tuple[int, Period]]:
        asked = (limit, json.dumps(list(without)))
        found = await self._threads.read(lambda c: c.execute(SQL["unpublished_periods"], asked).fetchall())
        return [(board_id, read_period(columns)) for board_id, *columns in found]

    async def period_published(self, period_id: int) -> None:
        await self._threads.write(lambda c: c.execute(SQL["period_published"], (period_id,)))
