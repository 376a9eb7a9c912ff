"""The part of the ledger that is about events from other systems and for them: schemas, replays, what is published."""

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from laurels.core.schemas import Schema, SchemaState
from laurels.core.windows import Period
from laurels.ports.ledger import StoredEvent


class Replay(Struct, frozen=True):
    """A dead letter that was counted after all. `place`: its partition, offset and time."""

    place: str
    outcome: str
    replayed_at: int


class Cursors(Struct, frozen=True):
    """Up to where accepted events were published. `behind`: pods whose topics could not be written, each up to a cursor
    of its own; `every` is for all others.
    """

    every: str
    behind: dict[str, str] = {}


class Streams(Protocol):
    # Schemas

    async def schemas(self) -> list[Schema]:
        """All, of all pods, the last made first."""

    async def put_schema(self, schema: Schema, *, keep_state: bool) -> Schema:
        """Make or replace a version of a pod's schema; gives it as stored. NotFound if there is no such pod.

        When it was made stays, and its state if asked for. Counts as a change of the registry, as the next two do.
        """

    async def set_schema_state(self, pod_id: str, version: str, state: SchemaState, now: int) -> Schema | None:
        """None if there is no such schema."""

    async def delete_schema(self, pod_id: str, version: str) -> bool:
        """Remove one that is a draft or retired. False if there was none."""

    # Dead letters

    async def replays(self, pod_id: str, places: Sequence[str]) -> list[Replay]:
        """Those of some dead letters that were replayed."""

    async def note_replays(self, pod_id: str, replays: Sequence[Replay]) -> None:
        """The first note of each stays."""

    # What is published

    async def begin_publishing(self) -> Cursors:
        """Where the publishing of accepted events has come to. The first time it begins now: the past is not told."""

    async def accepted_after(
        self,
        cursor: str,
        limit: int,
        *,
        up_to: str | None = None,
        pod_id: str | None = None,
        without: Sequence[str] = (),
    ) -> tuple[list[tuple[int, StoredEvent]], str]:
        """The next accepted events with their board ids, voided ones left out, and where to go on.

        Each event that was committed is given once, however its transaction was overtaken by others. `up_to`: none
        beyond that cursor. Of one pod only, or of all but some.
        """

    async def move_cursors(self, before: Cursors, after: Cursors) -> bool:
        """All up to here was published. False, and nothing is changed, if the cursors are not as they were before.

        So of two servers that publish at the same time one finds out, and neither passes over what the other left.
        """

    async def unpublished_periods(self, limit: int, without: Sequence[str] = ()) -> list[tuple[int, Period]]:
        """Periods that were frozen, whatever became of them since, and not published yet, with their board ids.

        `without`: not of these pods.
        """

    async def period_published(self, period_id: int) -> None: ...
