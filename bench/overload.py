"""Overload: several times the load that a server can sustain, with load shedding and without it.

The clients are an open loop: they send at a constant rate, whatever the server does, and latency counts from the moment
at which a request was due. For reads and for writes, the program measures

1. the sustainable load: 64 connections that send one request after the other,
2. the unloaded latency, at a tenth of that load, and the latency at half of it,
3. the overload for a while: the latency of admitted requests, the refusals, and the memory of the server,
4. the recovery: the time after the overload until the latency of a second is as before.

    PYTHONPATH=tests python bench/overload.py [--seconds 60] [--times 5] [--connections 1000]

The server is embedded, on SQLite with synchronous=FULL: a write is on the disk before it is acknowledged.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any, Self

import psutil
import uvloop

from laurels.bench.load import Connection
from laurels.settings import LimitSettings
from support.running import ADMIN_KEY, RunningServer

USERS = 10_000
# The scores of a write. The calls are not the cheapest, so that clients on the same machine can send enough of them.
SCORES = 10
# The number of different requests, which are made before the measurement.
REQUESTS = 1000
# The largest time that requests wait in the client for a free connection.
BACKLOG_S = 5.0
UNLOADED, HALF = 0.1, 0.5
API = "/api/v1/leaderboards/default"


def request_of(kind: str, number: int) -> bytes:
    user = f"user-{number * 7919 % USERS}"
    head = f"Host: x\r\nX-API-Key: {ADMIN_KEY}\r\n"
    if kind == "reads":
        return f"GET {API}/users/{user}/around?above=50&below=50 HTTP/1.1\r\n{head}\r\n".encode()
    scores = [{"userId": f"user-{(number * 7919 + each) % USERS}", "score": number % 1000} for each in range(SCORES)]
    body = json.dumps({"scores": scores})
    length = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return f"POST {API}/scores HTTP/1.1\r\n{head}{length}\r\n{body}".encode()


class Load:
    """Sends requests and notes the latencies of those that were admitted, with the time at which they were due."""

    def __init__(self, kind: str, rate: float, seconds: float) -> None:
        self.kind, self.rate, self.seconds = kind, rate, seconds
        self.requests = [request_of(kind, number) for number in range(REQUESTS)]
        self.idle: list[Connection] = []
        self.due_of: dict[Connection, float] = {}
        # When the requests were due that wait for a free connection.
        self.due: deque[float] = deque()
        self.sent = 0
        self.admitted: list[tuple[float, float]] = []
        self.refused = self.failed = self.given_up = 0

    def send(self, connection: Connection, due: float) -> None:
        self.due_of[connection] = due
        connection.send(self.requests[self.sent % REQUESTS])
        self.sent += 1

    def answered(self, connection: Connection, status: int) -> None:
        due = self.due_of[connection]
        if status == 200:
            self.admitted.append((due, time.perf_counter() - due))
        elif status == 503:
            self.refused += 1
        else:
            self.failed += 1
        if self.rate == 0:
            self.send(connection, time.perf_counter())
        elif self.due:
            self.send(connection, self.due.popleft())
        else:
            self.idle.append(connection)

    async def run(self) -> None:
        ends = time.perf_counter() + self.seconds
        if self.rate == 0:
            for connection in self.idle:
                self.send(connection, time.perf_counter())
            await asyncio.sleep(self.seconds)
            return
        at = time.perf_counter()
        step = 1 / self.rate
        while (now := time.perf_counter()) < ends:
            while at <= now:
                if self.idle:
                    self.send(self.idle.pop(), at)
                elif len(self.due) < self.rate * BACKLOG_S:
                    self.due.append(at)
                else:
                    self.given_up += 1
                at += step
            await asyncio.sleep(0.001)
        self.given_up += len(self.due)
        self.due.clear()
        await asyncio.sleep(0.5)


async def generate(port: int, kind: str, rate: float, seconds: float, connections: int) -> dict[str, Any]:
    load = Load(kind, rate, seconds)
    loop = asyncio.get_running_loop()
    for _ in range(connections):
        _, connection = await loop.create_connection(lambda: Connection(load.answered), "127.0.0.1", port)
        load.idle.append(connection)
    began = time.perf_counter()
    await load.run()
    spent = time.perf_counter() - began
    latencies = sorted(latency for _, latency in load.admitted)
    by_second: dict[int, list[float]] = {}
    for due, latency in load.admitted:
        by_second.setdefault(int(due - began), []).append(latency)
    return {
        "per_s": len(load.admitted) / min(spent, seconds),
        "offered": load.rate,
        "sent": load.sent,
        "p50_ms": 1000 * latencies[len(latencies) // 2] if latencies else None,
        "p99_ms": 1000 * latencies[len(latencies) * 99 // 100] if latencies else None,
        "refused": load.refused,
        "failed": load.failed,
        "given_up": load.given_up,
        "p99_ms_by_second": [
            1000 * sorted(each)[len(each) * 99 // 100] for _, each in sorted(by_second.items()) if each
        ],
    }


def run_clients(port: int, kind: str, rate: float, seconds: float, connections: int) -> dict[str, Any]:
    """Run the clients in a process of their own."""
    command = [sys.executable, __file__, "--generate", json.dumps([port, kind, rate, seconds, connections])]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ)
    return dict(json.loads(done.stdout))


class Memory:
    """The largest memory of a process while this runs."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._ends = threading.Event()
        self.largest = 0
        self._watching = threading.Thread(target=self._watch)

    def _watch(self) -> None:
        while not self._ends.wait(0.2):
            self.largest = max(self.largest, self._process.memory_info().rss)

    def __enter__(self) -> Self:
        self._watching.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._watching.join()


