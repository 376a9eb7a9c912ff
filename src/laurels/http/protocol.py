"""uvicorn's protocols with bounds that they lack: how large the head of a request may be, how long it may take to
arrive, and how much may wait for one who does not read it. The body's bounds are in call.py.

Both put a `link` into the state of a scope: what an endpoint may do to the connection that it answers.
"""

import asyncio
import socket
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame, Opcode
from websockets.http11 import Request

HEAD_BYTES = 64 * 1024
HEAD_TIMEOUT_S = 30.0
# Nothing is expected from those who look at a board.
SOCKET_MESSAGE_BYTES = 4096
# How much waits, in the system and here, for one who does not read what goes on. The system would keep megabytes.
SYSTEM_BUFFER_BYTES = 64 * 1024
BUFFER_BYTES = 32 * 1024

_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
_TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class Link:
    """The connection under a request."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    def bound(self) -> None:
        """Let no more wait than a moment's worth: for an answer that goes on."""
        self._transport.set_write_buffer_limits(BUFFER_BYTES)
        connection = self._transport.get_extra_info("socket")
        if connection is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SYSTEM_BUFFER_BYTES)

    def cut(self) -> None:
        """End it, whatever is still to be sent."""
        self._transport.abort()


class BoundedProtocol(HttpToolsProtocol):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._in_head = True
        self._head_bytes = 0
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._head_bytes += len(data)
        super().data_received(data)
        if self._in_head and self._head_bytes:
            if self._head_bytes > HEAD_BYTES:
                self._refuse(_TOO_LARGE)
            elif self._deadline is None:
                self._await_head()

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._head_bytes = 0
        self._stop_waiting()
        self.scope["state"]["link"] = Link(self.transport)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_head = True
        self._head_bytes = 0
        super().on_message_complete()

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


class SocketLink(Link):
    def __init__(self, protocol: "BoundedSocket") -> None:
        super().__init__(protocol.transport)
        self._protocol = protocol

    async def send(self, message: bytes) -> None:
        """Send what `text_message` made, when there is room for it. ConnectionError: it is closed.

        What a server sends is the same for all who get it, so it is made once; uvicorn would make it for each.
        """
        protocol = self._protocol
        await protocol.writable.wait()
        if protocol.disconnected or protocol.close_sent or protocol.transport.is_closing():
            raise ConnectionError
        protocol.transport.write(message)


def text_message(body: bytes) -> bytes:
    """A text as it goes over a WebSocket, from a server."""
    return Frame(Opcode.TEXT, body).serialize(mask=False)


class BoundedSocket(WebSocketsSansIOProtocol):
    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        if hasattr(self, "scope"):
            self.scope["state"]["link"] = SocketLink(self)

    def keepalive_timeout(self) -> None:
        super().keepalive_timeout()
        # What is still to be sent would keep it open for ever.
        self.transport.abort()
