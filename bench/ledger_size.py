"""PostgreSQL with 100 million events and 25 million players, beside an empty one.

Records batches of events through the ledger, in a fresh database and in one that is filled to the given size, and
prints the rate of both. In the full one it then records again while old events are pruned and while the rows of a
frozen period are swept, and prints the rate and the response times of batches beside those alone.

The stored event ids are half in order of time, as Laurels makes them, and half random, as callers may send them; both
kinds are recorded. Users are chosen at random among all.
"""

import argparse
import asyncio
import contextlib
import os
import platform
import random
import sys
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

import asyncpg
import psutil

from laurels.adapters.postgres import PostgresLedger
from laurels.adapters.system_clock import SystemClock
from laurels.bench.data import user_name
from laurels.bench.load import SEED
from laurels.core.board import Board
from laurels.core.ids import new_event_id
from laurels.core.limits import DAY_US
from laurels.core.scores import Rule
from laurels.core.windows import Span
from laurels.ports import Event, Pod
from support.stores import PostgresServer, temporary_folder

BATCH = 1000
SENDERS = 4
FILL_ROWS = 5_000_000
PRUNE_EVENTS = 2000
SWEEP_ROWS = 2000
OLD_DAYS = 400
SETTINGS = "shared_buffers 4GB, max_wal_size 16GB, checkpoint_timeout 15min"


class Rate(NamedTuple):
    """Events per second, the response times of batches in milliseconds, and PostgreSQL's processor time per event."""

    events: float
    p50: float
    p99: float
    cpu_us: float


async def new_board(ledger: PostgresLedger, name: str) -> Board:
    now = SystemClock().now_us()
    with contextlib.suppress(Exception):
        await ledger.create_pod(Pod("bench", "Bench", now))
    board = Board(id=0, uuid=name, pod_id="bench", name=name, rule=Rule.INCREMENT, created_at=now)
    return await ledger.create_board(board, [Span("all", "all", None, None)])


class Recorder(NamedTuple):
    """Records batches from several senders at once."""

    postgres: PostgresServer
    players: int
    seconds: float

    async def record(self, ledger: PostgresLedger, board: Board, new_id: Callable[[], str]) -> Rate:
        before, begin = cpu_s(self.postgres), time.perf_counter()
        times = await record(ledger, board, self.players, self.seconds, new_id)
        took, used = time.perf_counter() - begin, cpu_s(self.postgres) - before
        events = len(times) * BATCH
        ordered = sorted(times)
        p50, p99 = (1000 * ordered[int(len(ordered) * share)] for share in (0.5, 0.99))
        return Rate(events / took, p50, p99, 1e6 * used / events)


def cpu_s(postgres: PostgresServer) -> float:
    """Return the processor time of PostgreSQL's processes. Connections last as long as the measurement."""
    total = 0.0
    for process in postgres.process.everybody():
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system
    return total


async def record(
    ledger: PostgresLedger, board: Board, players: int, seconds: float, new_id: Callable[[], str]
) -> list[float]:
    """Record batches from several senders at once, and return how long each took."""
    rng = random.Random(SEED)
    times: list[float] = []
    begin = time.perf_counter()

    async def send() -> None:
        while time.perf_counter() < begin + seconds:
            now = SystemClock().now_us()
            names = [user_name(rng.randrange(players)) for _ in range(BATCH)]
            events = [Event(board, new_id(), name, float(rng.randrange(100)), now, True, now) for name in names]
            start = time.perf_counter()
            await ledger.record(events)
            times.append(time.perf_counter() - start)

    await asyncio.gather(*(send() for _ in range(SENDERS)))
    return times


