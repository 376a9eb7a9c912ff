"""One million users on the embedded default, beside a bare SortedList + sqlite3 that does the same work.

Prints start-up, memory a user, and the rates of top, rank and update: Laurels' service, the bare baseline, and the
ratio; then the same over HTTP beside a bare ASGI application on the same server that answers constant bytes.
Every part runs in a process of its own. Compare ratios, not times.
"""

import argparse
import asyncio
import gc
import multiprocessing
import os
import platform
import random
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import uvicorn
from sortedcontainers import SortedList

from laurels.adapters.http_sender import HttpSender
from laurels.adapters.memory_feed import MemoryFeed
from laurels.adapters.memory_index import MemoryIndex
from laurels.adapters.sqlite import SqliteLedger
from laurels.adapters.system_clock import SystemClock
from laurels.http.protocol import BoundedProtocol
from laurels.http.routes import build_app
from laurels.logs import configure_logs
from laurels.server import listen, settle_memory
from laurels.service.laurels import Laurels
from laurels.service.reads import Selection
from laurels.service.submit import Submission
from load import CONNECTIONS, SEED, Figures, bench_board, call_http, user_name

ADMIN_KEY = "bench"
BATCH = 200
FILL_BATCH = 5000


# Laurels


def build(folder: Path) -> Laurels:
    clock = SystemClock()
    return Laurels(
        SqliteLedger(folder / "laurels.db", clock),
        MemoryIndex(),
        MemoryFeed(),
        clock,
        admin_key=ADMIN_KEY,
        max_boards=10,
        max_batch=FILL_BATCH,
        max_pending=100_000,
        write_timeout_ms=600_000,
        repair_interval_ms=1000,
        jobs_interval_ms=600_000,
        sender=HttpSender(),
    )


async def with_laurels(folder: Path, work: Callable[[Laurels], Coroutine[Any, Any, Figures]]) -> Figures:
    configure_logs("error")
    laurels = build(folder)
    try:
        await laurels.open()
        return await work(laurels)
    finally:
        await laurels.close()


def fill_laurels(folder: Path, users: int) -> Figures:
    async def work(laurels: Laurels) -> Figures:
        await laurels.load()
        board = await bench_board(laurels)
        rng = random.Random(SEED)
        start = time.perf_counter()
        for first in range(0, users, FILL_BATCH):
            scores = [
                Submission(user_name(n), rng.randrange(10**6)) for n in range(first, min(first + FILL_BATCH, users))
            ]
            await laurels.submissions.submit_many(board, scores)
        return {"fill": users / (time.perf_counter() - start)}

    return asyncio.run(with_laurels(folder, work))


def measure_laurels(folder: Path, users: int, seconds: float) -> Figures:
    async def work(laurels: Laurels) -> Figures:
        before = memory()
        start = time.perf_counter()
        await laurels.load()
        figures = {"startup_s": time.perf_counter() - start, "bytes": (memory() - before) / users}
        board = await bench_board(laurels)
        rng = random.Random(SEED)
        selection = Selection()

        async def top() -> int:
            await laurels.reads.top(board, selection, 0, 10)
            return 1

        async def rank() -> int:
            await laurels.reads.rank(board, selection, user_name(rng.randrange(users)))
            return 1

        async def update() -> int:
            scores = [Submission(user_name(rng.randrange(users)), rng.randrange(100)) for _ in range(BATCH)]
            await laurels.submissions.submit_many(board, scores)
            return BATCH

        async def one_by_one() -> int:
            await asyncio.gather(
                *(
                    laurels.submissions.submit(board, Submission(user_name(rng.randrange(users)), 1))
                    for _ in range(BATCH)
                )
            )
            return BATCH

        for name, call in {"top": top, "rank": rank, "update": update, "single": one_by_one}.items():
            figures[name] = await rate(call, seconds)
        return figures

    return asyncio.run(with_laurels(folder, work))


# The baseline: what one would write on an afternoon


class Bare:
    """A table of events, a table of totals, a SortedList of tuples and a dict. The same pragmas as Laurels."""

    def __init__(self, folder: Path) -> None:
        self.db = sqlite3.connect(folder / "bare.db", isolation_level=None)
        self.db.execute("PRAGMA journal_mode = WAL")
        self.db.execute("PRAGMA synchronous = FULL")
        self.db.execute("PRAGMA cache_size = -65536")
        self.db.execute("CREATE TABLE IF NOT EXISTS events (id TEXT UNIQUE, user TEXT, score REAL, at INTEGER)")
        self.db.execute(
            "CREATE TABLE IF NOT EXISTS scores (user TEXT PRIMARY KEY, score REAL, at INTEGER) WITHOUT ROWID"
        )
        self.ranked = SortedList()
        self.entries: dict[str, tuple[float, int, str]] = {}
        self.number = int(self.db.execute("SELECT count(*) FROM events").fetchone()[0])

    def load(self) -> None:
        for user, score, at in self.db.execute("SELECT user, score, at FROM scores"):
            self.entries[user] = (-score, at, user)
        self.ranked = SortedList(self.entries.values())

    def update(self, scores: list[tuple[str, float]]) -> None:
        at = time.time_ns() // 1000
        rows = []
        self.db.execute("BEGIN IMMEDIATE")
        for user, score in scores:
            self.number += 1
            self.db.execute("INSERT INTO events VALUES (?, ?, ?, ?)", (f"{self.number:026}", user, score, at))
            rows.append(
                self.db.execute(
                    "INSERT INTO scores VALUES (?, ?, ?) ON CONFLICT (user) DO UPDATE "
                    "SET score = score + excluded.score, at = excluded.at RETURNING user, score, at",
                    (user, score, at),
                ).fetchone()
            )
        self.db.execute("COMMIT")
        for user, score, at in rows:
            if user in self.entries:
                self.ranked.remove(self.entries[user])
            self.entries[user] = (-score, at, user)
            self.ranked.add(self.entries[user])
            self.ranked.index(self.entries[user])


