"""Fairness: how the heavy reads of one pod delay the writes of another.

The quiet pod sends single scores at a constant rate. Latency counts from the moment at which a score was due. Eight
clients of the busy pod send heavy reads, one after the other. The program prints the latency of the quiet pod alone
(the baseline), and beside each kind of read.

    PYTHONPATH=tests python bench/fairness.py [--seconds 10] [--users 100000]

The server is embedded, on SQLite with synchronous=FULL: a write is on the disk before it is acknowledged.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import deque
from pathlib import Path
from typing import Any

import uvloop

from laurels.bench.load import Connection
from support.running import ADMIN_KEY, RunningServer

CLIENTS = 8
WRITES_PER_S = 200
WRITERS = 16
IDS = 1000
API = "/api/v1/leaderboards"


def request_of(method: str, path: str, body: Any = None) -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nX-API-Key: {ADMIN_KEY}\r\n"
    text = "" if body is None else json.dumps(body)
    length = f"Content-Type: application/json\r\nContent-Length: {len(text)}\r\n" if text else ""
    return f"{head}{length}\r\n{text}".encode()


def heavy_reads(users: int) -> dict[str, list[bytes]]:
    ids = [[f"user-{(turn * 7919 + number * 31) % users}" for number in range(IDS)] for turn in range(20)]
    return {
        "ranks of 1,000, dense": [
            request_of("POST", f"{API}/busy/ranks?ranking=dense", {"userIds": each}) for each in ids
        ],
        "ranks of 1,000": [request_of("POST", f"{API}/busy/ranks", {"userIds": each}) for each in ids],
        "top 1,000, changing offset": [
            request_of("GET", f"{API}/busy/top?limit=1000&offset={turn * 37}") for turn in range(1000)
        ],
        "around ±500": [request_of("GET", f"{API}/busy/users/{each[0]}/around?above=500&below=500") for each in ids],
        "distribution, 1,000 buckets": [request_of("GET", f"{API}/busy/distribution?buckets=1000")],
    }


async def write_scores(port: int, seconds: float) -> dict[str, float]:
    """Send the scores of the quiet pod, and return their latencies in milliseconds."""
    latencies: list[float] = []
    due_of: dict[Connection, float] = {}
    idle: deque[Connection] = deque()
    waiting: deque[float] = deque()
    count = failed = 0

    def write(connection: Connection, due: float) -> None:
        nonlocal count
        due_of[connection] = due
        count += 1
        connection.send(request_of("PUT", f"{API}/quiet/users/user-{count % 1000}", {"score": count}))

    def written(connection: Connection, status: int) -> None:
        nonlocal failed
        failed += status != 200
        latencies.append(time.perf_counter() - due_of[connection])
        write(connection, waiting.popleft()) if waiting else idle.append(connection)

    loop = asyncio.get_running_loop()
    for _ in range(WRITERS):
        idle.append((await loop.create_connection(lambda: Connection(written), "127.0.0.1", port))[1])
    began = at = time.perf_counter()
    while (now := time.perf_counter()) < began + seconds:
        while at <= now:
            write(idle.popleft(), at) if idle else waiting.append(at)
            at += 1 / WRITES_PER_S
        await asyncio.sleep(0.001)
    latencies.sort()
    p50, p99 = (1000 * latencies[len(latencies) * part // 100] for part in (50, 99))
    return {"p50": p50, "p99": p99, "failed": failed}


async def read_on(port: int, kind: str, users: int, seconds: float) -> dict[str, float]:
    """Send the reads of the busy pod, and return how many were answered per second, and how many refused."""
    reads = heavy_reads(users)[kind]
    counts = {"reads": 0, "refused": 0}
    turn = 0

    def read(connection: Connection, status: int) -> None:
        nonlocal turn
        if status:
            counts["reads" if status == 200 else "refused"] += 1
        turn += 1
        connection.send(reads[turn % len(reads)])

    loop = asyncio.get_running_loop()
    for _ in range(CLIENTS):
        _, connection = await loop.create_connection(lambda: Connection(read), "127.0.0.1", port)
        read(connection, 0)
    await asyncio.sleep(seconds)
    return {"per_s": counts["reads"] / seconds, "refused": counts["refused"]}


def run_apart(what: str, *arguments: Any) -> "subprocess.Popen[str]":
    """Run clients in a process of their own, so that reading large responses does not delay the scores."""
    command = [sys.executable, __file__, "--clients", json.dumps([what, *arguments])]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ)


def finished(process: "subprocess.Popen[str]") -> dict[str, float]:
    out, _ = process.communicate()
    assert process.returncode == 0
    return dict(json.loads(out))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--users", type=int, default=100_000)
    parser.add_argument("--clients", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.clients:
        what, *arguments = json.loads(given.clients)
        clients = write_scores(*arguments) if what == "write" else read_on(*arguments)
        print(json.dumps(uvloop.run(clients)))
        return
    print(f"$ python bench/fairness.py --seconds {given.seconds:g} --users {given.users}")
    print(f"embedded, SQLite, synchronous=FULL, {os.cpu_count()} cores for server and clients")
    print(f"{WRITES_PER_S} scores/s of the quiet pod, {CLIENTS} clients of the busy pod\n")
    with tempfile.TemporaryDirectory() as folder, RunningServer(Path(folder)) as server:
        with server.client() as api:
            for name in ("quiet", "busy"):
                api.post("/api/v1/pods", json={"podId": name, "name": name})
                api.post(API, json={"UUID": name, "podId": name, "name": name})
            for start in range(0, given.users, 10_000):
                scores = [{"userId": f"user-{each}", "score": each // 3} for each in range(start, start + 10_000)]
                assert api.post(f"{API}/busy/scores", json={"scores": scores}).status_code == 200
        for kind in ("alone", *heavy_reads(given.users)):
            reader = None if kind == "alone" else run_apart("read", server.port, kind, given.users, given.seconds + 1)
            seen = finished(run_apart("write", server.port, given.seconds))
            assert not seen["failed"], "a score was refused"
            told = f"p50 {seen['p50']:7.1f} ms   p99 {seen['p99']:7.1f} ms"
            if reader is not None:
                read = finished(reader)
                told += f"   {read['per_s']:7,.0f} reads/s, {read['refused']:,} refused"
            print(f"{kind:30} {told}", flush=True)


if __name__ == "__main__":
    main()
