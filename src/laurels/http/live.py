"""Live subscriptions over a WebSocket or as server-sent events. Both carry the same frames."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec
from starlette.types import Receive, Scope, Send

from laurels.errors import ERROR_MAPPINGS, LaurelsError, Unavailable
from laurels.http.live_answers import ProblemFrame
from laurels.http.live_frames import HEARTBEAT, EncodedFrame, encode_frame, event_of
from laurels.http.problems import problem_of
from laurels.http.protocol import SocketLink, text_message
from laurels.service.live import LiveHub, Subscription

# Subprotocols. A browser can't send headers with a WebSocket, so the key travels as a subprotocol.
PROTOCOL = "laurels.v1"
KEY_PROTOCOL = "laurels.key."

# Close code of a WebSocket that ends with an error: this number plus the HTTP status.
CLOSE = 4000
# Close code when the server stops: clients can reconnect soon, to this server or another one.
CLOSE_RESTART = 1012

_BEAT = EncodedFrame(text_message(HEARTBEAT), event_of("heartbeat", HEARTBEAT))
_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    # Otherwise proxies such as nginx buffer the frames.
    (b"x-accel-buffering", b"no"),
]
RETRY = b"retry: 1000\n\n"
GOODBYE_S = 5.0


class Live:
    """A response that sends frames until the subscription ends or the subscriber leaves."""

    def __init__(self, hub: LiveHub, subscription: Subscription) -> None:
        self._hub = hub
        self._subscription = subscription

    async def run(self, receive: Receive, send: Callable[[EncodedFrame], Awaitable[None]]) -> LaurelsError | None:
        """Send frames; return the error that ends the subscription, or None once the subscriber has left."""
        subscription = self._subscription
        leaving = asyncio.create_task(_until_gone(receive), name="wait for a subscriber to leave")
        leaving.add_done_callback(lambda _: subscription.wake())
        try:
            # Sending fails if the connection is cut: then the subscriber has left.
            with contextlib.suppress(OSError):
                while not leaving.done():
                    for frame in subscription.take():
                        await self._send(send, encode_frame(frame))
                    if subscription.wants_heartbeat:
                        subscription.wants_heartbeat = False
                        await self._send(send, _BEAT)
                    if subscription.ended is not None:
                        return subscription.ended
                    await subscription.wait()
            return None
        finally:
            leaving.cancel()
            self._hub.leave(subscription)

    @contextlib.asynccontextmanager
    async def goodbye(self) -> AsyncIterator[None]:
        """Limit the time to send the last message, and disconnect a subscriber that does not read it."""
        try:
            async with asyncio.timeout(GOODBYE_S):
                yield
        except TimeoutError:
            self._subscription.audience.cut()

    async def _send(self, send: Callable[[EncodedFrame], Awaitable[None]], encoded: EncodedFrame) -> None:
        self._subscription.sending_since = time.monotonic()
        await send(encoded)
        self._subscription.sending_since = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the frames as server-sent events, in response to an HTTP request."""

        async def send_body(body: bytes, *, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": body, "more_body": more})

        async def send_event(encoded: EncodedFrame) -> None:
            await send_body(b"id: %b\n%b" % (self._subscription.position.encode(), encoded.event))

        try:
            await send({"type": "http.response.start", "status": 200, "headers": _STREAM_HEADERS})
            if scope["method"] == "HEAD":
                await send_body(b"", more=False)
                return
            await send_body(RETRY)
            error = await self.run(receive, send_event)
        finally:
            self._hub.leave(self._subscription)
        body = b"" if error is None else event_of("problem", msgspec.json.encode(_problem(error)))
        async with self.goodbye():
            await send_body(body, more=False)


class Interrupted:
    """The response to an EventSource when a stream can't start now: a 200 with a `problem` event.

    A browser reconnects after a stream has ended, but never after a status other than 200.
    """

    def __init__(self, error: LaurelsError) -> None:
        self._body = RETRY + event_of("problem", msgspec.json.encode(_problem(error)))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del scope, receive
        await send({"type": "http.response.start", "status": 200, "headers": _STREAM_HEADERS})
        await send({"type": "http.response.body", "body": self._body})


async def serve_socket(scope: Scope, receive: Receive, send: Send, open_live: Callable[[], Awaitable[Live]]) -> None:
    """Serve a WebSocket.

    A frame and the close code state the reason for its end, because browsers show nothing else.
    """
    await receive()
    await send({"type": "websocket.accept", "subprotocol": PROTOCOL if PROTOCOL in scope["subprotocols"] else None})

    link: SocketLink = scope["state"]["link"]

    async def send_message(encoded: EncodedFrame) -> None:
        await link.send(encoded.message)

    goodbye: contextlib.AbstractAsyncContextManager[None] = contextlib.nullcontext()
    try:
        live = await open_live()
        goodbye = live.goodbye()
        error = await live.run(receive, send_message)
    except LaurelsError as refused:
        error = refused
    if error is None:
        return
    code = CLOSE_RESTART if isinstance(error, Unavailable) and error.code == "stopping" else CLOSE + _status(error)
    with contextlib.suppress(OSError, RuntimeError):
        async with goodbye:
            await link.send(text_message(msgspec.json.encode(_problem(error))))
            await send({"type": "websocket.close", "code": code, "reason": error.code})


def _problem(error: LaurelsError) -> ProblemFrame:
    return ProblemFrame(problem=problem_of(error))


def _status(error: LaurelsError) -> int:
    return ERROR_MAPPINGS[type(error)].http_status


async def _until_gone(receive: Receive) -> None:
    """Wait until the subscriber disconnects, and ignore its messages."""
    while not (await receive())["type"].endswith(".disconnect"):
        pass
