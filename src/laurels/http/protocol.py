"""uvicorn's HTTP and WebSocket protocols with additional limits and the hot lane.

They limit the size of a request's head and trailers, the time until the head has arrived, the requests that wait for
their responses, and the unsent data of a slow reader. The limits of request bodies are in call.py, the limits of
connections in connections.py. Both protocols put a `link` into the state of the ASGI scope, through which an
endpoint controls its connection. Requests that the hot lane can answer (hot_lane.py) never become ASGI calls.
"""

import asyncio
import socket
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame, Opcode
from websockets.http11 import Request

from laurels import tracing
from laurels.http.connections import Connections
from laurels.settings import ServerSettings

if TYPE_CHECKING:
    from laurels.http.addresses import Addresses
    from laurels.http.hot_lane import HotCall, HotLane

Headers = Sequence[tuple[bytes, bytes]]

HEAD_BYTES = 64 * 1024
HEAD_TIMEOUT_S = 30.0
BODY_TIMEOUT_S = 30
# How long a client may read nothing of the responses that wait for it.
UNREAD_TIMEOUT_S = 30.0
# How many requests of a connection may wait for the response to an earlier one.
PIPELINED_REQUESTS = 100
# In the state of a scope: the time by which the body must have arrived, if it is not BODY_TIMEOUT_S from now.
BODY_DUE = "body_due"
# In the state of a scope: the request was chosen to be traced.
IS_TRACED = "is_traced"
# Subscribers to live updates have nothing to send.
SOCKET_MESSAGE_BYTES = 4096
# The WebSocket library accepts a few more headers, and lines that are a little longer.
UPGRADE_HEADERS = 100
UPGRADE_LINE_BYTES = 8000
# Unsent data of a slow subscriber, in the kernel and in this process. The kernel's default is megabytes.
SYSTEM_BUFFER_BYTES = 64 * 1024
BUFFER_BYTES = 32 * 1024

_NO_EVENT = asyncio.Event()

_BAD_REQUEST = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
_TOO_MANY = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
_TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


