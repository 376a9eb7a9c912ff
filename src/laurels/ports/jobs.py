"""Who does what is to be done once for all servers: a lease in the ledger, and what came of the last run."""

from typing import Protocol

from msgspec import Struct


class JobRun(Struct, frozen=True):
    """A job as it was last run. `result` is JSON text; `error` None: the last run went well."""

    name: str
    owner: str | None
    started_at: int
    finished_at: int | None
    result: str | None
    error: str | None
    runs: int


class JobBook(Protocol):
    async def take(self, name: str, owner: str, lease_ms: int, now: int) -> bool:
        """Lease a job, or renew one's own lease. False: another has it, whose lease is not over.

        The lease goes by the clock of the ledger's own server, so that the clocks of ours play no part.
        """

    async def leave(self, name: str, owner: str, now: int, result: str | None, error: str | None) -> None:
        """Write down what came of it and end the lease, if it is still one's own."""

    async def runs(self) -> list[JobRun]:
        """All jobs that were ever run, by name."""
