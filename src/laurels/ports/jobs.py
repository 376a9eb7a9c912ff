"""The JobStore: the leases of periodic jobs, and the result of each job's last run.

A job runs on one server at a time, under a lease in the ledger.
"""

from typing import Protocol

from msgspec import Struct


class JobRun(Struct, frozen=True):
    """The last run of a job.

    `owner` is the server that runs it now, or None. `result` is JSON text. `error` is None if the last run succeeded.
    `runs` counts the finished runs.
    """

    name: str
    owner: str | None
    started_at: int
    finished_at: int | None
    result: str | None
    error: str | None
    runs: int


class JobStore(Protocol):
    async def take(self, name: str, owner: str, lease_ms: int, now: int) -> bool:
        """Lease a job, or renew the caller's own lease; return False if another owner's lease has not expired.

        Atomic. The lease is measured by the clock of the ledger's server, so clocks of Laurels servers may differ.
        `now` is stored as the start of the run; a renewal does not change it.
        """

    async def leave(self, name: str, owner: str, now: int, result: str | None, error: str | None) -> None:
        """Store the result of a run and end the lease. Does nothing if the caller no longer holds the lease."""

    async def runs(self) -> list[JobRun]:
        """Return all jobs that ever ran, ordered by name."""
