"""uvicorn's HTTP and WebSocket protocols with additional limits and the hot lane.

They limit the size of a request's head, the time until it has arrived, and the unsent data of a slow reader. The
limits of request bodies are in call.py. Both protocols put a `link` into the state of the ASGI scope, through which an
endpoint controls its connection. Requests that the hot lane can answer (hot_lane.py) never become ASGI calls.
"""

import asyncio
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame, Opcode
from websockets.http11 import Request

if TYPE_CHECKING:
    from laurels.http.hot_lane import HotCall, HotLane

Headers = Sequence[tuple[bytes, bytes]]

HEAD_BYTES = 64 * 1024
HEAD_TIMEOUT_S = 30.0
BODY_TIMEOUT_S = 30
# In the state of a scope: the time by which the body must have arrived, if it is not BODY_TIMEOUT_S from now.
BODY_DUE = "body_due"
# Subscribers to live updates have nothing to send.
SOCKET_MESSAGE_BYTES = 4096
# Unsent data of a slow subscriber, in the kernel and in this process. The kernel's default is megabytes.
SYSTEM_BUFFER_BYTES = 64 * 1024
BUFFER_BYTES = 32 * 1024

_NO_EVENT = asyncio.Event()

_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
_TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class Link:
    """The connection of a request."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    def bound(self) -> None:
        """Limit the unsent data of this connection; used for live streams."""
        self._transport.set_write_buffer_limits(BUFFER_BYTES)
        connection = self._transport.get_extra_info("socket")
        if connection is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SYSTEM_BUFFER_BYTES)

    def cut(self) -> None:
        """Close the connection at once and discard unsent data."""
        self._transport.abort()


class BoundedProtocol(HttpToolsProtocol):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._in_head = True
        self._head_bytes = 0
        self._deadline: asyncio.TimerHandle | None = None
        self._lane: HotLane | None = getattr(self.app, "hot_lane", None)
        # The request that is arriving, if the hot lane takes it, and its body so far.
        self._hot: HotCall | None = None
        self._hot_body = bytearray()
        self._hot_due = 0.0
        # The number of requests that began in the last chunk of data, and the last of them that the lane has answered.
        self._requests = 0
        self._answered: HotCall | None = None
        # When the last response was sent, if no request has arrived since.
        self._idle_since: float | None = None
        # The status line and uvicorn's default headers, which have the date, as bytes; and the list that they are from.
        self._preamble: tuple[object, bytes] = (None, b"")

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()

    # Keep-alive. uvicorn starts and cancels a timer for each request, which is a large part of the cost of a hot call.
    # Here each connection has one timer. When it expires, it closes the connection if that was idle for the whole time,
    # and starts again for the rest of the time if it was not.

    def _unset_keepalive_if_required(self) -> None:
        self._idle_since = None

    def on_response_complete(self) -> None:
        # uvicorn starts the next request of a pipeline.
        starts_next = bool(self.pipeline)
        if starts_next or self.timeout_keep_alive_task is None or self.flow.read_paused:
            if self.timeout_keep_alive_task is not None:
                self.timeout_keep_alive_task.cancel()
                self.timeout_keep_alive_task = None
            super().on_response_complete()
        else:
            self.server_state.total_requests += 1
        self._idle_since = None if starts_next else self.loop.time()

    def timeout_keep_alive_handler(self) -> None:
        self.timeout_keep_alive_task = None
        if self._idle_since is None:
            return
        left_s = self._idle_since + self.timeout_keep_alive - self.loop.time()
        if left_s > 0:
            self.timeout_keep_alive_task = self.loop.call_later(left_s, self.timeout_keep_alive_handler)
        else:
            super().timeout_keep_alive_handler()

    def shutdown(self) -> None:
        if self._hot is not None:
            # uvicorn waits for requests that have begun, but does not know this one yet.
            self._leave_hot_lane()
        super().shutdown()

    def data_received(self, data: bytes) -> None:
        is_first = self._in_head and not self._head_bytes
        if is_first and self._lane is not None and self._may_respond():
            found = self._lane.recall(data)
            if found is not None and self._recall(*found):
                return
        self._head_bytes += len(data)
        self._forget_answered()
        super().data_received(data)
        if self._in_head:
            if self._head_bytes > HEAD_BYTES:
                self._refuse(_TOO_LARGE)
            elif self._head_bytes and self._deadline is None:
                self._await_head()
            elif is_first and self._lane is not None and self._answered is not None and self._requests == 1:
                self._lane.remember(data, self._answered)
        elif self._hot is not None and self._deadline is None:
            self._hot_due = self.loop.time() + BODY_TIMEOUT_S
            self._deadline = self.loop.call_at(self._hot_due, self._leave_hot_lane)

    def _forget_answered(self) -> None:
        self._requests, self._answered = 0, None

    def _recall(self, hot: "HotCall", body: bytes) -> bool:
        """Answer a request whose head is remembered; return False if its body is invalid."""
        if hot.body_bytes and (len(body) > hot.body_bytes or not hot.decode(body)):
            return False
        self._idle_since = None
        self._stop_waiting()
        self._answer(hot)
        return True

    def on_message_begin(self) -> None:
        # The same as in uvicorn, but without a scope, because the hot lane needs none.
        self.url = b""
        self.headers = []
        self.expect_100_continue = False
        self._requests += 1

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._head_bytes = 0
        self._stop_waiting()
        if self._lane is not None and self._may_respond() and self.parser.get_http_version() == "1.1":
            self._hot = self._lane.enter(self.parser.get_method(), self.url, self.headers)
        if self._hot is None:
            self._begin_ordinary()

    def on_body(self, body: bytes) -> None:
        if self._hot is None:
            super().on_body(body)
            return
        self._hot_body += body
        if len(self._hot_body) > self._hot.body_bytes:
            self._leave_hot_lane()

    def on_message_complete(self) -> None:
        self._in_head = True
        self._head_bytes = 0
        if self._hot is None:
            super().on_message_complete()
            return
        self._stop_waiting()
        if self._hot.body_bytes and not self._hot.decode(bytes(self._hot_body)):
            self._leave_hot_lane()
            super().on_message_complete()
            return
        hot, self._hot, self._hot_body = self._hot, None, bytearray()
        self._answered = hot
        self._answer(hot)

    def _answer(self, hot: "HotCall") -> None:
        cycle = _HotCycle(self)
        hot.run(cycle.respond)
        if not cycle.response_complete:
            # uvicorn queues further requests behind it.
            self.cycle = cycle  # type: ignore[assignment]

    def _may_respond(self) -> bool:
        """Return False if an earlier request has no response yet, or if the client does not read its responses."""
        cycle: object = self.cycle
        return (cycle is None or self.cycle.response_complete) and not self.flow.write_paused

    def _leave_hot_lane(self) -> None:
        """Pass the request that is arriving on to uvicorn."""
        body, self._hot, self._hot_body = bytes(self._hot_body), None, bytearray()
        self._begin_ordinary()
        if self._deadline is not None:
            self._stop_waiting()
            self.scope["state"][BODY_DUE] = self._hot_due
        if body:
            super().on_body(body)

    def _begin_ordinary(self) -> None:
        """Call uvicorn's methods for the head of a request."""
        url, headers, expect_100_continue = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expect_100_continue
        self.headers += headers
        self.scope["state"]["link"] = Link(self.transport)
        super().on_headers_complete()

    def preamble(self) -> bytes:
        """Return the status line and the default headers of a response with status 200."""
        defaults = self.server_state.default_headers
        if self._preamble[0] is not defaults:
            self._preamble = (defaults, STATUS_LINE[200] + _lines(defaults))
        return self._preamble[1]

    def _await_head(self) -> None:
        self._deadline = self.loop.call_later(HEAD_TIMEOUT_S, self._refuse, _TOO_SLOW)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _refuse(self, answer: bytes) -> None:
        self._stop_waiting()
        if not self.transport.is_closing():
            self.transport.write(answer)
            self.transport.close()


