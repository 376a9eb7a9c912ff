"""Attacks that need no key: connections that send too much, read nothing, or never end."""

import asyncio
import contextlib
import socket
from pathlib import Path

import httpx
import psutil
import pytest

import laurels.server as server_module
from laurels.http import protocol
from support.running import ADMIN_KEY, PLAIN, RunningServer
from support.serving import with_server
from support.waiting import until, until_async

MIB = 2**20
UPGRADE = (
    b"GET /api/v1/leaderboards/default/live HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
)
CHUNKED = (
    b"PUT /api/v1/leaderboards/default/users/ada HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    b"X-API-Key: %b\r\nTransfer-Encoding: chunked\r\n\r\n"
)


def connect(server: RunningServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=20)


def memory_of(server: RunningServer) -> int:
    return int(psutil.Process(server.pid).memory_info().rss)


def closed(url: str, reason: str) -> float:
    """Return how many connections a server has closed for a reason."""
    text = httpx.get(f"{url}/metrics", verify=PLAIN).text
    name = f'laurels_connections_closed_total{{reason="{reason}"}} '
    return sum(float(line.removeprefix(name)) for line in text.splitlines() if line.startswith(name))


def read_all(connection: socket.socket) -> bytes:
    answer = b""
    with contextlib.suppress(ConnectionError):
        while some := connection.recv(65536):
            answer += some
    return answer


@pytest.mark.parametrize("trailer", [b"X-Trailer: " + b"x" * 10_000 + b"\r\n", b"x" * 10_000], ids=["many", "one"])
@pytest.mark.parametrize("key", [ADMIN_KEY.encode(), b"wrong"], ids=["with a key", "without a key"])
def test_trailers_are_bounded(server: RunningServer, trailer: bytes, key: bytes) -> None:
    before, refused = memory_of(server), closed(server.url, "large_trailers")
    with connect(server) as connection:
        connection.sendall(CHUNKED % key + b'c\r\n{"score": 1}\r\n0\r\n' + b"X-First: ")
        with contextlib.suppress(ConnectionError):
            for _ in range(3000):
                connection.sendall(trailer)
        read_all(connection)
    assert closed(server.url, "large_trailers") == refused + 1
    assert memory_of(server) - before < 10 * MIB


def test_trailers_are_no_headers(server: RunningServer) -> None:
    """Otherwise a proxy that checks the headers could be bypassed."""
    with connect(server) as connection:
        connection.sendall(
            b"PUT /api/v1/leaderboards/default/users/ada HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
            b'c\r\n{"score": 1}\r\n0\r\nX-API-Key: ' + ADMIN_KEY.encode() + b"\r\n\r\n"
        )
        assert read_all(connection).startswith(b"HTTP/1.1 401")


def test_short_trailers_and_tiny_chunks_are_accepted(server: RunningServer) -> None:
    body = b'{"score": 1, "eventId": "' + b"e" * 50 + b'", "metadata": {"a": "' + b"b" * 2000 + b'"}}'
    chunks = b"".join(b"1;x=%b\r\n%c\r\n" % (b"y" * 100, byte) for byte in body)
    with connect(server) as connection:
        connection.sendall(CHUNKED % ADMIN_KEY.encode() + chunks + b"0\r\nX-Trailer: fine\r\n\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")


