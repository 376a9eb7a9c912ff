"""Boards: create, list, read, change, archive."""

import contextlib
from collections.abc import Sequence
from typing import Any

from msgspec import UNSET, UnsetType

from laurels.core.board import Board, Status
from laurels.core.instants import to_datetime
from laurels.core.people import Kind
from laurels.core.windows import Window
from laurels.errors import Invalid, Unavailable
from laurels.http.answers import BoardAnswer, BoardsAnswer
from laurels.http.board_parts import (
    read_instant,
    read_rewards,
    read_windows,
    show_moment,
    show_period,
    show_rewards,
    show_windows,
)
from laurels.http.call import Call
from laurels.http.decode import decode_cursor, encode_cursor
from laurels.http.requests import BoardChange, BoardRequest, BoardsQuery, NoQuery, WindowBody
from laurels.service.submit import canonical_metadata, exact_score


async def post_board(call: Call[NoQuery, BoardRequest]) -> BoardAnswer:
    """Create a board

    A server key creates in its own pod; an admin names the `podId`. Repeating the call with the same `UUID` (or
    `Idempotency-Key`) and the same definition gives the board that is there.
    """
    body = call.body
    pod_id = call.caller.require_pod(body.pod_id)
    windows = read_windows(body.windows)
    # The world is always ranked.
    segments = tuple(kind.value for kind in Kind if kind is Kind.GLOBAL or kind in body.segments)
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
        windows=windows,
        segments=segments,
        start_at=None if body.start_time is None else read_instant(body.start_time, "startTime"),
        end_at=None if body.end_time is None else read_instant(body.end_time, "endTime"),
        created_at=0,
        metadata=body.metadata,
        grace_s=body.grace_seconds,
        flush_ms=body.flush_ms,
        rewards=read_rewards(body.rewards, windows),
        keep_events_days=body.keep_events_days,
        keep_periods_days=body.keep_periods_days,
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
        leaderboards=await _answers(call, boards),
        next_cursor=encode_cursor(boards[-1].id) if len(boards) == query.limit else None,
    )


async def get_board(call: Call[NoQuery, None]) -> BoardAnswer:
    """Read a board"""
    return await _answer(call, call.board)


async def patch_board(call: Call[NoQuery, BoardChange]) -> BoardAnswer:
    """Change a board

    Only the fields that are sent change; null removes a limit. `status` moves forward by hand: ACTIVE starts a
    scheduled board now, ENDED ends it now, ARCHIVED puts it away. Rule, order, ties and segments stay; windows may be
    added at the end of the list, and count from the answer on.
    """
    board = call.board
    body = call.body
    _check_unchanged(board, body)
    sent: dict[str, Any] = {
        "name": body.name,
        "capacity": body.capacity,
        "public": body.public,
        "metadata": body.metadata,
        "grace_s": body.grace_seconds,
        "flush_ms": body.flush_ms,
        "keep_events_days": body.keep_events_days,
        "keep_periods_days": body.keep_periods_days,
        "windows": _added(board, body.windows),
    }
    if body.rewards is not UNSET:
        windows = board.windows if sent["windows"] is UNSET else sent["windows"]
        sent["rewards"] = read_rewards(body.rewards, windows)
    if body.metadata is not UNSET:
        canonical_metadata(body.metadata)
    for name, field, moment in (("start_at", "startTime", body.start_time), ("end_at", "endTime", body.end_time)):
        sent[name] = moment if moment is UNSET or moment is None else read_instant(moment, field)
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
    (answer,) = await _answers(call, [board])
    return answer


async def _answers(call: Call[Any, Any], boards: Sequence[Board]) -> list[BoardAnswer]:
    now = call.laurels.clock.now_us()
    totals: list[int | None] = [None] * len(boards)
    with contextlib.suppress(Unavailable):
        totals = call.show(await call.laurels.reads.counts(boards))
    return [_show_board(board, total, now) for board, total in zip(boards, totals, strict=True)]


def _show_board(board: Board, total_users: int | None, now: int) -> BoardAnswer:
    # A window that was just added begins in a moment.
    current = (board.current_period(window, now) or board.next_period(window, now) for window in board.window_names)
    return BoardAnswer(
        uuid=board.uuid,
        pod_id=board.pod_id,
        name=board.name,
        status=board.status_at(now),
        rule=board.rule,
        order=board.order,
        ties=board.ties,
        capacity=board.capacity,
        windows=show_windows(board.windows),
        segments=list(board.segments),
        periods=[show_period(board, period, now) for period in current if period is not None],
        start_time=show_moment(board.start_at),
        end_time=show_moment(board.end_at),
        min_score=board.min_score,
        max_score=board.max_score,
        public=board.public,
        metadata=board.metadata,
        grace_seconds=board.grace_s,
        flush_ms=board.flush_ms,
        rewards=show_rewards(board.rewards),
        keep_events_days=board.keep_events_days,
        keep_periods_days=board.keep_periods_days,
        pruned_before=show_moment(board.pruned_before),
        created_at=to_datetime(board.created_at),
        total_users=total_users,
    )


def _added(board: Board, sent: list[str | WindowBody] | UnsetType) -> tuple[Window, ...] | UnsetType:
    """What is there stays, for it has counted; what comes after it is new."""
    if sent is UNSET:
        return UNSET
    windows = read_windows(sent)
    if windows[: len(board.windows)] != board.windows:
        raise Invalid(
            "immutable_field",
            "The windows of a board stay as they are. Send them first, and what you add after them.",
            field="windows",
            rule=f"begins with {', '.join(board.window_names)}",
        )
    return windows


def _check_unchanged(board: Board, change: BoardChange) -> None:
    """Sending back what was read is fine; changing it would mean other scores than the events say."""
    sent = {
        "rule": (change.rule, board.rule),
        "order": (change.order, board.order),
        "ties": (change.ties, board.ties),
        "segments": (change.segments, list(board.segments)),
    }
    for field, (new, old) in sent.items():
        if new is not UNSET and new != old:
            raise Invalid(
                "immutable_field", f"{field} can't change. Create another board.", field=field, rule="as it was made"
            )


def _bound(score: float | None, name: str) -> float | None:
    return None if score is None else exact_score(score, name)