def percentiles(of: dict[str, Any]) -> str:
    return f"p50 {of['p50_ms']:7.1f} ms   p99 {of['p99_ms']:7.1f} ms"


def measure(kind: str, given: argparse.Namespace, per_s: float | None, target_ms: int) -> tuple[float, float]:
    """Overload a server, and print the figures. Return the sustainable load and the unloaded p99 in milliseconds.

    `per_s`: the sustainable load; None: measure it.
    """
    settings = {"target_delay_ms": str(target_ms)}
    with tempfile.TemporaryDirectory() as folder, RunningServer(Path(folder), **settings) as server:
        fill = [{"userId": f"user-{number}", "score": number % 5000} for number in range(USERS)]
        with server.client() as api:
            for start in range(0, USERS, 1000):
                assert api.post(f"{API}/scores", json={"scores": fill[start : start + 1000]}).status_code == 200
        if per_s is None:
            per_s = float(run_clients(server.port, kind, 0, 5, 64)["per_s"])
        unloaded = run_clients(server.port, kind, per_s * UNLOADED, 10, 64)
        half = run_clients(server.port, kind, per_s * HALF, 10, 64)
        memory_mb = psutil.Process(server.pid).memory_info().rss / 2**20
        with Memory(server.pid) as memory:
            loaded = run_clients(server.port, kind, per_s * given.times, given.seconds, given.connections)
        after = run_clients(server.port, kind, per_s * UNLOADED, 15, 64)
    print(f"  sustainable           {per_s:8,.0f}/s   (64 connections, closed loop, without load shedding)")
    print(f"  unloaded              {percentiles(unloaded)}")
    print(f"  half of sustainable   {percentiles(half)}   {half['refused']} refused")
    print(f"  offered               {loaded['offered']:8,.0f}/s   for {given.seconds:g} s")
    ratio = loaded["p99_ms"] / unloaded["p99_ms"]
    print(f"  admitted              {loaded['per_s']:8,.0f}/s   {percentiles(loaded)} = {ratio:.1f} x unloaded")
    print(
        f"  refused {loaded['refused']:,}   failed {loaded['failed']:,}   "
        f"not sent, because no connection was free, {loaded['given_up']:,}"
    )
    print(f"  memory                {memory_mb:.0f} MB before, {memory.largest / 2**20:.0f} MB at most")
    seen = after["p99_ms_by_second"]
    recovered = next((number for number, p99 in enumerate(seen) if p99 <= 2 * unloaded["p99_ms"]), None)
    told = "not within 15 s" if recovered is None else f"in second {recovered + 1}"
    print(f"  p99 is as before      {told} after the overload, {after['refused']} refused", flush=True)
    return per_s, unloaded["p99_ms"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--times", type=float, default=5)
    parser.add_argument("--connections", type=int, default=1000)
    parser.add_argument("--generate", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.generate:
        print(json.dumps(uvloop.run(generate(*json.loads(given.generate)))))
        return
    options = f"--seconds {given.seconds:g} --times {given.times:g} --connections {given.connections}"
    print(f"$ python bench/overload.py {options}")
    print(f"embedded, SQLite, synchronous=FULL, {USERS:,} users, {os.cpu_count()} cores for server and clients")
    for kind in ("writes", "reads"):
        print(f"\n{kind}, baseline: without load shedding")
        per_s, p99_ms = measure(kind, given, None, 0)
        for target_ms in (max(1, round(p99_ms / 2)), LimitSettings().target_delay_ms):
            print(f"\n{kind}, LAURELS_TARGET_DELAY_MS={target_ms}")
            measure(kind, given, per_s, target_ms)


if __name__ == "__main__":
    main()
