"""The frames that those who look at a board are sent."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, UnsetType

from laurels.core.board import Status
from laurels.http.answers import Entry, Problem
from laurels.http.fields import Answer, Instant

ViewName = Annotated[
    Literal["top", "around"], Meta(description="Each view of a subscription has a sequence of its own.")
]
FrameId = Annotated[str, Meta(description="Names the frame: a subscription that comes back goes on after it.")]


class LiveBoard(Answer):
    """What is shown of a board beside its ranks. It takes scores from `startTime` until `endTime`; null: always."""

    name: str
    status: Status
    window: str
    period: str
    segment: str
    start_time: Instant | None
    end_time: Instant | None


class _Whole(Answer, kw_only=True):
    view: ViewName
    id: FrameId
    sequence: int
    board: LiveBoard
    users: list[Entry]
    total_users: int
    degraded: bool | UnsetType = UNSET


class SnapshotFrame(_Whole, kw_only=True, tag_field="type", tag="snapshot"):
    """All there is to see. It replaces whatever was there."""


class ResetFrame(_Whole, kw_only=True, tag_field="type", tag="reset"):
    """The same, for another period is shown from now on."""

    previous_period: str


class LiveRow(Entry, kw_only=True):
    position: Annotated[int, Meta(description="The place in the list that this is now, from 0.")]


class ChangesFrame(Answer, tag_field="type", tag="changes"):
    """What is different from the frame before: put each row at its position, then cut the list to its length."""

    view: ViewName
    id: FrameId
    sequence: int
    rows: list[LiveRow]
    length: int
    total_users: int
    board: LiveBoard | UnsetType = UNSET
    degraded: bool | UnsetType = UNSET


class HeartbeatFrame(Answer, tag_field="type", tag="heartbeat"):
    """Nothing has changed, and the connection lives."""


class ProblemFrame(Answer, tag_field="type", tag="problem"):
    """Why the subscription ends."""

    problem: Problem


LiveFrame = SnapshotFrame | ResetFrame | ChangesFrame | HeartbeatFrame | ProblemFrame
