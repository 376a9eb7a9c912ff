"""The freeze of a period with a million users: its duration, its memory, and its effect on the latency of other calls.

On SQLite and memory, then on PostgreSQL and Redis, each under HTTP calls. Baseline: one SQL statement in the same
database that numbers and copies the same rows, without other load.
"""

import argparse
import contextlib
import os
import platform
import sqlite3
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import psutil

from callers import Callers, show_calls
from load import BOARD, user_name
from support.running import RunningServer
from support.stores import PostgresServer, RedisServer, temporary_folder

OUR_PERIODS = f"SELECT p.id FROM periods p JOIN boards b ON b.id = p.board_id WHERE b.uuid = '{BOARD}'"
ALL_TIME = f"({OUR_PERIODS} AND p.window_name = 'all')"
ORDER = "ORDER BY score DESC, achieved_at, user_id"
NUMBERED = (
    "SELECT period_id, 'global', row_number() OVER ({order}), user_id, score, achieved_at, "
    "rank() OVER (ORDER BY score DESC), dense_rank() OVER (ORDER BY score DESC), subscore FROM scores "
    "WHERE period_id = {period}"
)


def create(client: httpx.Client) -> None:
    body = {
        "UUID": BOARD,
        "podId": "default",
        "name": "Bench",
        "rule": "best",
        "graceSeconds": 0,
        "windows": [{"window": "hand", "cron": "0 0 1 1 *"}, "all"],
        "rewards": [{"name": "best", "prize": 1, "topPercent": 1, "windows": ["hand"]}],
    }
    client.post("/api/v1/leaderboards", json=body).raise_for_status()


def measure(server: RunningServer, users: int, seconds: float) -> dict[str, Any]:
    """Measure calls alone; then close the period by hand, and measure calls while it is frozen."""
    process = psutil.Process(server.pid)
    board = f"/api/v1/leaderboards/{BOARD}"
    with server.client() as client:
        name = next(each["period"] for each in client.get(board).json()["periods"] if each["window"] == "hand")
        with Callers(server, users) as alone:
            time.sleep(seconds)
        closed = client.post(f"{board}/periods/{name}/close").raise_for_status().json()
        time.sleep(max(0.0, seconds_of(closed["endTime"]) - time.time()))
        before = peak = process.memory_info().rss
        with Callers(server, users) as beside:
            while not (job := periods_job(client)).get("result", {}).get("frozen"):
                peak = max(peak, process.memory_info().rss)
                time.sleep(0.02)
        took = seconds_of(job["finishedAt"]) - seconds_of(job["startedAt"])
        top = client.get(f"{board}/top", params={"period": name, "limit": 1}).json()
        assert top["totalUsers"] == users, top["totalUsers"]
        reads = {}
        addresses = {
            "top": f"{board}/top?period={name}&offset={users // 2}",
            "rank": f"{board}/users/{user_name(users // 3)}/rank?period={name}",
        }
        for what, address in addresses.items():
            start = time.perf_counter()
            for _ in range(100):
                client.get(address).raise_for_status()
            reads[what] = (time.perf_counter() - start) * 10
    return {"took": took, "grown": peak - before, "alone": alone.times, "beside": beside.times, "reads": reads}


def periods_job(client: httpx.Client) -> dict[str, Any]:
    jobs = client.get("/api/v1/jobs").json()["jobs"]
    found: dict[str, Any] = next((job for job in jobs if job["job"] == "periods" and not job["running"]), {})
    return found if found.get("result") else {}


