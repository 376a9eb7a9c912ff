"""Periodic jobs. Each runs on one server at a time, under a lease in the ledger.

A lease expires, so a server that dies does not block a job. All jobs are idempotent: if a server loses its lease
without noticing, work is done twice and nothing else happens.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NamedTuple

import msgspec
import structlog

from laurels.core.ids import new_secret
from laurels.errors import LaurelsError
from laurels.logs import LogLimit
from laurels.metrics import JOB_RUNS, JOB_SUCCESS
from laurels.ports import Clock, JobRun, JobStore
from laurels.settings import JobSettings
from laurels.tasks import end_tasks

log = structlog.get_logger()

# If a server dies during a job, the other servers wait this long before they take the job over.
LEASE_MS = 10_000


class Job(NamedTuple):
    """A periodic job.

    `is_due` is called often and on every server, so it must be cheap. `run` returns what it did, for people to read.
    """

    name: str
    is_due: Callable[[], Awaitable[bool]]
    run: Callable[[], Awaitable[dict[str, Any]]]


class JobRunner:
    def __init__(
        self, store: JobStore, clock: Clock, jobs: list[Job], settings: JobSettings, lease_ms: int = LEASE_MS
    ) -> None:
        self._store = store
        self._clock = clock
        self.jobs = jobs
        self._interval_s = settings.jobs_interval_ms / 1000
        self._lease_ms = lease_ms
        self.owner = new_secret()[:12]
        self._tasks: list[asyncio.Task[None]] = []
        self._failed_log = LogLimit()
        self._busy = {job.name: asyncio.Lock() for job in jobs}

    def start(self) -> None:
        """Start one task per job, so that a slow webhook receiver does not delay a period reset."""
        self._tasks = [asyncio.create_task(self._run_regularly(job), name=f"job {job.name}") for job in self.jobs]

    async def close(self) -> None:
        """Stop at once; the next run of a job continues its work."""
        await end_tasks(self._tasks)

    async def runs(self) -> list[JobRun]:
        return await self._store.runs()

    async def run_due(self) -> None:
        """Run each job that is due and that no other server runs."""
        for job in self.jobs:
            await self._run_if_due(job)

    async def _run_if_due(self, job: Job) -> None:
        """Run a job if it is due and the lease is free; store or log errors instead of raising them."""
        async with self._busy[job.name]:
            try:
                if await job.is_due() and await self._take(job):
                    await self._run(job)
            except LaurelsError as error:
                # The ledger is unreachable, so the error can't be stored.
                log.debug("job_waits", job=job.name, reason=error.message)
            except Exception as error:  # noqa: BLE001 - logged
                self._log_failure(job, f"{type(error).__name__}: {error}", error)

    async def _run_regularly(self, job: Job) -> None:
        while True:
            await self._run_if_due(job)
            await asyncio.sleep(self._interval_s)

    async def _take(self, job: Job) -> bool:
        return await self._store.take(job.name, self.owner, self._lease_ms, self._clock.now_us())

    async def _run(self, job: Job) -> None:
        result: str | None = None
        failure: str | None = None
        try:
            async with self._renewed(job):
                done = await job.run()
            result = msgspec.json.encode(done).decode()
            JOB_SUCCESS.labels(job.name).set(self._clock.now_us() / 1e6)
        except LaurelsError as error:
            failure = error.message
            self._log_failure(job, failure)
        except asyncio.CancelledError:
            with contextlib.suppress(LaurelsError):
                await self._store.leave(job.name, self.owner, self._clock.now_us(), None, "The server was stopped.")
            raise
        except Exception as error:  # noqa: BLE001 - stored and logged
            failure = f"{type(error).__name__}: {error}"
            self._log_failure(job, failure, error)
        JOB_RUNS.labels(job.name, "failed" if failure else "done").inc()
        await self._store.leave(job.name, self.owner, self._clock.now_us(), result, failure)

    def _log_failure(self, job: Job, reason: str, error: Exception | None = None) -> None:
        if (count := self._failed_log.count(job.name)) is not None:
            log.warning("job_failed", job=job.name, reason=reason, count=count, exc_info=error)

    @contextlib.asynccontextmanager
    async def _renewed(self, job: Job) -> AsyncIterator[None]:
        async def renew() -> None:
            while True:
                await asyncio.sleep(self._lease_ms / 3000)
                with contextlib.suppress(LaurelsError):
                    await self._take(job)

        renewing = asyncio.create_task(renew(), name=f"renew {job.name}")
        try:
            yield
        finally:
            await end_tasks([renewing])
