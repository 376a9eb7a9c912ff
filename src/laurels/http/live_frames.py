"""What is sent to those who look at a board: each frame is encoded once, for all of them."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from laurels.core.board import Status
from laurels.core.people import GLOBAL
from laurels.http.answers import Entry, Problem
from laurels.http.board_parts import show_moment
from laurels.http.entries import show_entry
from laurels.http.fields import Answer, Instant
from laurels.http.protocol import text_message
from laurels.service.live import Change, Facts, Frame, Kind, LookAround

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

HEARTBEAT = msgspec.json.encode(HeartbeatFrame())


class EncodedFrame(msgspec.Struct):
    """A frame as it goes over a WebSocket, and as an event of a stream, both to the last byte."""

    message: bytes
    event: bytes


def encode_frame(frame: Frame) -> EncodedFrame:
    encoded = frame.encoded
    if not isinstance(encoded, EncodedFrame):
        body = msgspec.json.encode(show_frame(frame))
        encoded = frame.encoded = EncodedFrame(text_message(body), event_of(frame.kind, body))
    return encoded


def event_of(kind: str, body: bytes) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), body)


def show_frame(frame: Frame) -> SnapshotFrame | ResetFrame | ChangesFrame:
    view: ViewName = "around" if isinstance(frame.look, LookAround) else "top"
    name = f"{frame.view_id}-{frame.sequence}"
    segment = frame.look.selection.segment or GLOBAL
    degraded: bool | UnsetType = frame.degraded or UNSET
    if frame.kind is Kind.CHANGES:
        return ChangesFrame(
            view=view,
            id=name,
            sequence=frame.sequence,
            rows=[_row(change) for change in frame.changes],
            length=frame.length,
            total_users=frame.total,
            board=UNSET if frame.facts is None else _board(frame.facts, segment),
            degraded=degraded,
        )
    assert frame.facts is not None, "all there is to see has the facts"
    whole: dict[str, Any] = {
        "view": view,
        "id": name,
        "sequence": frame.sequence,
        "board": _board(frame.facts, segment),
        "users": [show_entry(*change.shown) for change in frame.changes],
        "total_users": frame.total,
        "degraded": degraded,
    }
    if frame.kind is Kind.SNAPSHOT:
        return SnapshotFrame(**whole)
    assert frame.previous_period is not None, "a reset leads from one period to another"
    return ResetFrame(**whole, previous_period=frame.previous_period)


def _row(change: Change) -> LiveRow:
    return LiveRow(**msgspec.structs.asdict(show_entry(*change.shown)), position=change.position)


def _board(facts: Facts, segment: str) -> LiveBoard:
    return LiveBoard(
        name=facts.name,
        status=facts.status,
        window=facts.period.window,
        period=facts.period.name,
        segment=segment,
        start_time=show_moment(facts.start),
        end_time=show_moment(facts.end),
    )