def test_pipelined_requests_are_bounded(server: RunningServer) -> None:
    """The client sends many requests at once, and reads no response."""
    before, cut = memory_of(server), closed(server.url, "pipeline")
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(connect(server)) for _ in range(40)]
        for connection in connections:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.settimeout(1)
            with contextlib.suppress(ConnectionError, TimeoutError):
                connection.sendall(b"GET /docs HTTP/1.1\r\nHost: x\r\n\r\n" * (250_000 // 32))
        until(lambda: closed(server.url, "pipeline") >= cut + 40, "the end of the connections")
        assert memory_of(server) - before < 60 * MIB


def test_pipelined_requests_within_the_limit_are_answered_in_order(server: RunningServer) -> None:
    count = protocol.PIPELINED_REQUESTS
    last = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    with connect(server) as connection:
        connection.sendall(b"GET /nosuch HTTP/1.1\r\nHost: x\r\n\r\n" * (count - 1) + last)
        answer = read_all(connection)
    assert answer.count(b"HTTP/1.1 404") == count - 1
    assert answer.rpartition(b"HTTP/1.1 ")[2].startswith(b"200")


def test_upgrade_that_is_no_handshake_is_refused(server: RunningServer) -> None:
    with connect(server) as connection:
        connection.sendall(UPGRADE + b"Content-Length: 3\r\n\r\nabc")
        assert read_all(connection).startswith(b"HTTP/1.1 400")


@pytest.mark.parametrize(
    "headers", [b"X-Many: 1\r\n" * 200, b"X-Long: " + b"x" * 20_000 + b"\r\n"], ids=["many headers", "a long header"]
)
def test_upgrade_with_a_large_head_is_refused(server: RunningServer, headers: bytes) -> None:
    with connect(server) as connection:
        connection.sendall(UPGRADE + headers + b"\r\n")
        assert read_all(connection).startswith(b"HTTP/1.1 431")


def test_connections_are_limited_per_address_and_in_total(tmp_path: Path) -> None:
    with RunningServer(tmp_path, max_connections="6", max_connections_per_address="4") as server:
        with contextlib.ExitStack() as stack:
            opened = [stack.enter_context(connect(server)) for _ in range(4)]
            with connect(server) as connection:
                assert read_all(connection).startswith(b"HTTP/1.1 503")
            # Addresses of the loopback network are addresses of other clients.
            for host in ("127.0.0.2", "127.0.0.3"):
                other = socket.create_connection(("127.0.0.1", server.port), 20, (host, 0))
                opened.append(stack.enter_context(other))
            with socket.create_connection(("127.0.0.1", server.port), 20, ("127.0.0.4", 0)) as connection:
                assert read_all(connection).startswith(b"HTTP/1.1 503")
            for connection in opened:
                connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
                answer = b""
                while not answer.endswith(b"}"):
                    answer += connection.recv(1000)
                assert answer.startswith(b"HTTP/1.1 200")
            # A WebSocket counts until it ends.
            opened[0].sendall(UPGRADE + b"\r\n")
            assert opened[0].recv(1000).startswith(b"HTTP/1.1 101")
            opened[0].close()
            until(lambda: _is_admitted(server), "a free connection")
        until(lambda: _is_admitted(server), "free connections")
        assert closed(server.url, "too_many_of_address") >= 1
        assert closed(server.url, "too_many") >= 1


def _is_admitted(server: RunningServer) -> bool:
    with connect(server) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        return read_all(connection).startswith(b"HTTP/1.1 200")


def test_answered_request_whose_body_never_ends_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "KEEP_ALIVE_S", 1)

    async def talk(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(
            b"PUT /api/v1/leaderboards/default/users/ada HTTP/1.1\r\nHost: x\r\nX-API-Key: wrong\r\n"
            b"Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n"
        )
        assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 401")
        writer.write(b"{")
        async with asyncio.timeout(20):
            assert await reader.read() == b""
        writer.close()

    with_server(tmp_path, talk)


def test_request_behind_an_answered_body_is_not_idle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of the body and the next request arrive together."""
    monkeypatch.setattr(server_module, "KEEP_ALIVE_S", 1)

    async def talk(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(
            b"PUT /api/v1/leaderboards/default/users/ada HTTP/1.1\r\nHost: x\r\nX-API-Key: wrong\r\n"
            b"Content-Type: application/json\r\nContent-Length: 2\r\n\r\n"
        )
        assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 401")
        writer.write(b"{}GET /api/v1/leaderboards/default/stream HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"200 OK" in await reader.readuntil(b"snapshot")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2.5):
                while await reader.read(65536):
                    pass
        assert not reader.at_eof()
        writer.close()

    with_server(tmp_path, talk)


@pytest.mark.parametrize("last", [b"", b"X-Long: " + b"x" * 100_000], ids=["waits", "is refused"])
def test_client_that_does_not_read_is_disconnected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: bytes
) -> None:
    monkeypatch.setattr(protocol, "UNREAD_TIMEOUT_S", 0.3)

    async def talk(port: int) -> None:
        url = f"http://127.0.0.1:{port}"
        cut = await asyncio.to_thread(closed, url, "unread")
        connection = socket.create_connection(("127.0.0.1", port))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        request = b"GET /docs HTTP/1.1\r\nHost: x\r\n"
        connection.sendall((request + b"\r\n") * 90)
        if last:
            # Closed with 431, while the responses before it are unread.
            connection.sendall(request + last)

        async def is_cut() -> bool:
            return await asyncio.to_thread(closed, url, "unread") == cut + 1

        await until_async(is_cut, "the end of the connection")
        connection.close()

    with_server(tmp_path, talk)


def test_unfinished_handshake_of_a_websocket_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def talk(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        # The application never answers.
        blocked = asyncio.Event()
        monkeypatch.setattr(protocol, "HEAD_TIMEOUT_S", 0.3)
        monkeypatch.setattr(protocol.BoundedSocket, "run_asgi", lambda _self: blocked.wait())
        writer.write(UPGRADE + b"\r\n")
        async with asyncio.timeout(20):
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
        blocked.set()
        writer.close()

    with_server(tmp_path, talk)
