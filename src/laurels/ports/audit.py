"""The audit log: every administrative call, with its caller, its time and what it changed."""

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct


class AuditEntry(Struct, frozen=True):
    """An administrative call. It is stored before the call changes anything, and completed afterwards.

    `status` None: the server stopped before the call was answered. `before` and `after` are JSON objects of the fields
    that the call changed. `path` is a JSON object of the names in the path, without the board and the user.
    """

    entry_id: int
    at: int
    pod_id: str | None
    uuid: str | None
    user_id: str | None
    key_id: str
    role: str
    address: str
    request_id: str
    route: str
    path: str
    before: str | None = None
    after: str | None = None
    status: int | None = None
    error: str | None = None


class AuditFilter(Struct, frozen=True):
    """Which entries to list. None: all. `before_id`: only entries that are older than this one."""

    pod_id: str | None = None
    uuid: str | None = None
    user_id: str | None = None
    key_id: str | None = None
    since: int | None = None
    until: int | None = None
    before_id: int | None = None


class AuditStore(Protocol):
    async def begin(self, entry: AuditEntry) -> int:
        """Store an entry, and return its id. The entry's own `entry_id` is ignored."""

    async def finish(self, entry: AuditEntry) -> None:
        """Store the board, the changes and the outcome of an entry."""

    async def entries(self, wanted: AuditFilter, limit: int) -> Sequence[AuditEntry]:
        """Return entries, newest first."""

    async def forget(self, before: int, limit: int) -> int:
        """Remove up to `limit` entries from before an instant; return how many."""
