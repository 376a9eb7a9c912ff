"""The AuditStore in PostgreSQL."""

from collections.abc import Sequence

import msgspec

from laurels.adapters.postgres.pool import PostgresPool, execute
from laurels.adapters.postgres.sql import SQL
from laurels.adapters.sql.mapping import audit_values
from laurels.ports import AuditEntry, AuditFilter


class PostgresAuditStore:
    def __init__(self, pool: PostgresPool) -> None:
        self._pool = pool

    async def begin(self, entry: AuditEntry) -> int:
        values = audit_values(entry)
        # A repetition may leave an entry without an outcome. That is better than to refuse the call.
        begun = await self._pool.write(lambda c: c.fetchval(SQL["begin_audit"], *values), repeat=True, statements=1)
        return int(begun)

    async def finish(self, entry: AuditEntry) -> None:
        outcome = (entry.uuid, entry.before, entry.after, entry.status, entry.error, entry.entry_id)
        await self._pool.write(lambda c: c.execute(SQL["finish_audit"], *outcome), repeat=True, statements=1)

    async def entries(self, wanted: AuditFilter, limit: int) -> Sequence[AuditEntry]:
        asked = (*msgspec.structs.astuple(wanted), limit)
        found = await self._pool.read(lambda c: c.fetch(SQL["audit_entries"], *asked))
        return [AuditEntry(*columns) for columns in found]

    async def forget(self, before: int, limit: int) -> int:
        return await self._pool.write(
            lambda c: execute(c, SQL["forget_audit"], before, limit), repeat=True, statements=1, long=True
        )
