"""The audit log: who changed what, when and from where.

An entry is stored before the call does anything, so a change without an entry does not exist, even if the server dies
during the call. The outcome and the changed fields are added afterwards.
"""

import asyncio
from collections.abc import Sequence

import structlog
from msgspec.structs import replace

from laurels.core.limits import DAY_US
from laurels.errors import LaurelsError
from laurels.ports import AuditEntry, AuditFilter, Clock, Ledger

log = structlog.get_logger()

FORGET_AT_ONCE = 5000


class AuditLog:
    def __init__(self, ledger: Ledger, clock: Clock, keep_days: int) -> None:
        self._ledger = ledger
        self._clock = clock
        self._keep_days = keep_days

    async def begin(self, entry: AuditEntry) -> AuditEntry:
        """Store an entry with the current time, and return it with its id."""
        entry = replace(entry, at=self._clock.now_us())
        return replace(entry, entry_id=await self._ledger.audit.begin(entry))

    async def finish(self, entry: AuditEntry) -> None:
        """Store the outcome of a call. The call is done, so a failure is logged and not raised."""
        try:
            await self._ledger.audit.finish(entry)
        except LaurelsError as error:
            log.warning(
                "audit_not_finished", entry=entry.entry_id, status=entry.status, error=entry.error, reason=error.message
            )

    async def entries(self, wanted: AuditFilter, limit: int) -> Sequence[AuditEntry]:
        return await self._ledger.audit.entries(wanted, limit)

    async def forget(self) -> int:
        """Remove the entries that are past their retention time, and return how many."""
        if not self._keep_days:
            return 0
        forgotten = 0
        before = self._clock.now_us() - self._keep_days * DAY_US
        while count := await self._ledger.audit.forget(before, FORGET_AT_ONCE):
            forgotten += count
            await asyncio.sleep(0)
        return forgotten
