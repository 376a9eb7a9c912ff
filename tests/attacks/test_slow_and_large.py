"""Clients that send too much or nothing: the head and the body of a request have limits in size and time."""

import asyncio
import contextlib
import socket
from pathlib import Path

import pytest

import laurels.server as server_module
from laurels.http import call, protocol
from support.running import ADMIN_KEY, RunningServer
from support.serving import with_server

HEAD = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"
PUT = (
    b"PUT /api/v1/leaderboards/default/users/ada HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    b"X-API-Key: " + ADMIN_KEY.encode() + b"\r\nContent-Length: 100\r\n\r\n"
)


@pytest.mark.parametrize("pieces", [[b"x" * 30_000], [b"x" * 30_000, b"x" * 20_000]])
def test_large_request_head_within_the_limit_is_accepted(server: RunningServer, pieces: list[bytes]) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(HEAD + b"X-Fine: ")
        for piece in pieces:
            connection.sendall(piece)
        connection.sendall(b"\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 200")


def test_request_head_over_the_limit_is_refused(server: RunningServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        # The server closes the connection while the client is still sending.
        with contextlib.suppress(ConnectionError):
            connection.sendall(HEAD)
            for _ in range(1000):
                connection.sendall(b"X-Long: " + b"x" * 10_000 + b"\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 431")


@pytest.mark.parametrize("sent", [b"", HEAD, PUT + b'{"score"'], ids=["nothing", "half a head", "half a body"])
@pytest.mark.parametrize("used", [False, True], ids=["new connection", "used connection"])
def test_incomplete_request_times_out(used: bool, sent: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "KEEP_ALIVE_S", 1)

    async def talk(port: int) -> None:
        if not used:
            shorten()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        if used:
            writer.write(HEAD + b"\r\n")
            assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 200")
            shorten()
        writer.write(sent)
        async with asyncio.timeout(20):
            answer = await reader.read(1000)
        # The server closes an idle keep-alive connection without a response.
        assert answer.startswith(b"HTTP/1.1 408") or (used and not sent and not answer)
        writer.close()

    def shorten() -> None:
        monkeypatch.setattr(protocol, "HEAD_TIMEOUT_S", 0.2)
        monkeypatch.setattr(call, "BODY_TIMEOUT_S", 0.2)
        monkeypatch.setattr(protocol, "BODY_TIMEOUT_S", 0.2)

    with_server(tmp_path, talk)