def seconds_of(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def show(title: str, users: int, figures: dict[str, Any], bare_s: float) -> None:
    took, reads = figures["took"], figures["reads"]
    print(f"\n{title}")
    print(f"  freeze of {users:,} users, under calls      {took:.1f} s, {users / took:,.0f} users/s")
    print(f"  baseline: one bare statement, alone         {bare_s:.1f} s, ratio {took / bare_s:.1f}")
    print(f"  memory of the server during the freeze      +{figures['grown'] / 1e6:.0f} MB at most")
    show_calls(figures["alone"], figures["beside"], "the freeze")
    print(f"  final ranks, one call at a time             top {reads['top']:.1f} ms, rank {reads['rank']:.1f} ms")


def embedded(folder: Path, users: int, seconds: float) -> None:
    server = RunningServer(folder / "embedded", log_level="error", jobs_interval_ms="100")
    with server, server.client() as client:
        create(client)
    path = folder / "embedded" / "laurels.db"
    with contextlib.closing(sqlite3.connect(path)) as db:
        for (period,) in db.execute(
            "SELECT p.id FROM periods p JOIN boards b ON b.id = p.board_id WHERE b.uuid = ? AND "
            "(p.window_name = 'all' OR p.start_at < unixepoch() * 1000000)",
            (BOARD,),
        ).fetchall():
            db.executemany(
                "INSERT INTO scores (period_id, user_id, score, achieved_at, has_nonzero, version) "
                "VALUES (?, ?, ?, ?, 0, ?)",
                rows(period, users),
            )
        db.execute("UPDATE counters SET value = ? WHERE name = 'version'", (users * 4,))
        db.commit()
    with server:
        figures = measure(server, users, seconds)
    with contextlib.closing(sqlite3.connect(path)) as db:
        (period,) = db.execute(f"SELECT {ALL_TIME}").fetchone()
        db.execute("CREATE TABLE bare AS SELECT * FROM finals LIMIT 0")
        db.execute("CREATE UNIQUE INDEX bare_place ON bare (period_id, place)")
        db.execute("CREATE INDEX bare_user ON bare (user_id, period_id)")
        start = time.perf_counter()
        db.execute("INSERT INTO bare " + NUMBERED.format(order=ORDER, period=period))
        db.commit()
        bare_s = time.perf_counter() - start
    show("SQLite and memory", users, figures, bare_s)


def rows(period: int, users: int) -> Iterator[tuple[int, str, float, int, int]]:
    for number in range(users):
        yield period, user_name(number), float(number * 7919 % 100003), number, period * users + number


def shared(folder: Path, users: int, seconds: float) -> None:
    with PostgresServer(folder / "postgres") as postgres, RedisServer(folder / "redis") as store:
        server = RunningServer(
            folder / "shared", ledger=postgres.url(), index=store.url, log_level="error", jobs_interval_ms="100"
        )
        with server:
            with server.client() as client:
                create(client)
            periods = (
                f"SELECT p.id FROM periods p JOIN boards b ON b.id = p.board_id WHERE b.uuid = '{BOARD}' AND "
                "(p.window_name = 'all' OR p.start_at < extract(epoch FROM now()) * 1000000)"
            )
            postgres.sql(
                "INSERT INTO scores (period_id, user_id, score, achieved_at, has_nonzero, version) "
                f"SELECT p.id, lpad(to_hex(n), 24, '0'), (n * 7919) % 100003, n, false, nextval('versions') "
                f"FROM ({periods}) p, generate_series(0::bigint, {users - 1}) AS n"
            )
            postgres.sql("VACUUM ANALYZE scores")
            with server.client() as client:
                client.post("/api/v1/rebuild", timeout=600).raise_for_status()
            figures = measure(server, users, seconds)
        postgres.sql("CREATE TABLE bare (LIKE finals INCLUDING ALL)")
        start = time.perf_counter()
        postgres.sql("INSERT INTO bare " + NUMBERED.format(order=ORDER, period=ALL_TIME))
        bare_s = time.perf_counter() - start
    show("PostgreSQL and Redis", users, figures, bare_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--users", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=5.0, help="seconds to measure calls alone")
    options = parser.parse_args()
    print(f"command      PYTHONPATH=tests {' '.join([Path(sys.executable).name, *sys.argv])}")
    print(f"machine      {os.cpu_count()} cores, Python {platform.python_version()}; with stores and callers")
    print("durability   SQLite with synchronous=FULL, PostgreSQL with fsync and synchronous_commit on")
    with temporary_folder() as folder:
        embedded(folder, options.users, options.seconds)
        shared(folder, options.users, options.seconds)


if __name__ == "__main__":
    main()
