"""Boards: create, list, read, change, archive and delete."""

import contextlib
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from laurels.core.board import Board, PublicField, Status
from laurels.core.checks import canonical_metadata, exact_score
from laurels.core.instants import to_datetime
from laurels.core.windows import Window
from laurels.errors import Invalid, Unavailable
from laurels.http.answers import BoardAnswer, BoardsAnswer, DeletionAnswer, ReshardAnswer
from laurels.http.board_parts import (
    read_board,
    read_instant,
    read_review,
    read_rewards,
    read_segments,
    read_windows,
    show_moment,
    show_period,
    show_review,
    show_rewards,
    show_windows,
)
from laurels.http.call import Call
from laurels.http.decode import decode_cursor, encode_cursor
from laurels.http.queries import BoardsQuery, NoQuery
from laurels.http.requests import BoardChange, BoardRequest, DeletionRequest, WindowBody
from laurels.service.boards.caller import Caller


async def post_board(call: Call[NoQuery, BoardRequest]) -> BoardAnswer:
    """Create a board.

    A server key creates boards in its own pod; an admin key sets `podId`. Repeating the call with the same `UUID` (or
    `Idempotency-Key`) and the same definition returns the existing board.
    """
    body = call.body
    pod_id = call.caller.require_pod(body.pod_id, "the body")
    board = replace(read_board(body), uuid=body.uuid or "", pod_id=pod_id, created_by=call.caller.key_id)
    created = await call.laurels.boards.create(board, call.idempotency_key)
    return await answer_created(call, created)


async def answer_created(call: Call[Any, Any], created: Board) -> BoardAnswer:
    """Answer with a board that was just created."""
    call.note_change(None, _definition(call, created))
    return await _answer(call, created)


async def get_boards(call: Call[BoardsQuery, None]) -> BoardsAnswer:
    """List boards in order of creation.

    A server or client key lists the boards of its pod, an admin key all boards, and a call without a key the public
    boards. Archived boards are listed only with `status=ARCHIVED`.
    """
    query = call.query
    after = decode_cursor(query.cursor) or 0
    boards = call.laurels.boards.page(call.caller, query.pod_id, query.status, after, query.limit)
    return BoardsAnswer(
        leaderboards=await _answers(call, boards),
        next_cursor=encode_cursor(boards[-1].id) if len(boards) == query.limit else None,
    )


async def get_board(call: Call[NoQuery, None]) -> BoardAnswer:
    """Return a board."""
    answer = await _answer(call, call.board)
    progress = await call.laurels.resharder.progress(call.board)
    if progress is None or answer.resharding is None:
        return answer
    resharding = replace(
        answer.resharding, parts=progress.parts, parts_ready=progress.ready, users_loaded=progress.loaded
    )
    return replace(answer, resharding=resharding)


async def patch_board(call: Call[NoQuery, BoardChange]) -> BoardAnswer:
    """Change a board.

    Only the fields that are sent change; null removes a limit. `status` only moves forward: ACTIVE starts a scheduled
    board now, ENDED ends it now, ARCHIVED archives it. `rule`, `order` and `ties` can't be changed. Segments can be
    added: see `addingSegments`. Windows can be added at the end of the list; a new window starts about two seconds
    later and counts scores from then on. A new number of `shards` takes effect when its rankings are built: see
    `resharding`.
    """
    board = call.board
    body = call.body
    _check_unchanged(board, body)
    sent: dict[str, Any] = {
        "name": body.name,
        "capacity": body.capacity,
        "public": body.public,
        "public_fields": body.public_fields
        if body.public_fields is UNSET
        else tuple(dict.fromkeys(body.public_fields)),
        "players_may_write": body.players_may_write,
        "player_writes_per_minute": body.player_writes_per_minute,
        "shards": body.shards,
        "rank_on_write": body.rank_on_write,
        "metadata": body.metadata,
        "grace_s": body.grace_seconds,
        "flush_ms": body.flush_ms,
        "keep_events_days": body.keep_events_days,
        "keep_periods_days": body.keep_periods_days,
        "windows": _added(board, body.windows),
        "review": body.review if body.review is UNSET else read_review(body.review),
        "segments": body.segments if body.segments is UNSET else read_segments(body.segments),
    }
    if body.rewards is not UNSET:
        windows = board.windows if sent["windows"] is UNSET else sent["windows"]
        segments = board.segments if sent["segments"] is UNSET else sent["segments"]
        sent["rewards"] = read_rewards(body.rewards, windows, segments)
    if body.metadata is not UNSET:
        canonical_metadata(body.metadata)
    for name, field, moment in (("start_at", "startTime", body.start_time), ("end_at", "endTime", body.end_time)):
        sent[name] = moment if moment is UNSET or moment is None else read_instant(moment, field)
    for name, field, score in (("min_score", "minScore", body.min_score), ("max_score", "maxScore", body.max_score)):
        sent[name] = score if score is UNSET or score is None else exact_score(score, field)
    fields = {name: value for name, value in sent.items() if value is not UNSET}
    status = None if body.status is UNSET else body.status
    return await _changed(call, board, await call.laurels.boards.change(board, fields, status))


