"""Fan-out: the time from the response to a write to the frame at every subscriber, and the cost of slow subscribers.

Baseline in the same run: a bare broadcast by the same server (uvicorn, the same WebSocket protocol), which sends the
same bytes to all subscribers every tick and has no boards. Compare ratios, not times: subscribers, writer and server
share the machine's cores.
"""

import argparse
import asyncio
import base64
import contextlib
import os
import platform
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import httpx
import psutil
import uvicorn
import uvloop

from callers import quantile
from laurels.http.protocol import BoundedProtocol, BoundedSocket
from support.running import ADMIN_KEY, RunningServer, free_port
from support.stores import temporary_folder

BOARD = "/api/v1/leaderboards/fan-out"
MARKER = "marker"
TICK_S = 0.1
USERS = 10_000
WARM_S = 1.0


class Subscriber(asyncio.Protocol):
    """A WebSocket that only records when each frame arrived.

    A stuck subscriber reads nothing after the handshake.
    """

    def __init__(self, path: str, arrivals: "Arrivals", *, stuck: bool = False) -> None:
        self._path = path
        self._arrivals = arrivals
        self._stuck = stuck
        self._open = False
        self._held = b""
        self.closed = asyncio.get_running_loop().create_future()
        self.ready = asyncio.get_running_loop().create_future()
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport
        key = base64.b64encode(os.urandom(16)).decode()
        transport.write(
            f"GET {self._path} HTTP/1.1\r\nHost: bench\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )

    def data_received(self, data: bytes) -> None:
        now = time.monotonic()
        held = self._held + data
        if not self._open:
            head, found, held = held.partition(b"\r\n\r\n")
            if not found:
                self._held = head
                return
            assert head.startswith(b"HTTP/1.1 101"), head
            self._open = True
            self.ready.set_result(None)
            if self._stuck:
                self.transport.pause_reading()
        while len(held) >= 2:
            length, start = held[1], 2
            if length >= 126:
                size = 2 if length == 126 else 8
                length, start = int.from_bytes(held[2 : 2 + size], "big"), 2 + size
            if len(held) < start + length:
                break
            if held[0] == 0x81:
                self._arrivals.note(held[start : start + length], now)
            elif held[0] == 0x89:
                self.transport.write(b"\x8a%c\0\0\0\0%b" % (0x80 | length, held[start : start + length]))
            held = held[start + length :]
        self._held = held

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        if not self.closed.done():
            self.closed.set_result(None)


class Arrivals:
    """For each frame, the newest write that it shows, and its delay after the response to that write."""

    def __init__(self) -> None:
        # By score: when its write was answered.
        self.answered: dict[float, float] = {}
        self._shows: dict[bytes, float] = {}
        self._came: list[tuple[float, float]] = []
        self.frames = 0
        self.bytes = 0

    def note(self, frame: bytes, now: float) -> None:
        self.frames += 1
        self.bytes += len(frame)
        shows = self._shows.get(frame)
        if shows is None:
            shows = self._shows[frame] = _shown(frame)
        if shows:
            self._came.append((shows, now))

    def times(self) -> list[float]:
        return [max(0.0, now - self.answered[shows]) for shows, now in self._came if shows in self.answered]

    def clear(self) -> None:
        self._came.clear()
        self.answered.clear()
        self.frames = self.bytes = 0


def _shown(frame: bytes) -> float:
    """Return the score of the user that is written, or 0 if the frame does not have it."""
    _, found, rest = frame.partition(b'"userId":"marker"')
    return float(rest.partition(b'"score":')[2].partition(b",")[0]) if found else 0.0


# The bare broadcast


async def _bare(port: int) -> None:
    sockets: set[Any] = set()
    latest = [b"{}", b"{}"]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.accept"})
            sockets.add(send)
            with contextlib.suppress(Exception):
                while (await receive())["type"] != "websocket.disconnect":
                    pass
            sockets.discard(send)
        elif scope["type"] == "http":
            latest[0] = (await receive())["body"]
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body", "body": b""})

    async def broadcast() -> None:
        while True:
            await asyncio.sleep(TICK_S)
            if latest[0] != latest[1]:
                latest[1] = latest[0]
                text = latest[0].decode()
                await asyncio.gather(
                    *(one({"type": "websocket.send", "text": text}) for one in list(sockets)), return_exceptions=True
                )

    config = uvicorn.Config(
        app, port=port, http=BoundedProtocol, ws=BoundedSocket, ws_per_message_deflate=False, lifespan="off",
        log_level="critical",
    )  # fmt: skip
    sending = asyncio.create_task(broadcast())
    await uvicorn.Server(config).serve()
    sending.cancel()


@contextlib.contextmanager
def bare_server() -> Any:
    port = free_port()
    process = subprocess.Popen([sys.executable, __file__, "--bare", str(port)])
    try:
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.05)
        yield process.pid, port
    finally:
        process.kill()
        process.wait()


