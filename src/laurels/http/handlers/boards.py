"""Boards: create, list, read, change, archive."""

import asyncio
from datetime import datetime
from typing import Any

from msgspec import UNSET

from laurels.core.board import GLOBAL, Board, Status
from laurels.core.instants import LAST_US, to_datetime, to_us
from laurels.core.windows import WINDOWS, Period
from laurels.errors import Invalid, Unavailable
from laurels.http.answers import BoardAnswer, BoardsAnswer, PeriodAnswer, PeriodsAnswer
from laurels.http.call import Call
from laurels.http.decode import decode_cursor, encode_cursor
from laurels.http.requests import BoardChange, BoardRequest, BoardsQuery, NoQuery
from laurels.service.submit import canonical_metadata, exact_score


async def post_board(call: Call[NoQuery, BoardRequest]) -> BoardAnswer:
    """Create a board

    A server key creates in its own pod; an admin names the `podId`. Repeating the call with the same `UUID` (or
    `Idempotency-Key`) and the same definition gives the board that is there.
    """
    body = call.body
    pod_id = call.caller.require_pod(body.pod_id)
    _check_choices("windows", body.windows, WINDOWS, "window_not_available")
    _check_choices("segments", body.segments, (GLOBAL,), "segment_not_available")
    canonical_metadata(body.metadata)
    board = Board(
        id=0,
        uuid=body.uuid or "",
        pod_id=pod_id,
        name=body.name,
        rule=body.rule,
        order=body.order,
        ties=body.ties,
        capacity=body.capacity,
        min_score=_bound(body.min_score, "minScore"),
        max_score=_bound(body.max_score, "maxScore"),
        public=body.public,
        windows=tuple(body.windows),
        segments=tuple(body.segments),
        start_at=None if body.start_time is None else _instant(body.start_time, "startTime"),
        end_at=None if body.end_time is None else _instant(body.end_time, "endTime"),
        created_at=0,
        metadata=body.metadata,
    )
    return await _answer(call, await call.laurels.boards.create(board, call.idempotency_key))


async def get_boards(call: Call[BoardsQuery, None]) -> BoardsAnswer:
    """List boards in the order of their making

    With a key those of its pod, for an admin all, without a key the public ones. Archived boards are listed only
    with `status=ARCHIVED`.
    """
    query = call.query
    after = decode_cursor(query.cursor) or 0
    boards = call.laurels.boards.page(call.caller, query.pod_id, query.status, after, query.limit)
    return BoardsAnswer(
        leaderboards=list(await asyncio.gather(*(_answer(call, board) for board in boards))),
        next_cursor=encode_cursor(boards[-1].id) if len(boards) == query.limit else None,
    )


async def get_board(call: Call[NoQuery, None]) -> BoardAnswer:
    """Read a board"""
    return await _answer(call, call.board)


async def get_periods(call: Call[NoQuery, None]) -> PeriodsAnswer:
    """A board's periods"""
    board = call.board
    return PeriodsAnswer(uuid=board.uuid, periods=[_period(period) for period in board.periods])


async def patch_board(call: Call[NoQuery, BoardChange]) -> BoardAnswer:
    """Change a board

    Only the fields that are sent change; null removes a limit. `status` moves forward by hand: ACTIVE starts a
    scheduled board now, ENDED ends it now, ARCHIVED puts it away. Rule, order, ties, windows and segments stay.
    """
    board = call.board
    body = call.body
    _check_unchanged(board, body)
    sent: dict[str, Any] = {
        "name": body.name,
        "capacity": body.capacity,
        "public": body.public,
        "metadata": body.metadata,
    }
    if body.metadata is not UNSET:
        canonical_metadata(body.metadata)
    for name, field, moment in (("start_at", "startTime", body.start_time), ("end_at", "endTime", body.end_time)):
        sent[name] = moment if moment is UNSET or moment is None else _instant(moment, field)
    for name, field, score in (("min_score", "minScore", body.min_score), ("max_score", "maxScore", body.max_score)):
        sent[name] = score if score is UNSET or score is None else exact_score(score, field)
    fields = {name: value for name, value in sent.items() if value is not UNSET}
    status = None if body.status is UNSET else body.status
    return await _answer(call, await call.laurels.boards.change(board, fields, status))


async def delete_board(call: Call[NoQuery, None]) -> BoardAnswer:
    """Archive a board: it can still be read, takes no more scores, and leaves the lists"""
    board = call.board
    return await _answer(call, await call.laurels.boards.change(board, {}, Status.ARCHIVED))


async def _answer(call: Call[Any, Any], board: Board) -> BoardAnswer:
    laurels = call.laurels
    now = laurels.clock.now_us()
    current = (board.current_period(window, now) for window in board.windows)
    return BoardAnswer(
        uuid=board.uuid,
        pod_id=board.pod_id,
        name=board.name,
        status=board.status_at(now),
        rule=board.rule,
        order=board.order,
        ties=board.ties,
        capacity=board.capacity,
        windows=list(board.windows),
        segments=list(board.segments),
        periods=[_period(period) for period in current if period is not None],
        start_time=_moment(board.start_at),
        end_time=_moment(board.end_at),
        min_score=board.min_score,
        max_score=board.max_score,
        public=board.public,
        metadata=board.metadata,
        created_at=to_datetime(board.created_at),
        total_users=await _total_users(call, board),
    )


async def _total_users(call: Call[Any, Any], board: Board) -> int | None:
    try:
        return call.show(await call.laurels.reads.count(board))
    except Unavailable:
        return None


def _period(period: Period) -> PeriodAnswer:
    return PeriodAnswer(
        window=period.window,
        period=period.name,
        start_time=_moment(period.start),
        end_time=_moment(period.end),
        next_reset=_moment(period.end),
    )


def _check_choices(field: str, chosen: list[str], available: tuple[str, ...], code: str) -> None:
    for number, choice in enumerate(chosen):
        if choice not in available or choice in chosen[:number]:
            raise Invalid(
                code,
                f"{choice!r} is not available in {field}, or stands there twice. There is: {', '.join(available)}.",
                field=f"{field}[{number}]",
                rule=f"distinct, of {', '.join(available)}",
            )


def _check_unchanged(board: Board, change: BoardChange) -> None:
    """Sending back what was read is fine; changing it would mean other scores than the events say."""
    sent = {
        "rule": (change.rule, board.rule),
        "order": (change.order, board.order),
        "ties": (change.ties, board.ties),
        "windows": (change.windows, list(board.windows)),
        "segments": (change.segments, list(board.segments)),
    }
    for field, (new, old) in sent.items():
        if new is not UNSET and new != old:
            raise Invalid(
                "immutable_field", f"{field} can't change. Create another board.", field=field, rule="as it was made"
            )


def _bound(score: float | None, name: str) -> float | None:
    return None if score is None else exact_score(score, name)


def _instant(moment: datetime, field: str) -> int:
    us = to_us(moment)
    if not 0 <= us <= LAST_US:
        raise Invalid(
            "timestamp_out_of_range",
            f"{field} must lie between the years 1970 and 9999, in UTC.",
            field=field,
            rule="1970-01-01T00:00:00Z <= time <= 9999-12-31T23:59:59.999999Z",
        )
    return us


def _moment(us: int | None) -> datetime | None:
    return None if us is None else to_datetime(us)
