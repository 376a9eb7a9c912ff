"""Moderation: hide, void, restore and refreeze, and the audit log of these actions."""

from typing import Any

import msgspec
from msgspec import UNSET

from laurels.core.board import Board
from laurels.core.instants import to_datetime
from laurels.core.people import Hidden
from laurels.errors import Invalid, NotFound
from laurels.http.board_parts import show_moment
from laurels.http.call import Answered, Call
from laurels.http.decode import decode_cursor, encode_cursor
from laurels.http.people_answers import ActAnswer, ActsAnswer, PreviewedEvent, PreviewedScore, VoidPreviewAnswer
from laurels.http.queries import BoardReasonQuery, NoQuery, PodQuery, ReasonQuery, UserQuery
from laurels.http.requests import HideRequest, ReasonRequest, VoidRequest
from laurels.ports import StoredAction
from laurels.service.moderation.moderation import EventFilter

# Begun and still running.
BEGUN = 202
LAST_ID = 2**63 - 1


async def put_hidden_on_board(call: Call[NoQuery, HideRequest]) -> ActAnswer:
    """Hide a user on a board.

    The user is left out of the rankings of all periods that are not final, future ones included. Scores are still
    counted. With `shadow` (a shadow ban), reads with the user as `viewer` look as if the user were not hidden.
    """
    return await _hide(call, _how(call.body), call.body.reason)


async def delete_hidden_on_board(call: Call[BoardReasonQuery, None]) -> ActAnswer:
    """Show a hidden user on a board again."""
    return await _hide(call, Hidden.NO, call.query.reason)


async def put_hidden(call: Call[PodQuery, HideRequest]) -> ActAnswer:
    """Hide a user on all boards of the pod.

    The pod is that of the key; an admin key sets `podId`.
    """
    return await _hide_everywhere(call, _how(call.body), call.body.reason)


async def delete_hidden(call: Call[ReasonQuery, None]) -> ActAnswer:
    """Show a user again who was hidden on all boards of the pod.

    The user stays hidden on boards where they were also hidden individually.
    """
    return await _hide_everywhere(call, Hidden.NO, call.query.reason)


async def post_void(call: Call[NoQuery, VoidRequest]) -> Answered[ActAnswer]:
    """Void events, so that they no longer count.

    Voids the events with these `eventIds`, or all events whose metadata have the values of `match` (for example all of
    one match or one source). In all periods that are not final, in every segment, scores become what they would be
    without these events. Final ranks change only with a refreeze. `restore` reverts the act.

    Status 202: the act has begun and is still running; read the act to see its progress.
    """
    body, chosen = call.body, _chosen(call.body)
    act = await call.laurels.moderation.void(call.caller, call.board, chosen, body.reason, call.idempotency_key)
    return _begun(call, act)


async def post_void_preview(call: Call[NoQuery, VoidRequest]) -> VoidPreviewAnswer:
    """Return what a void would do, without doing it.

    Takes the body of `void`. Counts the events and their users for at most five seconds, and shows how the scores of
    the first users would change.
    """
    preview = await call.laurels.moderation.preview_void(call.board, _chosen(call.body))
    return VoidPreviewAnswer(
        uuid=call.board.uuid,
        events=preview.events,
        users=preview.users,
        complete=preview.is_complete,
        sample=[
            PreviewedEvent(
                event_id=event.event_id, user_id=event.user_id, score=event.score, timestamp=to_datetime(event.at)
            )
            for event in preview.sample
        ],
        scores=[
            PreviewedScore(user_id=each.user_id, score=each.score, score_after=each.after if each.is_known else UNSET)
            for each in preview.scores
        ],
    )


def _chosen(body: VoidRequest) -> EventFilter:
    if bool(body.event_ids) == bool(body.match):
        raise Invalid("nothing_chosen", "Send either eventIds or match.", field="eventIds", rule="eventIds or match")
    if body.event_ids and body.user_id is not None:
        raise Invalid("nothing_chosen", "Send userId only with match.", field="userId", rule="only with match")
    return EventFilter(list(body.event_ids), dict(body.match), body.user_id)


async def post_restore(call: Call[PodQuery, ReasonRequest]) -> Answered[ActAnswer]:
    """Revert a moderation action (act).

    Events that the act voided count again, and a user that it hid is shown as before. Status 202: the restore has begun
    and is still running.
    """
    pod_id = await call.laurels.access.pod_of(call.caller, call.query.pod_id)
    act = await call.laurels.moderation.restore(call.caller, pod_id, _act_id(call), call.body.reason)
    return _begun(call, act)