def fill_bare(folder: Path, users: int) -> Figures:
    bare = Bare(folder)
    rng = random.Random(SEED)
    start = time.perf_counter()
    for first in range(0, users, FILL_BATCH):
        last = min(first + FILL_BATCH, users)
        bare.update([(user_name(number), float(rng.randrange(10**6))) for number in range(first, last)])
    return {"fill": users / (time.perf_counter() - start)}


def measure_bare(folder: Path, users: int, seconds: float) -> Figures:
    bare = Bare(folder)
    before = memory()
    start = time.perf_counter()
    bare.load()
    figures = {"startup_s": time.perf_counter() - start, "bytes": (memory() - before) / users}
    rng = random.Random(SEED)

    async def top() -> int:
        [(number, user, -score, at) for number, (score, at, user) in enumerate(bare.ranked.islice(0, 10), 1)]
        return 1

    async def rank() -> int:
        bare.ranked.index(bare.entries[user_name(rng.randrange(users))])
        return 1

    async def update() -> int:
        bare.update([(user_name(rng.randrange(users)), float(rng.randrange(100))) for _ in range(BATCH)])
        return BATCH

    async def run() -> None:
        for name, call in {"top": top, "rank": rank, "update": update}.items():
            figures[name] = await rate(call, seconds)

    asyncio.run(run())
    return figures


# Over HTTP: one server process, one client process


def serve_laurels(folder: Path, pipe: Any) -> None:
    async def work(laurels: Laurels) -> Figures:
        await laurels.load()
        settle_memory()
        await serve(build_app(laurels), pipe)
        return {}

    asyncio.run(with_laurels(folder, work))


def serve_bare(folder: Path, pipe: Any) -> None:
    del folder
    headers = [(b"content-type", b"application/json"), (b"content-length", b"1000")]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            while (await receive()).get("more_body"):
                pass
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": b"x" * 1000})

    asyncio.run(serve(app, pipe))


async def serve(app: Any, pipe: Any) -> None:
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            loop="uvloop",
            http=BoundedProtocol,
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
        )
    )
    listening = listen("127.0.0.1", 0)
    pipe.send(listening.getsockname()[1])
    await server.serve(sockets=[listening])


def measure_http(target: Callable[[Path, Any], None], folder: Path, users: int, seconds: float) -> Figures:
    here, there = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=target, args=(folder, there))
    process.start()
    try:
        port = here.recv()
        return asyncio.run(call_http(port, ADMIN_KEY, users, seconds))
    finally:
        process.terminate()
        process.join()


# All of it


def memory() -> int:
    gc.collect()
    return int(psutil.Process().memory_info().rss)


async def rate(call: Callable[[], Coroutine[Any, Any, int]], seconds: float) -> float:
    count = 0
    start = time.perf_counter()
    while (elapsed := time.perf_counter() - start) < seconds:
        count += await call()
    return count / elapsed


def apart(work: Callable[..., Figures], *arguments: Any) -> Figures:
    """Run in a fresh process, so that no part inherits another's memory."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(work, *arguments).result()


def show(title: str, laurels: Figures, bare: Figures, rows: list[tuple[str, str, str]]) -> None:
    print(f"\n{title}\n{'':34}{'laurels':>12}{'baseline':>12}{'ratio':>8}")
    for key, label, form in rows:
        if key in laurels and key in bare:
            ratio = laurels[key] / bare[key]
            print(f"{label:34}{format(laurels[key], form):>12}{format(bare[key], form):>12}{ratio:>8.2f}")
        else:
            print(f"{label:34}{format(laurels[key], form):>12}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--users", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=5.0, help="for each rate")
    options = parser.parse_args()
    print(f"command      {' '.join([Path(sys.executable).name, *sys.argv])}")
    print(f"machine      {os.cpu_count()} cores, Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}")
    print("durability   WAL, synchronous=FULL: every update is on the disk before it is answered, on both sides")
    print(f"users        {options.users}, 24-character ids, {options.seconds:g} s a rate")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        laurels = apart(fill_laurels, folder, options.users)
        bare = apart(fill_bare, folder, options.users)
        laurels |= apart(measure_laurels, folder, options.users, options.seconds)
        bare |= apart(measure_bare, folder, options.users, options.seconds)
        rows = [
            ("startup_s", "start-up, s (lower is better)", ".2f"),
            ("bytes", "memory a user, bytes (lower)", ".0f"),
            ("top", "top 10 /s", ",.0f"),
            ("rank", "rank of a random user /s", ",.0f"),
            ("update", f"updates/s, {BATCH} a call", ",.0f"),
            ("fill", f"new users/s, {FILL_BATCH} a call", ",.0f"),
            ("single", f"updates/s, {BATCH} single calls at once", ",.0f"),
        ]
        show("In process: the service beside a bare SortedList + sqlite3", laurels, bare, rows)
        over = measure_http(serve_laurels, folder, options.users, options.seconds)
        constant = measure_http(serve_bare, folder, options.users, options.seconds)
        rows = [("top", "GET top 10 /s", ",.0f"), ("rank", "GET rank /s", ",.0f"), ("single", "PUT score /s", ",.0f")]
        title = f"Over HTTP, {CONNECTIONS} connections, beside an ASGI application that answers constant bytes"
        show(title, over, constant, rows)


if __name__ == "__main__":
    main()