# Of applications other than ours.
_OTHER_CONNECTIONS = Connections(ServerSettings())


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
        # The bytes of a request since its head or since the last part of its body: trailers, if there are many.
        self._bytes_after_body = 0
        self._deadline: asyncio.TimerHandle | None = None
        # Expires if the client reads nothing of the unsent data, which had this size when the timer started.
        self._unread_deadline: asyncio.TimerHandle | None = None
        self._unsent_bytes = 0
        self._connections = _connections_of(self.app)
        self._is_admitted = False
        # True after a limit has ended the connection: the rest of the data that arrived is ignored.
        self._is_refused = False
        self._is_cut = False
        self._lane: HotLane | None = getattr(self.app, "hot_lane", None)
        self._addresses: Addresses | None = getattr(self.app, "addresses", None)
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
        self._is_admitted = self._connections.admit(_address_of(self.client))
        if self._is_admitted:
            self._await_head()
        else:
            self._is_refused = True
            self.transport.write(_TOO_MANY)
            self._close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self._stop_waiting_for_reader()
        if self._is_admitted:
            self._is_admitted = False
            self._connections.leave(_address_of(self.client))
        super().connection_lost(exc)
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()

    # Keep-alive. uvicorn starts and cancels a timer for each request, which is a large part of the cost of a hot call.
    # Here each connection has one timer. When it expires, it closes the connection if that was idle for the whole time,
    # and starts again for the rest of the time if it was not.

    def _unset_keepalive_if_required(self) -> None:
        # The rest of a body whose request is already answered is not a new request.
        if self._in_head:
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
        if self.transport.is_closing():
            # uvicorn has closed it, because the request or the shutdown of the server asked for that.
            self._wait_for_reader()

    def timeout_keep_alive_handler(self) -> None:
        self.timeout_keep_alive_task = None
        if self._idle_since is None:
            return
        left_s = self._idle_since + self.timeout_keep_alive - self.loop.time()
        if left_s > 0:
            self.timeout_keep_alive_task = self.loop.call_later(left_s, self.timeout_keep_alive_handler)
        else:
            self._close()

    def shutdown(self) -> None:
        if self._hot is not None:
            # uvicorn waits for requests that have begun, but does not know this one yet.
            self._leave_hot_lane()
        super().shutdown()

    def handle_websocket_upgrade(self) -> None:
        lines = [len(name) + len(value) for name, value in self.headers]
        if len(lines) > UPGRADE_HEADERS or max([len(self.url), *lines]) > UPGRADE_LINE_BYTES:
            self._refuse(_TOO_LARGE, "large_head")
            return
        # From here on, BoundedSocket is the protocol of the connection.
        self._is_admitted = False
        self._idle_since = None
        self._stop_waiting_for_reader()
        super().handle_websocket_upgrade()
        socket_protocol = self.transport.get_protocol()
        if self.flow.write_paused and isinstance(socket_protocol, BoundedSocket):
            socket_protocol.pause_writing()

    def send_400_response(self, msg: str) -> None:
        self._connections.note_closed("malformed", _address_of(self.client))
        super().send_400_response(msg)
        self._wait_for_reader()

    # Slow readers. A connection is cut if its client reads nothing for UNREAD_TIMEOUT_S while data waits for it: while
    # writing is paused, and after the connection was closed, because a transport first sends what is left.

    def pause_writing(self) -> None:
        super().pause_writing()
        self._wait_for_reader()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.transport.is_closing():
            self._stop_waiting_for_reader()

    def _close(self) -> None:
        """Close the connection as soon as the client has read what was sent."""
        self.transport.close()
        self._wait_for_reader()

    def _wait_for_reader(self) -> None:
        if self._unread_deadline is None:
            self._unsent_bytes = self.transport.get_write_buffer_size()
            self._unread_deadline = self.loop.call_later(UNREAD_TIMEOUT_S, self._check_reader)

    def _check_reader(self) -> None:
        self._unread_deadline = None
        unsent_bytes = self.transport.get_write_buffer_size()
        if 0 < unsent_bytes < self._unsent_bytes:
            self._wait_for_reader()
        elif unsent_bytes:
            self._cut("unread")

    def _stop_waiting_for_reader(self) -> None:
        if self._unread_deadline is not None:
            self._unread_deadline.cancel()
            self._unread_deadline = None

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        is_first = self._in_head and not self._head_bytes
        if is_first and self._lane is not None and self._may_respond():
            found = self._lane.recall(data)
            if found is not None and self._recall(*found):
                return
        self._head_bytes += len(data)
        self._bytes_after_body += len(data)
        self._forget_answered()
        super().data_received(data)
        if is_first and self._in_head and self._lane is not None and self._answered is not None and self._requests == 1:
            self._lane.remember(data, self._answered)
        self._limit_request()

    def _limit_request(self) -> None:
        """Check the size of a request that is arriving, and limit the time for the rest of it."""
        if self._is_refused:
            return
        if self._in_head:
            if self._head_bytes > HEAD_BYTES:
                self._refuse(_TOO_LARGE, "large_head")
            elif self._head_bytes and self._deadline is None:
                self._await_head()
        elif self._bytes_after_body > HEAD_BYTES:
            self._refuse(_TOO_LARGE, "large_trailers")
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
        self._idle_since = None
        if len(self.pipeline) >= PIPELINED_REQUESTS:
            self._cut("pipeline")

    def on_header(self, name: bytes, value: bytes) -> None:
        # A trailer must not become a header: the guards have checked the headers.
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._is_refused:
            return
        self._in_head = False
        self._head_bytes = self._bytes_after_body = 0
        self._stop_waiting()
        if self._lane is not None and self._may_respond() and self.parser.get_http_version() == "1.1":
            self._hot = self._lane.enter(self.parser.get_method(), self.url, self.headers)
            is_traced = self._lane.is_traced
        else:
            is_traced = tracing.chooses()
        if self._hot is None:
            self._begin_ordinary(is_traced=is_traced)

    def on_body(self, body: bytes) -> None:
        if self._is_refused:
            return
        self._bytes_after_body = 0
        if self._hot is None:
            super().on_body(body)
            return
        self._hot_body += body
        if len(self._hot_body) > self._hot.body_bytes:
            self._leave_hot_lane()

    def on_message_complete(self) -> None:
        if self._is_refused:
            return
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
        address = _address_of(self.client)
        if self._addresses is not None and self._addresses.is_proxy(address):
            address = self._addresses.of(address, hot.headers)
        cycle = _HotCycle(self, hot, address)
        hot.run(address, cycle.respond)
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

    def _begin_ordinary(self, *, is_traced: bool = False) -> None:
        """Call uvicorn's methods for the head of a request."""
        url, headers, expect_100_continue = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expect_100_continue
        self.headers += headers
        self.scope["state"]["link"] = Link(self.transport)
        self.scope["state"][IS_TRACED] = is_traced
        super().on_headers_complete()

    def preamble(self) -> bytes:
        """Return the status line and the default headers of a response with status 200."""
        defaults = self.server_state.default_headers
        if self._preamble[0] is not defaults:
            self._preamble = (defaults, STATUS_LINE[200] + _lines(defaults))
        return self._preamble[1]

    def _await_head(self) -> None:
        self._deadline = self.loop.call_later(HEAD_TIMEOUT_S, self._refuse, _TOO_SLOW, "slow_head")

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _refuse(self, answer: bytes, reason: str) -> None:
        """Send a last answer, and close the connection."""
        self._stop_waiting()
        self._is_refused = True
        if not self.transport.is_closing():
            self._connections.note_closed(reason, _address_of(self.client))
            self.transport.write(answer)
            self._close()

    def _cut(self, reason: str) -> None:
        """Close the connection at once, and discard its requests and unsent data."""
        self._is_refused = True
        if not self._is_cut:
            self._is_cut = True
            self._connections.note_closed(reason, _address_of(self.client))
            self.pipeline.clear()
            self.transport.abort()


