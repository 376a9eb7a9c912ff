"""Encoding of live frames. Each frame is built and encoded once for all subscribers."""

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from laurels.core.people import GLOBAL
from laurels.http.board_parts import show_moment
from laurels.http.entries import show_entry
from laurels.http.live_answers import (
    ChangesFrame,
    HeartbeatFrame,
    LiveBoard,
    LiveRow,
    ResetFrame,
    SnapshotFrame,
    ViewName,
)
from laurels.http.protocol import text_message
from laurels.service.live import AroundSpec, Facts, Frame, FrameKind, PositionChange

HEARTBEAT = msgspec.json.encode(HeartbeatFrame())


class EncodedFrame(msgspec.Struct):
    """A frame as the bytes of a WebSocket message and of a server-sent event."""

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
    view: ViewName = "around" if isinstance(frame.spec, AroundSpec) else "top"
    name = f"{frame.view_id}-{frame.sequence}"
    segment = frame.spec.selection.segment or GLOBAL
    degraded: bool | UnsetType = frame.degraded or UNSET
    if frame.kind is FrameKind.CHANGES:
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
    assert frame.facts is not None, "a snapshot or reset has facts"
    whole: dict[str, Any] = {
        "view": view,
        "id": name,
        "sequence": frame.sequence,
        "board": _board(frame.facts, segment),
        "users": [show_entry(*change.shown) for change in frame.changes],
        "total_users": frame.total,
        "degraded": degraded,
    }
    if frame.kind is FrameKind.SNAPSHOT:
        return SnapshotFrame(**whole)
    assert frame.previous_period is not None, "a reset has a previous period"
    return ResetFrame(**whole, previous_period=frame.previous_period)


def _row(change: PositionChange) -> LiveRow:
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