# Measuring


class Measured:
    def __init__(self, times: list[float], delivered: float, cpu_us: float, kib: float) -> None:
        self.times = times
        self.delivered = delivered
        self.cpu_us = cpu_us
        self.kib = kib

    def told(self) -> str:
        return (
            f"p50 {quantile(self.times, 0.5):6.1f} ms, p99 {quantile(self.times, 0.99):6.1f} ms; "
            f"{self.delivered:8,.0f} frames/s; server {self.cpu_us:6.1f} us per frame; "
            f"{self.kib:5.1f} KiB per subscriber"
        )


async def connect(port: int, path: str, count: int, arrivals: Arrivals, *, stuck: bool = False) -> list[Subscriber]:
    made: list[Subscriber] = []
    loop = asyncio.get_running_loop()
    for _ in range(count):
        connection = socket.socket()
        if stuck:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.setblocking(False)
        await loop.sock_connect(connection, ("127.0.0.1", port))
        _, subscriber = await loop.create_connection(lambda: Subscriber(path, arrivals, stuck=stuck), sock=connection)
        await subscriber.ready
        made.append(subscriber)
    return made


@contextlib.asynccontextmanager
async def subscribed(
    pid: int, port: int, path: str, count: int, arrivals: Arrivals, seconds: float
) -> AsyncIterator[float]:
    """Connect subscribers, and yield the memory per subscriber in the server, in KiB."""
    before = psutil.Process(pid).memory_info().rss
    made = await connect(port, path, count, arrivals)
    await asyncio.sleep(min(WARM_S, seconds / 4))
    yield (psutil.Process(pid).memory_info().rss - before) / count / 1024
    for one in made:
        one.transport.abort()
    await asyncio.sleep(min(WARM_S, seconds / 4))


def next_score(number: int) -> float:
    """Return a different score each time, far ahead of all or in the middle of the top hundred.

    So half of the visible rows move each time.
    """
    ahead = number * 2_654_435_761 % 2**32 < 2**31
    return number if ahead else USERS - 50 + (number % 1_000_000) / 1_000_000


async def measure(pid: int, arrivals: Arrivals, kib: float, seconds: float, write: Any, rate: float) -> Measured:
    arrivals.clear()
    process = psutil.Process(pid)
    used = sum(process.cpu_times()[:2])
    began = time.monotonic()
    number = int(time.time() * 1000)
    sent = 0
    while (passed := time.monotonic() - began) < seconds:
        if sent < passed * rate:
            sent += 1
            number += 1
            await write(next_score(number))
            arrivals.answered[next_score(number)] = time.monotonic()
        else:
            await asyncio.sleep(max(0.0, sent / rate - passed))
    await asyncio.sleep(2 * TICK_S)
    cpu = sum(process.cpu_times()[:2]) - used
    return Measured(arrivals.times(), arrivals.frames / seconds, 1e6 * cpu / max(1, arrivals.frames), kib)


async def compare(server: RunningServer, rounds: list[tuple[int, int, int]], seconds: float) -> None:
    async with httpx.AsyncClient(base_url=server.url, headers={"X-API-Key": ADMIN_KEY}) as client:
        for subscribers, rate, rows in rounds:
            print(f"\n{subscribers:,} subscribers of the top {rows}, {rate:g} writes/s")
            arrivals = Arrivals()
            live = f"{BOARD}/live?limit={rows}"
            async with subscribed(server.pid, server.port, live, subscribers, arrivals, seconds) as kib:
                laurels = await measure(server.pid, arrivals, kib, seconds, partial(put, client), rate)
            size = arrivals.bytes / max(1, arrivals.frames)
            frame = b'{"userId":"marker","score":%b,"padding":"' + b"x" * (int(size) - 60) + b'"}'
            with bare_server() as (pid, port):
                async with (
                    httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as poster,
                    subscribed(pid, port, "/", subscribers, arrivals, seconds) as kib,
                ):
                    bare = await measure(pid, arrivals, kib, seconds, partial(post, poster, frame), rate)
            print(f"  laurels          {laurels.told()}")
            print(f"  bare broadcast   {bare.told()}")
            ratio = laurels.cpu_us / bare.cpu_us if bare.cpu_us else float("nan")
            print(f"  a frame of {size:,.0f} bytes costs the server {ratio:.2f} times the bare one, writes included")


