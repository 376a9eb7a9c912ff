"""The JobStore in SQLite. One process owns the file, so a lease is always granted."""

from laurels.adapters.sqlite.sql import SQL
from laurels.adapters.sqlite.threads import SqliteThreads
from laurels.ports import JobRun


class SqliteJobStore:
    def __init__(self, threads: SqliteThreads) -> None:
        self._threads = threads

    async def take(self, name: str, owner: str, lease_ms: int, now: int) -> bool:
        del lease_ms
        await self._threads.write(lambda c: c.execute(SQL["acquire_job"], {"name": name, "owner": owner, "now": now}))
        return True

    async def leave(self, name: str, owner: str, now: int, result: str | None, error: str | None) -> None:
        await self._threads.write(lambda c: c.execute(SQL["release_job"], (now, result, error, name, owner)))

    async def runs(self) -> list[JobRun]:
        found = await self._threads.read(lambda c: c.execute(SQL["jobs"]).fetchall())
        return [JobRun(*columns) for columns in found]
