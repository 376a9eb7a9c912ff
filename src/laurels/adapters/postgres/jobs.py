"""The JobStore in PostgreSQL. Its clock measures leases, so the lease of a server that died or hangs expires."""

from laurels.adapters.postgres.pool import PostgresPool
from laurels.adapters.postgres.sql import SQL
from laurels.ports import JobRun


class PostgresJobStore:
    def __init__(self, pool: PostgresPool) -> None:
        self._pool = pool

    async def take(self, name: str, owner: str, lease_ms: int, now: int) -> bool:
        taken = await self._pool.write(
            lambda c: c.fetchval(SQL["acquire_job"], name, owner, lease_ms, now), repeat=True, statements=1
        )
        return taken is not None

    async def leave(self, name: str, owner: str, now: int, result: str | None, error: str | None) -> None:
        await self._pool.write(
            lambda c: c.execute(SQL["release_job"], now, result, error, name, owner), repeat=True, statements=1
        )

    async def runs(self) -> list[JobRun]:
        return [JobRun(*columns) for columns in await self._pool.read(lambda c: c.fetch(SQL["jobs"]))]