def time_ordered() -> str:
    return new_event_id(time.time_ns() // 1000)


def from_caller() -> str:
    return uuid.uuid4().hex


async def beside(work: Callable[[], Awaitable[int]], measured: Awaitable[Rate]) -> tuple[Rate, float]:
    """Return what was measured while some work was repeated, and how much the work did per second."""
    done = 0
    start = time.perf_counter()

    async def repeat() -> None:
        nonlocal done
        while count := await work():
            done += count

    working = asyncio.create_task(repeat())
    rate = await measured
    assert not working.done() or working.result() is None, "the work ended too early"
    per_second = done / (time.perf_counter() - start)
    working.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await working
    return rate, per_second


async def fill(url: str, board: Board, past: Board, events: int, players: int) -> None:
    """Fill the tables without their indexes, which are then built anew, because filling is not measured."""
    connection = await asyncpg.connect(url, timeout=60, command_timeout=7200)
    await connection.execute("SET maintenance_work_mem = '2GB'; SET synchronous_commit = off")
    indexes = await connection.fetch(
        "SELECT CASE WHEN c.oid IS NULL THEN format('DROP INDEX %s', i.indexrelid::regclass) "
        "ELSE format('ALTER TABLE %s DROP CONSTRAINT %I', i.indrelid::regclass, c.conname) END AS drop, "
        "CASE WHEN c.oid IS NULL THEN pg_get_indexdef(i.indexrelid) ELSE format('ALTER TABLE %s ADD CONSTRAINT %I %s', "
        "i.indrelid::regclass, c.conname, pg_get_constraintdef(c.oid)) END AS create FROM pg_index i "
        "LEFT JOIN pg_constraint c ON c.conindid = i.indexrelid "
        "WHERE i.indrelid IN ('events'::regclass, 'scores'::regclass)"
    )
    for each in indexes:
        await connection.execute(each["drop"])
    for target in (board, past):
        await connection.execute(
            "INSERT INTO scores (period_id, user_id, score, achieved_at, total, has_nonzero, version) "
            f"SELECT {target.periods[0].id}, lpad(to_hex(n), 24, '0'), n % 100003, n, n % 100003, true, "
            f"nextval('versions') FROM generate_series(0::bigint, {players - 1}) AS n"
        )
    now = SystemClock().now_us()
    began = now - OLD_DAYS * DAY_US
    step = (now - began) // events
    for first in range(0, events, FILL_ROWS):
        await connection.execute(
            "INSERT INTO events (seq, board_id, event_id, user_id, score, at, stamped, received_at) "
            f"SELECT nextval('event_seqs'), {board.id}, "
            # 48 bits of milliseconds and 80 random bits; or 128 random bits.
            f"CASE WHEN n % 2 = 0 THEN lpad(to_hex(({began}::bigint + n * {step}) / 1000), 12, '0') "
            "|| substr(md5(n::text), 1, 20) ELSE md5(n::text) END, "
            f"lpad(to_hex((n * 7919) % {players}), 24, '0'), n % 100, {began} + n * {step}, true, {began} + n * {step} "
            f"FROM generate_series({first}::bigint, {min(events, first + FILL_ROWS) - 1}) AS n"
        )
    for each in indexes:
        await connection.execute(each["create"])
    await connection.execute("VACUUM ANALYZE scores")
    await connection.execute("VACUUM ANALYZE events")
    await connection.execute("CHECKPOINT")
    await connection.close()


@contextlib.asynccontextmanager
async def opened(url: str) -> AsyncIterator[PostgresLedger]:
    ledger = PostgresLedger(url, SystemClock(), max_connections=SENDERS + 2)
    await ledger.open()
    try:
        yield ledger
    finally:
        await ledger.close()


async def measure(postgres: PostgresServer, options: argparse.Namespace) -> None:
    players = options.users
    recorder = Recorder(postgres, players, options.seconds)
    show_head()
    async with opened(postgres.new_database("empty")) as ledger:
        board = await new_board(ledger, "board")
        empty = await recorder.record(ledger, board, time_ordered)
        show("empty", empty, empty)
    url = postgres.new_database("full")
    async with opened(url) as ledger:
        board, past = await new_board(ledger, "board"), await new_board(ledger, "past")
    start = time.perf_counter()
    await fill(url, board, past, options.events, players)
    async with opened(url) as ledger:
        connection = await asyncpg.connect(url)
        size = await connection.fetchval("SELECT pg_database_size('full')")
        print(f"  filled in {time.perf_counter() - start:.0f} s: {size / 1e9:.1f} GB")
        # The pages of random users come into memory.
        show("full, first minute", await recorder._replace(seconds=60.0).record(ledger, board, time_ordered), empty)
        for name, new_id in (("full", time_ordered), ("full, random event ids", from_caller)):
            show(name, await recorder.record(ledger, board, new_id), empty)
        seq = 0
        before = SystemClock().now_us() - OLD_DAYS // 2 * DAY_US

        async def prune() -> int:
            nonlocal seq
            count, last = await ledger.periods.prune_events([board], before, seq, PRUNE_EVENTS)
            seq = last or seq
            return count

        rate, work = await beside(prune, recorder.record(ledger, board, time_ordered))
        show(f"full, {work:,.0f} events/s pruned", rate, empty)
        await connection.execute("UPDATE periods SET state = 'frozen', frozen_at = 0 WHERE id = $1", past.periods[0].id)
        rate, work = await beside(
            lambda: ledger.periods.sweep(past.periods[0].id, SWEEP_ROWS),
            recorder.record(ledger, board, time_ordered),
        )
        show(f"full, {work:,.0f} rows/s swept", rate, empty)
        await connection.close()


def show_head() -> None:
    heads = f"{'events/s':>10}{'of empty':>10}{'p50 ms':>9}{'p99 ms':>9}{'CPU µs':>9}"
    print(f"\n{'':36}{heads}   of batches of {BATCH:,}, {SENDERS} at once")


def show(name: str, rate: Rate, empty: Rate) -> None:
    numbers = f"{rate.events:10,.0f}{rate.events / empty.events:10.2f}{rate.p50:9.0f}{rate.p99:9.0f}{rate.cpu_us:9.0f}"
    print(f"{name:36}{numbers}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--events", type=int, default=100_000_000)
    parser.add_argument("--users", type=int, default=25_000_000)
    parser.add_argument("--seconds", type=float, default=30.0, help="seconds per rate")
    options = parser.parse_args()
    print(f"command      PYTHONPATH=tests {' '.join([Path(sys.executable).name, *sys.argv])}")
    print(f"machine      {os.cpu_count()} cores, shared with the senders; Python {platform.python_version()}")
    print(f"durability   fsync and synchronous_commit on; {SETTINGS}")
    print(f"size         {options.events:,} events of {options.users:,} players, and as many rows of a past period")
    with (
        temporary_folder() as folder,
        PostgresServer(
            folder / "postgres", shared_buffers="4GB", max_wal_size="16GB", checkpoint_timeout="15min"
        ) as postgres,
    ):
        print(f"server       PostgreSQL {postgres.sql('SHOW server_version').stdout.split()[2]}")
        asyncio.run(measure(postgres, options))


if __name__ == "__main__":
    main()