class _HotCycle:
    """The response to a request in the hot lane. uvicorn treats it as one of its own RequestResponseCycles."""

    __slots__ = ("_address", "_began", "_hot", "_protocol", "disconnected", "keep_alive", "response_complete")

    def __init__(self, protocol: BoundedProtocol, hot: "HotCall", address: str) -> None:
        self._protocol = protocol
        self._hot = hot
        self._address = address
        self._began = time.perf_counter()
        self.disconnected = False
        self.keep_alive = True
        self.response_complete = False

    @property
    def message_event(self) -> asyncio.Event:
        """Return an event that nobody waits for."""
        return _NO_EVENT

    def respond(self, status: int, body: bytes, headers: Headers | None) -> None:
        self.response_complete = True
        self._hot.note(self._began, self._address, status, len(body))
        protocol = self._protocol
        if self.disconnected or protocol.transport.is_closing():
            return
        if headers is None and status == 200 and self.keep_alive:
            protocol.transport.write(
                b"%bcontent-length: %d\r\ncontent-type: application/json\r\n%b\r\n%b"
                % (protocol.preamble(), len(body), self._hot.plan.extra_lines, body)
            )
        else:
            extra = b""
            if headers is None:
                headers = [(b"content-length", b"%d" % len(body)), (b"content-type", b"application/json")]
                extra = self._hot.plan.extra_lines
            head = STATUS_LINE[status] + _lines(protocol.server_state.default_headers) + _lines(headers) + extra
            close = b"" if self.keep_alive else b"connection: close\r\n"
            protocol.transport.write(b"%b%b\r\n%b" % (head, close, body))
            if not self.keep_alive:
                protocol.transport.close()
        protocol.on_response_complete()


def _connections_of(app: object) -> Connections:
    return getattr(app, "connections", _OTHER_CONNECTIONS)


def _address_of(client: tuple[str, int] | None) -> str:
    """Return the address of a client, without the port; empty for a local socket."""
    return "" if client is None else client[0]


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
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._connections = _connections_of(self.app)
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._deadline = self.loop.call_later(HEAD_TIMEOUT_S, self._end_handshake)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._connections.leave(_address_of(self.client))
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.handshake_exc is not None and not self.handshake_initiated and not self.transport.is_closing():
            # The WebSocket library refused the request, and uvicorn does not answer.
            self._connections.note_closed("bad_handshake", _address_of(self.client))
            self.transport.write(_BAD_REQUEST)
            self.transport.close()

    def _end_handshake(self) -> None:
        if not self.handshake_complete:
            self._connections.note_closed("slow_handshake", _address_of(self.client))
            self.transport.abort()

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        if hasattr(self, "scope"):
            self.scope["state"]["link"] = SocketLink(self)
        else:
            # The library has refused the request, and uvicorn sends its answer.
            self._connections.note_closed("bad_handshake", _address_of(self.client))

    def keepalive_timeout(self) -> None:
        super().keepalive_timeout()
        # Unsent data would keep the connection open forever.
        self.transport.abort()
