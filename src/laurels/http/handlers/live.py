"""Boards as they change."""

from typing import Any

from laurels.errors import UpgradeRequired
from laurels.http.call import Call
from laurels.http.entries import read_selection
from laurels.http.live import Live
from laurels.http.requests import LiveQuery
from laurels.service.live import Audience, Look, LookAround, LookTop


async def get_live(call: Call[LiveQuery, None]) -> Live:
    """The best users as they change, over a WebSocket

    Text frames, a JSON object each. First a `snapshot` of each view: `top`, and with `userId` also `around`, that
    user and the neighbours. Then `changes`, and a `reset` when another period begins, numbered by `sequence`: after a
    gap, come back without `after`. docs/live.md has the frames and the close codes.
    """
    if not call.is_socket:
        raise UpgradeRequired(
            "upgrade_required", "This address is for WebSockets. The same by plain HTTP: …/stream (server-sent events)."
        )
    return await _subscribe(call)


async def get_stream(call: Call[LiveQuery, None]) -> Live:
    """The best users as they change, as server-sent events

    The same frames as over the WebSocket, each as the data of an event that is named by its type. A client that comes
    back with `Last-Event-ID` goes on where it was.
    """
    return await _subscribe(call)


async def _subscribe(call: Call[LiveQuery, None]) -> Live:
    query, board = call.query, call.board
    selection = read_selection(query)
    looks: list[Look] = [LookTop(board.id, selection, query.limit)]
    if query.user_id is not None:
        looks.append(LookAround(board.id, selection, query.user_id, query.above, query.below))

    def check() -> None:
        caller = call.laurels.access.authenticate(call.token)
        call.laurels.boards.to_read(caller, board.uuid)

    call.link.bound()
    audience = Audience(call.caller.key_id, check, call.link.cut)
    return Live(call.laurels.live, await call.laurels.live.subscribe(audience, looks, _after(call)))


def _after(call: Call[Any, Any]) -> str | None:
    after: str | None = call.last_event_id or call.query.after
    return after
