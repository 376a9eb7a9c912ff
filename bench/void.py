"""Voiding the events of a cheating source on a board with a million users: duration and effect on other calls.

On SQLite and memory, then on PostgreSQL and Redis, each under HTTP calls. Baseline: bare SQL statements in the same
database that mark the same events and sum up the rest, without other load.
"""

import argparse
import contextlib
import os
import platform
import sqlite3
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from callers import Callers, show_calls
from load import BOARD, user_name
from support.running import RunningServer
from support.stores import PostgresServer, RedisServer, temporary_folder

CHUNK = 200_000
WEB, BOT = '{"source":"web"}', '{"source":"bot"}'
EVENT = "INSERT INTO events (seq, board_id, event_id, user_id, score, at, stamped, received_at, metadata)"
# Counts the sums that differ from the sum of the events that are not voided.
WRONG = (
    "SELECT count(*) FROM (SELECT s.user_id FROM scores s JOIN events e ON e.user_id = s.user_id "
    "AND e.board_id = {board} AND e.voided_by IS NULL WHERE s.period_id = {period} "
    "GROUP BY s.user_id, s.score HAVING sum(e.score) <> s.score) AS wrong"
)


def create(client: httpx.Client) -> None:
    body = {
        "UUID": BOARD,
        "podId": "default",
        "name": "Bench",
        "rule": "increment",
        "segments": ["global", "region"],
        "windows": ["all"],
    }
    client.post("/api/v1/leaderboards", json=body).raise_for_status()


def measure(server: RunningServer, users: int, bots: int, seconds: float) -> dict[str, Any]:
    board = f"/api/v1/leaderboards/{BOARD}"
    with server.client() as client:
        with Callers(server, users) as alone:
            time.sleep(seconds)
        with Callers(server, users) as beside:
            start = time.perf_counter()
            body = {"match": {"source": "bot"}, "reason": "a bot"}
            act = client.post(board + "/void", json=body).raise_for_status().json()
            while act["doneAt"] is None:
                time.sleep(0.02)
                act = client.get(f"/api/v1/acts/{act['actId']}", params={"podId": "default"}).json()
            took = time.perf_counter() - start
        assert act["events"] == bots, act
    return {"took": took, "alone": alone.times, "beside": beside.times}


def show(title: str, users: int, bots: int, figures: dict[str, Any], bare_s: float) -> None:
    took = figures["took"]
    print(f"\n{title}")
    print(f"  {bots:,} events of a source voided, on a board with {users:,} users   {took:.1f} s, {bots / took:,.0f}/s")
    print(f"  baseline: bare statements, alone    {bare_s:.1f} s, ratio {took / bare_s:.1f}")
    show_calls(figures["alone"], figures["beside"], "it")


