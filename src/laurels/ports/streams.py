"""The StreamStore: the part of the ledger for Kafka: event schemas, replays of dead letters, publishing."""

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from laurels.core.schemas import Schema, SchemaState
from laurels.core.windows import Period
from laurels.ports.ledger import StoredEvent

# The outcome of a dead letter that somebody discarded.
DISCARDED = "discarded"


class Replay(Struct, frozen=True):
    """A dead letter that was replayed successfully, or discarded (with a reason).

    `record_id` contains its partition, offset and time.
    """

    record_id: str
    outcome: str
    replayed_at: int
    reason: str | None = None


class Cursors(Struct, frozen=True):
    """How far the accepted events have been published.

    `behind` maps pods whose topics could not be written to their own cursors. `every` applies to all other pods.
    """

    every: str
    behind: dict[str, str] = {}


class StreamStore(Protocol):
    # Schemas

    async def schemas(self) -> list[Schema]:
        """Return all schemas of all pods, newest first."""

    async def put_schema(self, schema: Schema, *, keep_state: bool) -> Schema:
        """Create or replace a version of a pod's schema, and return it as stored.

        Keeps the creation time of an existing version, and its state if `keep_state` is set. Raises `NotFound` if the
        pod does not exist. Increases `Ledger.registry_revision`, as do `set_schema_state` and `delete_schema`.
        """

    async def set_schema_state(self, pod_id: str, version: str, state: SchemaState, now: int) -> Schema | None:
        """Set the state of a schema, and return it; None if it does not exist."""

    async def delete_schema(self, pod_id: str, version: str) -> bool:
        """Delete a schema that is a draft or retired; return False if there was none."""

    # Dead letters

    async def replays(self, pod_id: str, record_ids: Sequence[str]) -> list[Replay]:
        """Return the replays of those dead letters that were replayed."""

    async def note_replays(self, pod_id: str, replays: Sequence[Replay]) -> None:
        """Store replays. Idempotent: the first replay of each dead letter stays, but replaces that it was discarded."""

    # Publishing

    async def begin_publishing(self) -> Cursors:
        """Return how far the accepted events have been published.

        The first call starts publishing at the current position: earlier events and periods are never published.
        """

    async def accepted_after(
        self,
        cursor: str,
        limit: int,
        *,
        up_to: str | None = None,
        pod_id: str | None = None,
        without: Sequence[str] = (),
    ) -> tuple[list[tuple[int, StoredEvent]], str]:
        """Return the next accepted events, each with its board id, and the cursor to continue from.

        Leaves out voided events. Following the cursor returns each committed event once, regardless of the order in
        which transactions commit. `up_to`: no events beyond this cursor. `pod_id`: only of this pod. `without`: not of
        these pods.
        """

    async def move_cursors(self, before: Cursors, after: Cursors) -> bool:
        """Store that all events up to the cursors `after` have been published.

        Returns False, and changes nothing, if the stored cursors are not `before`. So if two servers publish at the
        same time, one of them notices, and neither skips events that the other did not publish.
        """

    async def unpublished_periods(self, limit: int, without: Sequence[str] = ()) -> list[tuple[int, Period]]:
        """Return up to `limit` periods that were frozen and not published yet, with their board ids.

        Includes periods that have been replaced or pruned since. `without`: not of these pods.
        """

    async def period_published(self, period_id: int) -> None: ...
