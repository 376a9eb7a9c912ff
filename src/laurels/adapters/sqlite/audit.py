"""The AuditStore in SQLite."""

from collections.abc import Sequence

import msgspec

from laurels.adapters.sql.mapping import audit_values
from laurels.adapters.sqlite.sql import SQL
from laurels.adapters.sqlite.threads import SqliteThreads
from laurels.ports import AuditEntry, AuditFilter


class SqliteAuditStore:
    def __init__(self, threads: SqliteThreads) -> None:
        self._threads = threads

    async def begin(self, entry: AuditEntry) -> int:
        return int(
            await self._threads.write(lambda c: c.execute(SQL["begin_audit"], audit_values(entry)).fetchone()[0])
        )

    async def finish(self, entry: AuditEntry) -> None:
        outcome = (entry.uuid, entry.before, entry.after, entry.status, entry.error, entry.entry_id)
        await self._threads.write(lambda c: c.execute(SQL["finish_audit"], outcome))

    async def entries(self, wanted: AuditFilter, limit: int) -> Sequence[AuditEntry]:
        asked = (*msgspec.structs.astuple(wanted), limit)
        found = await self._threads.read(lambda c: c.execute(SQL["audit_entries"], asked).fetchall())
        return [AuditEntry(*columns) for columns in found]

    async def forget(self, before: int, limit: int) -> int:
        return await self._threads.write(lambda c: c.execute(SQL["forget_audit"], (before, limit)).rowcount)
