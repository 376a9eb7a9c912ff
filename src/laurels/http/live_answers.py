"""The frames of live updates."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, UnsetType

from laurels.core.board import Status
from laurels.http.answers import Entry, Problem
from laurels.http.fields import Answer, Instant

ViewName = Annotated[Literal["top", "around"], Meta(description="Each view of a subscription has its own sequence.")]
FrameId = Annotated[str, Meta(description="Identifies the frame. Send it as `after` to resume when reconnecting.")]


class LiveBoard(Answer):
    """A board and its period. The period accepts scores from `startTime` until `endTime`; null: no limit."""

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
    """The whole view. It replaces the previous content."""


class ResetFrame(_Whole, kw_only=True, tag_field="type", tag="reset"):
    """The whole view of another period. It replaces the previous content."""

    previous_period: str


class LiveRow(Entry, kw_only=True):
    position: Annotated[int, Meta(description="The new position of this row in the list, starting at 0.")]


class ChangesFrame(Answer, tag_field="type", tag="changes"):
    """The changes since the previous frame. Put each row at its position, then cut the list to `length`."""

    view: ViewName
    id: FrameId
    sequence: int
    rows: list[LiveRow]
    length: int
    total_users: int
    board: LiveBoard | UnsetType = UNSET
    degraded: bool | UnsetType = UNSET


class HeartbeatFrame(Answer, tag_field="type", tag="heartbeat"):
    """A sign that the connection is alive. Nothing has changed."""


class ProblemFrame(Answer, tag_field="type", tag="problem"):
    """The error that ends the subscription."""

    problem: Problem


LiveFrame = SnapshotFrame | ResetFrame | ChangesFrame | HeartbeatFrame | ProblemFrame