class _HotCycle:
    """The response to a request in the hot lane. uvicorn treats it as one of its own RequestResponseCycles."""

    __slots__ = ("_protocol", "disconnected", "keep_alive", "response_complete")

    def __init__(self, protocol: BoundedProtocol) -> None:
        self._protocol = protocol
        self.disconnected = False
        self.keep_alive = True
        self.response_complete = False

    @property
    def message_event(self) -> asyncio.Event:
        """Return an event that nobody waits for."""
        return _NO_EVENT

    def respond(self, status: int, body: bytes, headers: Headers | None) -> None:
        self.response_complete = True
        protocol = self._protocol
        if self.disconnected or protocol.transport.is_closing():
            return
        if headers is None and status == 200 and self.keep_alive:
            protocol.transport.write(
                b"%bcontent-length: %d\r\ncontent-type: application/json\r\n\r\n%b"
                % (protocol.preamble(), len(body), body)
            )
        else:
            if headers is None:
                headers = [(b"content-length", b"%d" % len(body)), (b"content-type", b"application/json")]
            head = STATUS_LINE[status] + _lines(protocol.server_state.default_headers) + _lines(headers)
            close = b"" if self.keep_alive else b"connection: close\r\n"
            protocol.transport.write(b"%b%b\r\n%b" % (head, close, body))
            if not self.keep_alive:
                protocol.transport.close()
        protocol.on_response_complete()


def _lines(headers: Headers) -> bytes:
    return b"".join([b"%b: %b\r\n" % header for header in headers])


class SocketLink(Link):
    def __init__(self, protocol: "BoundedSocket") -> None:
        super().__init__(protocol.transport)
        self._protocol = protocol

    async def send(self, message: bytes) -> None:
        """Send a message made by `text_message`, as soon as the write buffer has room.

        Raises ConnectionError if the connection is closed. All subscribers get the same message, so the caller encodes
        it once; uvicorn would encode it for each of them.
        """
        protocol = self._protocol
        await protocol.writable.wait()
        if protocol.disconnected or protocol.close_sent or protocol.transport.is_closing():
            raise ConnectionError
        protocol.transport.write(message)


def text_message(body: bytes) -> bytes:
    """Encode a text message as a WebSocket frame from a server."""
    return Frame(Opcode.TEXT, body).serialize(mask=False)


class BoundedSocket(WebSocketsSansIOProtocol):
    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        if hasattr(self, "scope"):
            self.scope["state"]["link"] = SocketLink(self)

    def keepalive_timeout(self) -> None:
        super().keepalive_timeout()
        # Unsent data would keep the connection open forever.
        self.transport.abort()