async def put(client: httpx.AsyncClient, score: float) -> None:
    answer = await client.put(f"{BOARD}/users/{MARKER}", json={"score": score})
    assert answer.status_code == 200, answer.text


async def post(client: httpx.AsyncClient, frame: bytes, score: float) -> None:
    await client.post("/", content=frame.replace(b"%b", repr(score).encode()))


async def stuck_ones(server: RunningServer, good: int, stuck: int, seconds: float) -> None:
    live = f"{BOARD}/live?limit=100"
    async with httpx.AsyncClient(base_url=server.url, headers={"X-API-Key": ADMIN_KEY}) as client:
        print(f"\n{good:,} subscribers of the top 100, 20 writes/s, without and with {stuck:,} that read nothing")
        arrivals, nowhere = Arrivals(), Arrivals()

        async def look(kib: float) -> Measured:
            return await measure(server.pid, arrivals, kib, seconds, partial(put, client), 20)

        async def cut_off() -> int:
            return int(float((await client.get("/metrics")).text.split("\nlaurels_live_cut_off_total ")[1].split()[0]))

        async with subscribed(server.pid, server.port, live, good, arrivals, seconds) as kib:
            alone = await look(kib)
            before = psutil.Process(server.pid).memory_info().rss
            others = await connect(server.port, live, stuck, nowhere, stuck=True)
            # Until their queues are full.
            filling = await look(kib)
            most = psutil.Process(server.pid).memory_info().rss - before
            beside = await look(kib)
            for _ in range(10):
                if await cut_off() >= stuck:
                    break
                await look(kib)
            after = await look(kib)
        for name, one in (("without", alone), ("queues filling", filling), ("stuck", beside), ("cut off", after)):
            print(f"  {name:16} {one.told()}")
        ratio = quantile(beside.times, 0.5) / quantile(alone.times, 0.5)
        # The CPU time of a short run can be measured as 0.
        cost = f"{beside.cpu_us / alone.cpu_us:.2f}" if alone.cpu_us else "not known"
        print(f"  with stuck subscribers, relative to without: p50 {ratio:.2f}, server time per frame {cost}")
        print(
            f"  {most / stuck / 1024:.0f} KiB per stuck subscriber; "
            f"disconnected at the end: {await cut_off():,} of {len(others):,}"
        )


def fill(server: RunningServer) -> None:
    with server.client() as client:
        board = {"UUID": BOARD.rpartition("/")[2], "podId": "default", "name": "Fan-out", "rule": "latest"}
        made = client.post("/api/v1/leaderboards", json=board | {"public": True})
        assert made.status_code == 201, made.text
        for first in range(0, USERS, 5000):
            scores = [{"userId": f"u{number}", "score": number} for number in range(first, first + 5000)]
            assert client.post(f"{BOARD}/scores", json={"scores": scores}).status_code == 200


async def run(chosen: argparse.Namespace) -> None:
    with temporary_folder() as folder, RunningServer(folder) as server:
        fill(server)
        most = chosen.subscribers
        rounds = [(most // 30, 10, 10), (most // 3, 10, 10), (most // 3, 100, 10), (most, 20, 10), (most // 6, 20, 100)]
        await compare(server, [(max(1, each[0]), *each[1:]) for each in rounds], chosen.seconds)
        server.restart_with()
        await stuck_ones(server, max(1, chosen.stuck // 5), chosen.stuck, chosen.seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--subscribers", type=int, default=3000, help="subscribers in the largest round")
    parser.add_argument(
        "--stuck", type=int, default=1000, help="subscribers that read nothing, next to a fifth as many others"
    )
    parser.add_argument("--seconds", type=float, default=8, help="seconds per round")
    parser.add_argument("--bare", type=int, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.bare:
        uvloop.run(_bare(chosen.bare))
        return
    print(f"python {' '.join(sys.argv)}")
    print(f"{platform.python_implementation()} {platform.python_version()}, {os.cpu_count()} cores, {USERS:,} users")
    print("SQLite, synchronous=FULL: a write is on the disk before its answer; the index in memory; tick 100 ms")
    uvloop.run(run(chosen))


if __name__ == "__main__":
    main()
