"""Requests that a proxy and the server could read in two ways: the hidden one must not be answered."""

import contextlib
import socket

import httpx
import pytest

from support.calls import NewBoard
from support.running import ADMIN_KEY, RunningServer

KEY = ADMIN_KEY.encode()
SCORE = b'{"score": 1}'


def hidden(board: str) -> bytes:
    """Return the request that an attacker wants to pass by the proxy."""
    return (
        b"PUT /api/v1/leaderboards/%b/users/smuggled HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"X-API-Key: %b\r\nContent-Length: 12\r\n\r\n%b" % (board.encode(), KEY, SCORE)
    )


# By name: the headers of the outer request, and its body before the hidden request.
AMBIGUOUS = {
    "two lengths": (b"Content-Length: 0\r\nContent-Length: 12\r\n", b""),
    "a list of lengths": (b"Content-Length: 0, 12\r\n", b""),
    "length with a sign": (b"Content-Length: +0\r\n", b""),
    "negative length": (b"Content-Length: -1\r\n", b""),
    "hexadecimal length": (b"Content-Length: 0x0\r\n", b""),
    "length and chunked": (b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", b"0\r\n\r\n"),
    "chunked and length": (b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", b"0\r\n\r\n"),
    "unknown encoding": (b"Transfer-Encoding: xchunked\r\n", b"0\r\n\r\n"),
    "encoding behind a space": (b"Transfer-Encoding : chunked\r\n", b"0\r\n\r\n"),
    "encoding with a tab": (b"Transfer-Encoding:\tchunked\x0b\r\n", b"0\r\n\r\n"),
    "chunked is not last": (b"Transfer-Encoding: chunked, identity\r\n", b"0\r\n\r\n"),
    "two encodings": (b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n", b"0\r\n\r\n"),
    "folded header": (b"Transfer-Encoding:\r\n chunked\r\nContent-Length: 5\r\n", b"0\r\n\r\n"),
    "chunk size with a sign": (b"Transfer-Encoding: chunked\r\n", b"+0\r\n\r\n"),
    "chunk size with an underscore": (b"Transfer-Encoding: chunked\r\n", b"0_0\r\n\r\n"),
    "huge chunk size": (b"Transfer-Encoding: chunked\r\n", b"10000000000000000\r\n\r\n"),
    "line feed in a chunk size": (b"Transfer-Encoding: chunked\r\n", b"0;\n\r\n\r\n"),
    "null byte in a header": (b"X-Odd: a\0b\r\nContent-Length: 0\r\n", b""),
    "line feed in a header": (b"X-Odd: a\rb\r\nContent-Length: 0\r\n", b""),
    "header without a name": (b": odd\r\nContent-Length: 0\r\n", b""),
}


@pytest.mark.parametrize("name", AMBIGUOUS)
def test_hidden_request_is_not_answered(
    server: RunningServer, api: httpx.Client, new_board: NewBoard, name: str
) -> None:
    headers, body = AMBIGUOUS[name]
    board = new_board()
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        connection.sendall(
            b"POST /api/v1/leaderboards/%b/scores HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"%b\r\n%b%b" % (board.encode(), headers, body, hidden(board))
        )
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        with contextlib.suppress(ConnectionError):
            while some := connection.recv(65536):
                answer += some
    assert answer.startswith(b"HTTP/1.1 4"), answer[:200]
    assert answer.count(b"HTTP/1.1 ") == 1
    assert api.get(f"/api/v1/leaderboards/{board}/top").json()["users"] == []


@pytest.mark.parametrize(
    "line",
    [
        b"GET /healthz HTTP/9.9",
        b"GET /healthz HTTP/1.1 GET /metrics HTTP/1.1",
        b"G\xffT /healthz HTTP/1.1",
        b"\0GET /healthz HTTP/1.1",
        b"PRI * HTTP/2.0",
    ],
)
def test_malformed_request_line_is_refused(server: RunningServer, line: bytes) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        connection.sendall(line + b"\r\nHost: x\r\n\r\n")
        connection.shutdown(socket.SHUT_WR)
        answer = connection.recv(65536)
    assert not answer or answer.startswith(b"HTTP/1.1 400"), answer[:200]
