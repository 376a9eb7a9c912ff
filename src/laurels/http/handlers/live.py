"""Live updates of a board."""

from typing import Any

from laurels.errors import UpgradeRequired
from laurels.http.call import CIRCLE, Call, need_circle
from laurels.http.entries import read_selection
from laurels.http.live import Live
from laurels.http.queries import LiveQuery
from laurels.ports import Scope
from laurels.service.live import AroundSpec, SubscriberAccess, TopSpec, ViewSpec


async def get_live(call: Call[LiveQuery, None]) -> Live:
    """Subscribe to live updates of the best users over a WebSocket.

    Each text message is a frame, a JSON object. The first frame of each view is a `snapshot`. The views are `top` and,
    with `userId`, `around`: that user and the neighbours. `changes` frames follow, and a `reset` frame when another
    period begins. The frames of a view are numbered by `sequence`; after a gap, reconnect without `after`.
    docs/guides/live.md describes the frames and the close codes.
    """
    if not call.is_socket:
        raise UpgradeRequired(
            "upgrade_required",
            "This address accepts only WebSockets. Over plain HTTP, use …/stream (server-sent events).",
        )
    return await _subscribe(call)


async def get_stream(call: Call[LiveQuery, None]) -> Live:
    """Subscribe to live updates of the best users as server-sent events.

    The frames are the same as over the WebSocket, each as the data of an event named by its type. A client that
    reconnects with `Last-Event-ID` resumes after that frame.
    """
    return await _subscribe(call)


async def _subscribe(call: Call[LiveQuery, None]) -> Live:
    query, board = call.query, call.board
    selection = read_selection(query)
    specs: list[ViewSpec] = [TopSpec(board.id, selection, query.limit)]
    if query.user_id is not None:
        specs.append(AroundSpec(board.id, selection, query.user_id, query.above, query.below))

    def check() -> None:
        # What the call needed at its start; keys and boards change meanwhile.
        caller = call.laurels.access.authenticate(call.token)
        current = call.laurels.boards.to_read(caller, board.uuid)
        if not current.public:
            caller.require_scope(Scope.READ)
        if (query.segment or "").startswith(CIRCLE):
            need_circle(caller, current)

    call.link.bound()
    caller = call.caller
    audience = SubscriberAccess(
        # The players whose tokens one key has signed do not share its limit.
        caller.key_id if caller.player is None else f"{caller.key_id}/{caller.player}",
        board.pod_id,
        check,
        call.link.cut,
        address=call.address,
        is_from_outside=caller.is_from_outside,
    )
    return Live(call.laurels.live, await call.laurels.live.subscribe(audience, specs, _after(call)))


def _after(call: Call[Any, Any]) -> str | None:
    after: str | None = call.last_event_id or call.query.after
    return after