async def delete_board(call: Call[NoQuery, None]) -> BoardAnswer:
    """Archive a board.

    An archived board can be read, but it accepts no scores and is listed only with `status=ARCHIVED`.
    """
    board = call.board
    return await _changed(call, board, await call.laurels.boards.change(board, {}, Status.ARCHIVED))


async def post_deletion(call: Call[NoQuery, DeletionRequest]) -> DeletionAnswer:
    """Delete a board for good, with its scores, events, final ranks and rewards.

    Only an admin key may do this, with the UUID again as `confirm`. The board is gone at once, and its UUID is
    free; what it had is removed within minutes. It can't be restored: archive a board that somebody may want to read
    again.
    """
    board = call.board
    deleted_at = await call.laurels.deletions.delete(board, call.body.confirm)
    call.note_change(_definition(call, board), None)
    return DeletionAnswer(uuid=board.uuid, deleted_at=to_datetime(deleted_at))


async def _changed(call: Call[Any, Any], before: Board, after: Board) -> BoardAnswer:
    call.note_change(_definition(call, before), _definition(call, after))
    return await _answer(call, after)


def _definition(call: Call[Any, Any], board: Board) -> dict[str, Any]:
    """Return what the audit log shows of a board: all fields that a call can set, and the status."""
    answer = _show_board(call.caller, board, None, call.laurels.clock.now_us())
    shown: dict[str, Any] = msgspec.to_builtins(answer)
    return {name: value for name, value in shown.items() if name not in {"periods", "totalUsers"}}


async def _answer(call: Call[Any, Any], board: Board) -> BoardAnswer:
    (answer,) = await _answers(call, [board])
    return answer


async def _answers(call: Call[Any, Any], boards: Sequence[Board]) -> list[BoardAnswer]:
    now = call.laurels.clock.now_us()
    totals: list[int | None] = [None] * len(boards)
    with contextlib.suppress(Unavailable):
        totals = call.show(await call.laurels.reads.counts(boards))
    return [_show_board(call.caller, board, total, now) for board, total in zip(boards, totals, strict=True)]


def _show_board(caller: Caller, board: Board, total_users: int | None, now: int) -> BoardAnswer:
    # A window that was just added has no current period until it starts.
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
        adding_segments=list(board.filling),
        periods=[show_period(board, period, now) for period in current if period is not None],
        start_time=show_moment(board.start_at),
        end_time=show_moment(board.end_at),
        min_score=board.min_score,
        max_score=board.max_score,
        public=board.public,
        public_fields=list(board.public_fields),
        players_may_write=board.players_may_write,
        player_writes_per_minute=board.player_writes_per_minute,
        shards=board.shards,
        resharding=None
        if board.reshard is None
        else ReshardAnswer(
            board.reshard.shards,
            "building" if board.reshard.switched_at is None else "retiring",
            to_datetime(board.reshard.began_at),
        ),
        rank_on_write=board.ranks_on_write,
        metadata=board.metadata if caller.sees_field(board, PublicField.METADATA) else None,
        grace_seconds=board.grace_s,
        flush_ms=board.flush_ms,
        rewards=show_rewards(board.rewards if caller.sees_field(board, PublicField.REWARDS) else ()),
        keep_events_days=board.keep_events_days,
        keep_periods_days=board.keep_periods_days,
        review=show_review(board.review) if caller.belongs_to(board) else [],
        subscore=board.subscore,
        score_ttl_seconds=board.score_ttl_s,
        operations=[each.value for each in board.operations],
        pruned_before=show_moment(board.pruned_before),
        created_at=to_datetime(board.created_at),
        created_by=board.created_by if caller.belongs_to(board) else None,
        total_users=total_users,
    )


def _added(board: Board, sent: list[str | WindowBody] | UnsetType) -> tuple[Window, ...] | UnsetType:
    """Return the windows after a change, which must start with the existing ones, or UNSET if none were sent.

    Raises `Invalid` if an existing window differs in more than its capacity, because it has already counted scores.
    """
    if sent is UNSET:
        return UNSET
    windows = read_windows(sent)
    known = [replace(window, capacity=None) for window in board.windows]
    if [replace(window, capacity=None) for window in windows[: len(known)]] != known:
        raise Invalid(
            "immutable_field",
            "Of the existing windows, only the capacity can be changed. Send them first, followed by new ones.",
            field="windows",
            rule=f"starts with {', '.join(board.window_names)}",
        )
    return windows


def _check_unchanged(board: Board, change: BoardChange) -> None:
    """Raise `Invalid` if a change sets an immutable field to another value.

    Other values would contradict the scores that are already stored. The current values are accepted, so that a client
    can send back what it read.
    """
    sent = {
        "rule": (change.rule, board.rule),
        "order": (change.order, board.order),
        "ties": (change.ties, board.ties),
        "subscore": (change.subscore, board.subscore),
        "operations": (change.operations, list(board.operations)),
        "scoreTtlSeconds": (change.score_ttl_seconds, board.score_ttl_s),
    }
    for field, (new, old) in sent.items():
        if new is not UNSET and new != old:
            raise Invalid(
                "immutable_field",
                f"{field} can't be changed. Create another board.",
                field=field,
                rule="the current value",
            )
