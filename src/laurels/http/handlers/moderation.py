"""What people do to scores: hide, void, restore, refreeze; and the list of what was done."""

from typing import Any

import msgspec

from laurels.core.instants import to_datetime
from laurels.core.people import Hidden
from laurels.errors import Invalid, NotFound
from laurels.http.board_parts import show_moment
from laurels.http.call import Answered, Call
from laurels.http.decode import decode_cursor, encode_cursor
from laurels.http.people_answers import ActAnswer, ActsAnswer
from laurels.http.requests import (
    BoardReasonQuery,
    HideRequest,
    NoQuery,
    PodQuery,
    ReasonQuery,
    ReasonRequest,
    UserQuery,
    VoidRequest,
)
from laurels.ports import StoredAct
from laurels.service.moderation import Chosen

# It goes on.
BEGUN = 202
LAST_ID = 2**63 - 1


async def put_hidden_on_board(call: Call[NoQuery, HideRequest]) -> ActAnswer:
    """Hide a user on a board

    Left out of all ranks of periods that go on, and of those that come; scores go on being counted. With `shadow`,
    reads with the user as `viewer` show what would be seen if nobody had hidden them.
    """
    return await _hide(call, _how(call.body), call.body.reason)


async def delete_hidden_on_board(call: Call[BoardReasonQuery, None]) -> ActAnswer:
    """Show a user on a board again"""
    return await _hide(call, Hidden.NO, call.query.reason)


async def put_hidden(call: Call[PodQuery, HideRequest]) -> ActAnswer:
    """Hide a user on all boards of the pod

    The pod is the key's own; an admin names it as `podId`.
    """
    return await _hide_everywhere(call, _how(call.body), call.body.reason)


async def delete_hidden(call: Call[ReasonQuery, None]) -> ActAnswer:
    """Show a user again who was hidden on all boards

    Where one board hid them, they stay hidden.
    """
    return await _hide_everywhere(call, Hidden.NO, call.query.reason)


async def post_void(call: Call[NoQuery, VoidRequest]) -> Answered[ActAnswer]:
    """Let events not count

    Those with these `eventIds`, or all whose metadata have the values of `match` (such as those of a match, or of a
    source). Every score, in every window that goes on and every segment, is then what it would be without them. Final
    ranks stay until they are refrozen. `restore` takes it back.

    202: it has begun and goes on; read the act to see how far it is.
    """
    body = call.body
    if bool(body.event_ids) == bool(body.match):
        raise Invalid("nothing_chosen", "Say either eventIds or match.", field="eventIds", rule="eventIds or match")
    if body.event_ids and body.user_id is not None:
        raise Invalid("nothing_chosen", "A userId goes with match alone.", field="userId", rule="only with match")
    chosen = Chosen(list(body.event_ids), dict(body.match), body.user_id)
    act = await call.laurels.moderation.void(call.caller, call.board, chosen, body.reason, call.idempotency_key)
    return _begun(call, act)


async def post_restore(call: Call[PodQuery, ReasonRequest]) -> Answered[ActAnswer]:
    """Take an act back

    Events that it voided count again, and who was hidden by it is shown. 202: it has begun and goes on.
    """
    pod_id = await call.laurels.access.pod_of(call.caller, call.query.pod_id)
    act = await call.laurels.moderation.restore(call.caller, pod_id, _act_id(call), call.body.reason)
    return _begun(call, act)


async def post_refreeze(call: Call[NoQuery, ReasonRequest]) -> Answered[ActAnswer]:
    """Set the final ranks of a period right

    As they would be with the events that count now and without who is hidden now. The ones before stay, as `NAME@1`.
    Rewards that were claimed stay claimed; who earns one only now is granted it.

    202: it has begun; the act is done when the new ranks stand.
    """
    act = await call.laurels.seasons.refreeze(
        call.caller, call.board, call.path("period"), call.body.reason, call.idempotency_key
    )
    return _begun(call, act)


async def get_acts(call: Call[UserQuery, None]) -> ActsAnswer:
    """What was done to scores of a pod, or of one of its boards, last first

    The pod is the key's own; an admin names it as `podId`.
    """
    query = call.query
    pod_id = await call.laurels.access.pod_of(call.caller, query.pod_id)
    board = None
    if query.uuid is not None:
        board = call.laurels.boards.to_write(call.caller, query.uuid)
        if board.pod_id != pod_id:
            raise NotFound("board_not_found", f"There is no board {query.uuid!r}.", field="UUID")
    before = decode_cursor(query.cursor) or LAST_ID
    acts = await call.laurels.moderation.acts(pod_id, board, before, query.limit)
    return ActsAnswer(
        acts=[show_act(call, act) for act in acts],
        next_cursor=encode_cursor(acts[-1].id) if len(acts) == query.limit else None,
    )


async def get_act(call: Call[PodQuery, None]) -> ActAnswer:
    """An act: what was done, and how far it is"""
    pod_id = await call.laurels.access.pod_of(call.caller, call.query.pod_id)
    return show_act(call, await call.laurels.moderation.find(pod_id, _act_id(call)))


def show_act(call: Call[Any, Any], act: StoredAct) -> ActAnswer:
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


def _begun(call: Call[Any, Any], act: StoredAct) -> Answered[ActAnswer]:
    return Answered(show_act(call, act), BEGUN if act.done_at is None else 200)


def _how(body: HideRequest) -> Hidden:
    return Hidden.SHADOW if body.shadow else Hidden.YES


async def _hide(call: Call[Any, Any], hidden: Hidden, reason: str | None) -> ActAnswer:
    board = call.board
    act = await call.laurels.moderation.hide(
        call.caller, board.pod_id, board, call.user_id, hidden, reason, call.idempotency_key
    )
    return show_act(call, act)


async def _hide_everywhere(call: Call[Any, Any], hidden: Hidden, reason: str | None) -> ActAnswer:
    pod_id = await call.laurels.access.pod_of(call.caller, call.query.pod_id)
    act = await call.laurels.moderation.hide(
        call.caller, pod_id, None, call.user_id, hidden, reason, call.idempotency_key
    )
    return show_act(call, act)


def _act_id(call: Call[Any, Any]) -> int:
    text = call.path("actId")
    # SQL's integers have 63 bits.
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise NotFound("act_not_found", f"There is no act {text!r}.", field="actId")
    return int(text)