async def post_refreeze(call: Call[NoQuery, ReasonRequest]) -> Answered[ActAnswer]:
    """Correct the final ranks of a period.

    The new final ranks use the events that count now and leave out users who are hidden now. The previous final ranks
    stay readable as `NAME@1`. Claimed rewards stay claimed; users who earn a reward only now are granted it.

    Status 202: the refreeze has begun; the act is done when the new final ranks are written.
    """
    act = await call.laurels.seasons.refreeze(
        call.caller, call.board, call.path("period"), call.body.reason, call.idempotency_key
    )
    return _begun(call, act)


async def get_acts(call: Call[UserQuery, None]) -> ActsAnswer:
    """List the moderation actions (acts) of a pod or of one of its boards, newest first.

    The pod is that of the key; an admin key sets `podId`.
    """
    query = call.query
    pod_id = await call.laurels.access.pod_of(call.caller, query.pod_id)
    board = None
    if query.uuid is not None:
        board = call.laurels.boards.to_write(call.caller, query.uuid)
        if board.pod_id != pod_id:
            raise NotFound("board_not_found", f"There is no board {query.uuid!r}.", field="UUID")
    before = decode_cursor(query.cursor) or LAST_ID
    acts = await call.laurels.moderation.actions(pod_id, board, before, query.limit)
    return ActsAnswer(
        acts=[show_act(call, act) for act in acts],
        next_cursor=encode_cursor(acts[-1].id) if len(acts) == query.limit else None,
    )


async def get_act(call: Call[PodQuery, None]) -> ActAnswer:
    """Return a moderation action (act) and its progress."""
    pod_id = await call.laurels.access.pod_of(call.caller, call.query.pod_id)
    return show_act(call, await call.laurels.moderation.find(pod_id, _act_id(call)))


def show_act(call: Call[Any, Any], act: StoredAction) -> ActAnswer:
    return ActAnswer(
        act_id=str(act.id),
        kind=act.kind,
        pod_id=act.pod_id,
        uuid=None if act.board_id == 0 else call.laurels.boards.by_id(act.board_id).uuid,
        user_id=act.user_id,
        key_id=act.by,
        at=to_datetime(act.at),
        reason=act.reason,
        detail=None if act.detail is None else msgspec.json.decode(act.detail),
        events=act.events,
        done_at=show_moment(act.done_at),
        undone_by=None if act.undone_by is None else str(act.undone_by),
    )


def noted_act(call: Call[Any, Any], act: StoredAction) -> ActAnswer:
    """Note an act for the audit log, without the user, and return its answer."""
    call.note_change(None, {"actId": str(act.id), "act": act.kind, "events": act.events})
    return show_act(call, act)


def _begun(call: Call[Any, Any], act: StoredAction) -> Answered[ActAnswer]:
    return Answered(noted_act(call, act), BEGUN if act.done_at is None else 200)


def _how(body: HideRequest) -> Hidden:
    return Hidden.SHADOW if body.shadow else Hidden.YES


async def _hide(call: Call[Any, Any], hidden: Hidden, reason: str | None) -> ActAnswer:
    return await _hide_on(call, call.board.pod_id, call.board, hidden, reason)


async def _hide_everywhere(call: Call[Any, Any], hidden: Hidden, reason: str | None) -> ActAnswer:
    pod_id = await call.laurels.access.pod_of(call.caller, call.query.pod_id)
    return await _hide_on(call, pod_id, None, hidden, reason)


async def _hide_on(
    call: Call[Any, Any], pod_id: str, board: Board | None, hidden: Hidden, reason: str | None
) -> ActAnswer:
    hides = await call.laurels.profiles.hides(pod_id, call.user_id)
    before = hides.get(0 if board is None else board.id, Hidden.NO)
    act = await call.laurels.moderation.hide(
        call.caller, pod_id, board, call.user_id, hidden, reason, call.idempotency_key
    )
    call.note_change({"hidden": before.name.lower()}, {"hidden": hidden.name.lower(), "actId": str(act.id)})
    return show_act(call, act)


def _act_id(call: Call[Any, Any]) -> int:
    number = number_of(call.path("actId"))
    if number is None:
        raise NotFound("act_not_found", f"There is no act {call.path('actId')!r}.", field="actId")
    return number


def number_of(text: str) -> int | None:
    """Return the number of an act in a path; None if the text is not one."""
    # Up to 18 digits always fit a 64-bit SQL integer.
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else None
