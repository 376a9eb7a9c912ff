"""The StreamStore in PostgreSQL."""

from collections.abc import Sequence

from laurels.adapters.postgres.pool import Connection, PostgresPool, execute
from laurels.adapters.postgres.registry import need_pod
from laurels.adapters.postgres.scores import LAST_SEQ, read_events
from laurels.adapters.postgres.sql import SQL
from laurels.adapters.sql.mapping import (
    PUBLISHED,
    format_cursors,
    read_cursors,
    read_period,
    read_schema,
    schema_values,
)
from laurels.core.schemas import Schema, SchemaState
from laurels.core.windows import Period
from laurels.ports import Cursors, Replay, StoredEvent


class PostgresStreamStore:
    def __init__(self, pool: PostgresPool) -> None:
        self._pool = pool

    async def schemas(self) -> list[Schema]:
        return [read_schema(tuple(columns)) for columns in await self._pool.read(lambda c: c.fetch(SQL["schemas"]))]

    async def put_schema(self, schema: Schema, *, keep_state: bool) -> Schema:
        async def put(connection: Connection) -> Schema:
            await need_pod(connection, schema.pod_id)
            (stored,) = await connection.fetch(SQL["put_schema"], *schema_values(schema), keep_state)
            await connection.execute(SQL["registry_changed"])
            return read_schema(tuple(stored))

        return await self._pool.write(put, repeat=True)

    async def set_schema_state(self, pod_id: str, version: str, state: SchemaState, now: int) -> Schema | None:
        async def change(connection: Connection) -> Schema | None:
            stored = await connection.fetchrow(SQL["set_schema_state"], state.value, now, pod_id, version)
            await connection.execute(SQL["registry_changed"])
            return None if stored is None else read_schema(tuple(stored))

        return await self._pool.write(change, repeat=True)

    async def delete_schema(self, pod_id: str, version: str) -> bool:
        async def delete(connection: Connection) -> bool:
            await connection.execute(SQL["registry_changed"])
            return bool(await execute(connection, SQL["delete_schema"], pod_id, version))

        return await self._pool.write(delete, repeat=False)

    async def replays(self, pod_id: str, record_ids: Sequence[str]) -> list[Replay]:
        found = await self._pool.read(lambda c: c.fetch(SQL["replays"], pod_id, list(record_ids)))
        return [Replay(*columns) for columns in found]

    async def note_replays(self, pod_id: str, replays: Sequence[Replay]) -> None:
        columns = (
            [each.record_id for each in replays],
            [each.outcome for each in replays],
            [each.replayed_at for each in replays],
            [each.reason for each in replays],
        )
        await self._pool.write(lambda c: c.execute(SQL["note_replays"], pod_id, *columns), repeat=True, statements=1)

    async def begin_publishing(self) -> Cursors:
        """See StreamStore.begin_publishing. A cursor is a transaction id and an event number.

        A cursor beyond all transactions comes from another database, of which this one is a copy. Publishing then
        starts again at the current position.
        """

        async def begin(connection: Connection) -> Cursors:
            found = await connection.fetchval(SQL["published_up_to"], PUBLISHED)
            oldest = int(await connection.fetchval(SQL["oldest_xact"]))
            if found is not None and _parse((cursors := read_cursors(found)).every)[0] <= oldest:
                return cursors
            # After all transactions that are certainly finished.
            cursor = f"{oldest - 1}.{LAST_SEQ}"
            await connection.execute(SQL["note_published"] if found else SQL["note_begun"], PUBLISHED, cursor)
            await connection.execute(SQL["skip_past_periods"])
            return Cursors(cursor)

        return await self._pool.write(begin, repeat=True)

    async def accepted_after(
        self,
        cursor: str,
        limit: int,
        *,
        up_to: str | None = None,
        pod_id: str | None = None,
        without: Sequence[str] = (),
    ) -> tuple[list[tuple[int, StoredEvent]], str]:
        """See StreamStore.accepted_after.

        Returns only events of transactions older than every running one, so that no event can appear before them later.
        """
        last = (None, None) if up_to is None else _parse(up_to)
        asked = (*_parse(cursor), limit, *last, list(without), pod_id)
        found = await self._pool.read(lambda c: c.fetch(SQL["accepted_after"], *asked))
        events = read_events(tuple(columns)[2:] for columns in found)
        boards = [columns[1] for columns in found]
        return list(zip(boards, events, strict=True)), f"{found[-1][0]}.{events[-1].seq}" if found else cursor

    async def move_cursors(self, before: Cursors, after: Cursors) -> bool:
        asked = (PUBLISHED, format_cursors(before), format_cursors(after))

        async def move(connection: Connection) -> bool:
            return bool(await execute(connection, SQL["replace_fact"], *asked))

        return await self._pool.write(move, repeat=False)

    async def unpublished_periods(self, limit: int, without: Sequence[str] = ()) -> list[tuple[int, Period]]:
        found = await self._pool.read(lambda c: c.fetch(SQL["unpublished_periods"], limit, list(without)))
        return [(board_id, read_period(columns)) for board_id, *columns in found]

    async def period_published(self, period_id: int) -> None:
        await self._pool.write(lambda c: c.execute(SQL["period_published"], period_id), repeat=True, statements=1)


def _parse(cursor: str) -> tuple[int, int]:
    xact, _, seq = cursor.partition(".")
    return int(xact), int(seq)
