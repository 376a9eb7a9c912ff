"""Floods and bombs: many slow clients, and small requests that could cost much. Memory stays bounded."""

import asyncio
import contextlib
import gzip
import json
import secrets
import socket
import time
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import websockets
from websockets.asyncio.client import connect

from support.calls import NewBoard, problem
from support.live import live_url
from support.running import ADMIN_KEY, PLAIN, LoggedServer, RunningServer
from support.waiting import until

MIB = 2**20
JSON = {"Content-Type": "application/json"}
BATCH = 8 * MIB


def memory_of(server: RunningServer) -> int:
    return int(psutil.Process(server.pid).memory_info().rss)


def post(api: httpx.Client, board: str, content: bytes, path: str = "scores", **headers: str) -> httpx.Response:
    return api.post(f"/api/v1/leaderboards/{board}/{path}", content=content, headers=JSON | headers)


def test_slow_clients_do_not_delay_others(server: RunningServer, api: httpx.Client) -> None:
    """Heads and bodies that arrive byte by byte, on 300 connections."""
    head = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"
    body = (
        b"PUT /api/v1/leaderboards/default/users/slow HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"X-API-Key: " + ADMIN_KEY.encode() + b"\r\nContent-Length: 1000\r\n\r\n{"
    )
    before = memory_of(server)
    with contextlib.ExitStack() as stack:
        slow = [
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=20)) for _ in range(300)
        ]
        for number, connection in enumerate(slow):
            connection.sendall(head if number % 2 else body)
        for _ in range(5):
            for number, connection in enumerate(slow):
                connection.sendall(b"X" if number % 2 else b" ")
            assert api.get("/api/v1/leaderboards/default/top").status_code == 200
        assert memory_of(server) - before < 30 * MIB


def nested(depth: int) -> bytes:
    return b'{"scores": [{"userId": "a", "score": 1, "metadata": {"a": ' + b"[" * depth + b"]" * depth + b"}}]}"


# By name: the body, and the codes of which the item or the whole batch is refused with one.
BOMBS: dict[str, tuple[bytes, set[str]]] = {
    "deep nesting": (nested(100_000), {"too_deep", "invalid_json", "metadata_too_large"}),
    "deep nesting below the limit of the parser": (nested(500), {"metadata_too_large"}),
    "a number with a million digits": (
        b'{"scores": [{"userId": "a", "score": ' + b"9" * 1_000_000 + b"}]}",
        {"not_finite", "not_exact", "wrong_type", "out_of_range"},
    ),
    "a huge exponent": (b'{"scores": [{"userId": "a", "score": 1e999999999}]}', {"not_finite"}),
    "a long user id": (b'{"scores": [{"userId": "' + b"a" * 1_000_000 + b'", "score": 1}]}', {"wrong_length"}),
    "many members": (
        b'{"scores": [{"userId": "a", "score": 1, "metadata": {'
        + b",".join(b'"k%d": 0' % number for number in range(100_000))
        + b"}}]}",
        {"metadata_too_large"},
    ),
    "escapes": (b'{"scores": [{"userId": "' + b"\\u0041" * 500_000 + b'", "score": 1}]}', {"wrong_length"}),
    "too many items": (
        b'{"scores": [' + b",".join([b"1"] * 100_000) + b"]}",
        {"wrong_length"},
    ),
}


@pytest.mark.parametrize("name", BOMBS)
def test_bomb_is_refused_and_costs_little(
    server: RunningServer, api: httpx.Client, new_board: NewBoard, name: str
) -> None:
    body, codes = BOMBS[name]
    board, before = new_board(), memory_of(server)
    for _ in range(5):
        answer = post(api, board, body)
        refused = answer.json()["results"][0]["problem"] if answer.status_code == 200 else answer.json()
        assert refused["code"] in codes, answer.text[:300]
    assert memory_of(server) - before < 100 * MIB
    assert api.get(f"/api/v1/leaderboards/{board}/top").json()["users"] == []


def test_compressed_body_is_not_decompressed(server: RunningServer, api: httpx.Client, new_board: NewBoard) -> None:
    bomb = gzip.compress(b'{"scores": [' + b" " * (200 * MIB) + b"]}")
    before = memory_of(server)
    answer = api.post(
        f"/api/v1/leaderboards/{new_board()}/scores", content=bomb, headers=JSON | {"Content-Encoding": "gzip"}
    )
    assert answer.status_code in {400, 415}
    assert memory_of(server) - before < 30 * MIB


def test_names_that_make_slow_patterns_slow_are_checked_fast(api: httpx.Client) -> None:
    """A pattern with nested repetition would take years for these."""
    joiners = "\u0915\u200d" * 99
    for name in ("a" * 199 + "\0", joiners + "\u200d\u200d", "\u200d" * 200):
        began = time.monotonic()
        answer = api.put("/api/v1/users/slow", json={"displayName": name}, params={"podId": "default"})
        problem(answer, 422, "wrong_format", "displayName")
        assert time.monotonic() - began < 20


def test_wrong_tokens_leave_nothing_in_memory(tmp_path: Path) -> None:
    """Each is different, so a cache of refused tokens would grow."""
    with RunningServer(tmp_path, wrong_keys_per_minute="0") as server, httpx.Client(verify=PLAIN) as client:
        path = f"{server.url}/api/v1/leaderboards"
        header = "eyJhbGciOiJIUzI1NiIsImtpZCI6ImFkbWluIn0"

        def send(count: int) -> None:
            for number in range(count):
                token = f"{header}.{secrets.token_hex(1000)}.x" if number % 2 else secrets.token_hex(1000)
                assert client.get(path, headers={"Authorization": f"Bearer {token}"}).status_code == 401

        send(200)
        before = memory_of(server)
        send(2000)
        assert memory_of(server) - before < 8 * MIB