def events(board: int, users: int, bots: int, now: int) -> Iterator[tuple[Any, ...]]:
    for number in range(users):
        yield number + 1, board, f"w{number}", user_name(number), number % 1000, now, 0, now, WEB
    for number in range(bots):
        user = user_name(number * (users // bots))
        yield users + number + 1, board, f"b{number}", user, 5000, now, 0, now, BOT


def embedded(folder: Path, users: int, bots: int, seconds: float) -> None:
    server = RunningServer(folder / "embedded", log_level="error")
    with server, server.client() as client:
        create(client)
    path = folder / "embedded" / "laurels.db"
    with contextlib.closing(sqlite3.connect(path)) as db:
        board, period = db.execute(
            "SELECT b.id, p.id FROM boards b JOIN periods p ON p.board_id = b.id WHERE b.uuid = ?", (BOARD,)
        ).fetchone()
        now = time.time_ns() // 1000
        db.executemany(EVENT + " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", events(board, users, bots, now))
        db.execute(
            "INSERT INTO profiles (pod_id, user_id, region) SELECT DISTINCT 'default', user_id, 'eu' FROM events"
        )
        db.execute(
            "INSERT INTO scores (period_id, user_id, score, achieved_at, has_nonzero, version, segments) "
            "SELECT ?, user_id, sum(score), max(at), 1, row_number() OVER (), 'region:eu' FROM events "
            "WHERE board_id = ? GROUP BY user_id",
            (period, board),
        )
        db.execute("UPDATE counters SET value = ? WHERE name = 'version'", (users + 1,))
        db.commit()
    with server:
        figures = measure(server, users, bots, seconds)
    with contextlib.closing(sqlite3.connect(path)) as db:
        assert db.execute(WRONG.format(board=board, period=period)).fetchone() == (0,)
        start = time.perf_counter()
        db.execute("UPDATE events SET voided_by = NULL WHERE board_id = ? AND metadata = ?", (board, BOT))
        db.execute(
            "UPDATE scores SET score = (SELECT sum(score) FROM events e WHERE e.board_id = ? AND "
            "e.user_id = scores.user_id AND e.metadata = ?) WHERE period_id = ? AND user_id IN "
            "(SELECT user_id FROM events WHERE board_id = ? AND metadata = ?)",
            (board, WEB, period, board, BOT),
        )
        db.commit()
        bare_s = time.perf_counter() - start
    show("SQLite and memory", users, bots, figures, bare_s)


def shared(folder: Path, users: int, bots: int, seconds: float) -> None:
    with PostgresServer(folder / "postgres") as postgres, RedisServer(folder / "redis") as store:
        server = RunningServer(folder / "shared", ledger=postgres.url(), index=store.url, log_level="error")
        with server:
            with server.client() as client:
                create(client)
            board = f"(SELECT id FROM boards WHERE uuid = '{BOARD}')"
            period = f"(SELECT id FROM periods WHERE board_id = {board})"
            for count, step, name, score, metadata in (
                (users, 1, "w", "n % 1000", WEB),
                (bots, users // bots, "b", "5000", BOT),
            ):
                for first in range(0, count, CHUNK):
                    postgres.sql(
                        f"{EVENT} SELECT nextval('event_seqs'), {board}, '{name}' || n, "
                        f"lpad(to_hex(n * {step}), 24, '0'), {score}, now_us_v1(), false, now_us_v1(), '{metadata}' "
                        f"FROM generate_series({first}::bigint, {min(first + CHUNK, count) - 1}) AS n"
                    )
            postgres.sql(
                "INSERT INTO profiles (pod_id, user_id, region) SELECT DISTINCT 'default', user_id, 'eu' FROM events"
            )
            postgres.sql(
                "INSERT INTO scores (period_id, user_id, score, achieved_at, total, has_nonzero, version, segments) "
                f"SELECT {period}, user_id, sum(score), max(at), sum(score)::numeric, true, nextval('versions'), "
                f"'region:eu' FROM events WHERE board_id = {board} GROUP BY user_id"
            )
            postgres.sql("VACUUM ANALYZE scores, events")
            with server.client() as client:
                client.post("/api/v1/rebuild", timeout=600).raise_for_status()
            figures = measure(server, users, bots, seconds)
        wrong = WRONG.format(board=board, period=period)
        postgres.sql(f"DO $$ BEGIN IF ({wrong}) > 0 THEN RAISE 'sums are wrong'; END IF; END $$")
        start = time.perf_counter()
        postgres.sql(
            f"UPDATE events SET voided_by = NULL WHERE board_id = {board} AND metadata = '{BOT}'; "
            f"UPDATE scores s SET score = e.total FROM (SELECT user_id, sum(score) AS total FROM events "
            f"WHERE board_id = {board} AND metadata = '{WEB}' AND user_id IN (SELECT user_id FROM events "
            f"WHERE board_id = {board} AND metadata = '{BOT}') GROUP BY user_id) e "
            f"WHERE s.period_id = {period} AND s.user_id = e.user_id"
        )
        bare_s = time.perf_counter() - start
    show("PostgreSQL and Redis", users, bots, figures, bare_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--users", type=int, default=1_000_000)
    parser.add_argument("--events", type=int, default=10_000, help="events of the source")
    parser.add_argument("--seconds", type=float, default=5.0, help="seconds to measure calls alone")
    options = parser.parse_args()
    print(f"command      PYTHONPATH=tests {' '.join([Path(sys.executable).name, *sys.argv])}")
    print(f"machine      {os.cpu_count()} cores, Python {platform.python_version()}; with stores and callers")
    print("durability   SQLite with synchronous=FULL, PostgreSQL with fsync and synchronous_commit on")
    with temporary_folder() as folder:
        embedded(folder, options.users, options.events, options.seconds)
        shared(folder, options.users, options.events, options.seconds)


if __name__ == "__main__":
    main()
