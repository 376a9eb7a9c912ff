"""One million users in embedded mode, compared with a bare SortedList + sqlite3 that does the same work.

Prints the start-up time, the memory per user, and the rates of top, rank and update: of Laurels' service, of the bare
baseline, and their ratio. Every part runs in a separate process. Compare ratios, not times. bench/calls.py measures
calls over HTTP.
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

from laurels.adapters.http_sender import HttpSender
from laurels.adapters.memory_feed import MemoryFeed
from laurels.adapters.memory_index import MemoryIndex
from laurels.adapters.sqlite import SqliteLedger
from laurels.adapters.system_clock import SystemClock
from laurels.bench.bare import BareBoard
from laurels.logs import configure_logs
from laurels.service.laurels import Laurels
from laurels.service.read.reads import Selection
from laurels.service.write.submissions import Submission
from laurels.settings import Settings
from load import SEED, Figures, bench_board, user_name

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
        settings=Settings.of(
            {
                "max_boards": 10,
                "max_batch": FILL_BATCH,
                "max_pending": 100_000,
                "write_timeout_ms": 600_000,
                "repair_interval_ms": 1000,
                "jobs_interval_ms": 600_000,
            }
        ),
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


# The baseline: a minimal leaderboard


def fill_bare(folder: Path, users: int) -> Figures:
    bare = BareBoard(folder / "bare.db")
    rng = random.Random(SEED)
    start = time.perf_counter()
    for first in range(0, users, FILL_BATCH):
        last = min(first + FILL_BATCH, users)
        bare.update([(user_name(number), float(rng.randrange(10**6))) for number in range(first, last)])
    return {"fill": users / (time.perf_counter() - start)}


def measure_bare(folder: Path, users: int, seconds: float) -> Figures:
    bare = BareBoard(folder / "bare.db")
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


# The whole benchmark


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
    """Run a part in a new process, so that it does not inherit the memory of another part."""
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
    parser.add_argument("--seconds", type=float, default=5.0, help="seconds to measure each rate")
    options = parser.parse_args()
    print(f"command      {' '.join([Path(sys.executable).name, *sys.argv])}")
    print(f"machine      {os.cpu_count()} cores, Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}")
    print("durability   WAL, synchronous=FULL: every update is on disk before its response, on both sides")
    print(f"users        {options.users}, 24-character ids, {options.seconds:g} s per rate")
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
        show("In process: the service, compared with a bare SortedList + sqlite3", laurels, bare, rows)


if __name__ == "__main__":
    main()