@pytest.mark.parametrize(
    "frames",
    [["x" * 100_000], ["{}"] * 2000, [b"\0" * 4000] * 500],
    ids=["a large message", "many messages", "binary messages"],
)
def test_subscriber_that_sends_much_is_disconnected_or_ignored(
    server: RunningServer, frames: list[str | bytes]
) -> None:
    before = memory_of(server)

    async def story() -> None:
        async with connect(live_url(server.url, "default")) as socket:
            with contextlib.suppress(websockets.ConnectionClosed):
                for frame in frames:
                    await socket.send(frame)
                await socket.ping()

    asyncio.run(story())
    assert memory_of(server) - before < 20 * MIB


async def hold(url: str, address: str, board: str, limit: int, stack: contextlib.AsyncExitStack) -> dict[str, Any]:
    """Subscribe without a key from an address, and return the first frame."""
    opening = connect(live_url(url, board, limit=limit), additional_headers={"X-Forwarded-For": address})
    socket = await stack.enter_async_context(opening)
    frame: dict[str, Any] = json.loads(await asyncio.wait_for(socket.recv(), 20))
    return frame


def test_strangers_on_a_public_board_leave_room_for_other_pods(tmp_path: Path) -> None:
    """Once, 517 sockets with large windows of one public board kept all other pods from new live views."""
    with RunningServer(tmp_path, trusted_proxies="127.0.0.1", max_live_per_address="100") as server:
        with server.client() as api:
            api.post("/api/v1/pods", json={"podId": "calm", "name": "Calm"})
            key = api.post("/api/v1/pods/calm/keys", json={"role": "client"}).json()["key"]
            api.post("/api/v1/leaderboards", json={"podId": "calm", "name": "Calm", "UUID": "calm"})

        async def story() -> None:
            async with contextlib.AsyncExitStack() as stack:
                refused = await hold(server.url, "203.0.113.1", "default", 1000, stack)
                assert refused["problem"]["code"] == "out_of_range"
                # Views of their own, from 24 addresses.
                frames = [
                    await hold(server.url, f"203.0.113.{number // 25}", "default", 1 + number % 200, stack)
                    for number in range(600)
                ]
                assert [frame for frame in frames if frame["type"] != "snapshot"] == []
                # The rows of different views count, and each address has its share.
                crowd = [await hold(server.url, "203.0.113.99", "default", 10, stack) for _ in range(101)]
                assert [frame.get("problem", {}).get("code") for frame in crowd] == [None] * 100 + [
                    "too_many_subscriptions"
                ]
                url = live_url(server.url, "calm", limit=1000)
                async with connect(url, additional_headers={"X-API-Key": key}) as socket:
                    assert json.loads(await asyncio.wait_for(socket.recv(), 20))["type"] == "snapshot"

        asyncio.run(story())


def test_bodies_that_never_end_have_bounded_memory(tmp_path: Path) -> None:
    """The ranks of a public board need no key, and their bodies may be large."""
    head = (
        b"POST /api/v1/leaderboards/default/ranks HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"X-Forwarded-For: 203.0.113.7\r\nContent-Length: 2000000\r\n\r\n"
    )
    with RunningServer(tmp_path, trusted_proxies="127.0.0.1") as server, contextlib.ExitStack() as stack:
        before = memory_of(server)
        slow = [
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=20)) for _ in range(60)
        ]
        for connection in slow:
            with contextlib.suppress(ConnectionError):
                connection.sendall(head + b" " * 1_900_000)
        refused = 0
        for connection in slow:
            connection.settimeout(0.2)
            with contextlib.suppress(TimeoutError, ConnectionError):
                refused += b" 503 " in connection.recv(20)
        # 60 bodies have 114 MB, of which one address may have 32 MiB.
        assert refused >= 40
        assert memory_of(server) - before < 80 * MIB
        with server.client() as api:
            answer = api.post("/api/v1/leaderboards/default/ranks", json={"userIds": ["ada"]})
            assert answer.status_code == 200
        for connection in slow:
            connection.close()
        until(lambda: _takes_a_large_body(server), "room again")


def _takes_a_large_body(server: RunningServer) -> bool:
    headers = JSON | {"X-Forwarded-For": "203.0.113.7"}
    body = b'{"userIds": ["ada"]' + b" " * 1_000_000 + b"}"
    path = f"{server.url}/api/v1/leaderboards/default/ranks"
    return httpx.post(path, content=body, headers=headers, timeout=30, verify=PLAIN).status_code == 200


def test_malformed_requests_are_counted_and_do_not_fill_the_log(tmp_path: Path) -> None:
    with LoggedServer(tmp_path) as server:
        for number in range(300):
            with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
                connection.sendall(b"NONSENSE\r\n\r\n" if number % 2 else BAD_UPGRADE)
                assert connection.recv(100).startswith(b"HTTP/1.1 400")
        metrics = httpx.get(f"{server.url}/metrics", verify=PLAIN).text
        for reason in ("malformed", "bad_handshake"):
            assert f'laurels_connections_closed_total{{reason="{reason}"}} 150.0' in metrics
        lines = server.lines()
        assert len(lines) < 20, lines
        assert all(json.loads(line) for line in lines if line.startswith("{"))


BAD_UPGRADE = (
    b"GET /api/v1/leaderboards/default/live HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: short\r\n\r\n"
)
