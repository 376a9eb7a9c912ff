"""What is done now and then, once for all servers. Every server may; the one that leases a job in the ledger does.

A lease ends by itself, so nobody can keep one by dying. Everything that a job does may be done twice: a lease that was
lost without notice costs work and nothing else.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NamedTuple

import msgspec
import structlog

from laurels.core.ids import new_secret
from laurels.errors import LaurelsError
from laurels.metrics import JOB_RUNS, JOB_SUCCESS
from laurels.ports import Clock, JobBook, JobRun
from laurels.tasks import end_tasks

log = structlog.get_logger()


class Job(NamedTuple):
    """`is_due` is asked often, on every server, so it is cheap. `run` gives what it did, for people to read."""

    name: str
    is_due: Callable[[], Awaitable[bool]]
    run: Callable[[], Awaitable[dict[str, Any]]]


class Jobs:
    def __init__(self, book: JobBook, clock: Clock, jobs: list[Job], *, interval_ms: int, lease_ms: int) -> None:
        self._book = book
        self._clock = clock
        self._jobs = jobs
        self._interval_s = interval_ms / 1000
        self._lease_ms = lease_ms
        self._owner = new_secret()[:12]
        self._tasks: list[asyncio.Task[None]] = []
        self._busy = {job.name: asyncio.Lock() for job in jobs}

    def start(self) -> None:
        """Each by itself: a receiver that is slow must not keep a reset waiting."""
        self._tasks = [asyncio.create_task(self._run_regularly(job), name=f"job {job.name}") for job in self._jobs]

    async def close(self) -> None:
        """Stop at once: whatever is cut off is gone on with."""
        await end_tasks(self._tasks)

    async def runs(self) -> list[JobRun]:
        return await self._book.runs()

    async def run_due(self) -> None:
        """Run each job that is due, if nobody else does."""
        for job in self._jobs:
            await self._run_if_due(job)

    async def _run_if_due(self, job: Job) -> None:
        """Errors are written down, and don't stop the next one."""
        async with self._busy[job.name]:
            try:
                if await job.is_due() and await self._take(job):
                    await self._run(job)
            except LaurelsError as error:
                # The ledger is away: there is nothing to write it down in.
                log.debug("job_waits", job=job.name, reason=error.message)
            except Exception:
                log.exception("job_failed", job=job.name)

    async def _run_regularly(self, job: Job) -> None:
        while True:
            await self._run_if_due(job)
            await asyncio.sleep(self._interval_s)

    async def _take(self, job: Job) -> bool:
        return await self._book.take(job.name, self._owner, self._lease_ms, self._clock.now_us())

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
            log.warning("job_failed", job=job.name, reason=failure)
        except asyncio.CancelledError:
            with contextlib.suppress(LaurelsError):
                await self._book.leave(job.name, self._owner, self._clock.now_us(), None, "The server was stopped.")
            raise
        except Exception as error:
            failure = f"{type(error).__name__}: {error}"
            log.exception("job_failed", job=job.name)
        JOB_RUNS.labels(job.name, "failed" if failure else "done").inc()
        await self._book.leave(job.name, self._owner, self._clock.now_us(), result, failure)

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
