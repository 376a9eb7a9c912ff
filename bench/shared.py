"""One million users on PostgreSQL and Redis, on private servers that this program starts.

Compares the rebuild of a ranking with a plain pipelined load of the same sorted set, the memory per user in Redis with
the bare sorted set, and updates with the bare statements that store and rank them. Compare ratios, not times:
PostgreSQL, Redis and this program share the machine's cores. bench/calls.py measures calls over HTTP.
"""

import argparse
import asyncio
import contextlib
import os
import platform
import random
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import redis.asyncio as redis

from laurels.adapters.http_sender import HttpSender
from laurels.adapters.postgres import PostgresLedger
from laurels.adapters.redis import RedisConnection, RedisFeed, RedisIndex, parse_redis_url
from laurels.adapters.system_clock import SystemClock
from laurels.bench.inside import repeat
from laurels.core.board import Board, Ranking
from laurels.logs import configure_logs
from laurels.service.laurels import Laurels
from laurels.service.read.reads import Selection
from laurels.service.write.submissions import Submission
from laurels.settings import Settings
from load import CONNECTIONS, SEED, Figures, bench_board, user_name
from support.running import ADMIN_KEY
from support.stores import HOST, PostgresServer, RedisServer, temporary_folder

BATCH = 1000
SENDERS = 4
PIPELINE = 1000


@contextlib.asynccontextmanager
async def opened(postgres: PostgresServer, store: RedisServer) -> AsyncIterator[Laurels]:
    connection = RedisConnection(parse_redis_url(store.url), timeout_ms=10_000)
    laurels = Laurels(
        PostgresLedger(postgres.url(), SystemClock(), max_connections=8),
        RedisIndex(connection),
        RedisFeed(connection),
        SystemClock(),
        admin_key=ADMIN_KEY,
        settings=Settings.of(
            {
                "max_boards": 10,
                "max_batch": 1000,
                "max_pending": 1_000_000,
                "write_timeout_ms": 600_000,
                "repair_interval_ms": 600_000,
                "jobs_interval_ms": 600_000,
            }
        ),
        # Keep the periodic repair and the jobs out of the measurement.
        sender=HttpSender(),
    )
    try:
        await laurels.open()
        await laurels.load()
        yield laurels
    finally:
        await laurels.close()


def fill(postgres: PostgresServer, period_id: int, users: int) -> None:
    """Insert rows directly into the tables, because filling is not measured."""
    postgres.sql(
        "INSERT INTO scores (period_id, user_id, score, achieved_at, total, has_nonzero, version) "
        f"SELECT {period_id}, lpad(to_hex(n), 24, '0'), (n * 7919) % 100003, n, "
        f"(n * 7919) % 100003, true, nextval('versions') FROM generate_series(0::bigint, {users - 1}) AS n"
    )
    postgres.sql("VACUUM ANALYZE scores")


async def measure(postgres: PostgresServer, store: RedisServer, users: int, seconds: float) -> tuple[Figures, Figures]:
    async with opened(postgres, store) as laurels:
        board = await bench_board(laurels)
        ranking = board.ranking(board.periods[0].id)
        await asyncio.to_thread(fill, postgres, ranking.period_id, users)
        plain = redis.Redis(host=HOST, port=store.port)
        bare = await load_plain(postgres, plain, ranking, seconds)
        await plain.flushall()
        before = await used_memory(plain)
        start = time.perf_counter()
        async for _ in laurels.rebuild([board]):
            pass
        figures: Figures = {"rebuild": users / (time.perf_counter() - start)}
        figures["bytes"] = (await used_memory(plain) - before) / users
        counted = await laurels.reads.counts([board])
        assert (counted.value, counted.degraded) == ([users], False)
        figures |= await rates(laurels, board, users, seconds)
        bare |= await bare_rates(postgres, plain, ranking, users, seconds)
        await plain.aclose()
    return figures, bare


async def load_plain(postgres: PostgresServer, plain: redis.Redis, ranking: Ranking, seconds: float) -> Figures:
    """Load the same rows, in the same chunks, into a sorted set and nothing else."""
    del seconds
    ledger = PostgresLedger(postgres.url(), SystemClock(), max_connections=2)
    await ledger.open()
    before = await used_memory(plain)
    start = time.perf_counter()
    count = 0
    async for chunk in ledger.rows(ranking.period_id):
        for first in range(0, len(chunk), PIPELINE):
            pipeline = plain.pipeline(transaction=False)
            scores = {row.user_id: row.standing.score for row in chunk[first : first + PIPELINE] if row.standing}
            pipeline.zadd("plain", scores)
            await pipeline.execute()
            count += len(scores)
    elapsed = time.perf_counter() - start
    await ledger.close()
    return {"rebuild": count / elapsed, "bytes": (await used_memory(plain) - before) / count}


async def used_memory(plain: redis.Redis) -> int:
    return int((await plain.info("memory"))["used_memory"])


async def rates(laurels: Laurels, board: Board, users: int, seconds: float) -> Figures:
    rng = random.Random(SEED)

    async def update() -> int:
        names = [user_name(rng.randrange(users)) for _ in range(BATCH)]
        await laurels.submissions.submit_many(board, [Submission(name, rng.randrange(100)) for name in names])
        return BATCH

    async def rank() -> int:
        await laurels.reads.rank(board, Selection(), user_name(rng.randrange(users)))
        return 1

    return {
        "update": await repeat(update, SENDERS, seconds),
        "rank": await repeat(rank, CONNECTIONS, seconds),
    }


async def bare_rates(
    postgres: PostgresServer, plain: redis.Redis, ranking: Ranking, users: int, seconds: float
) -> Figures:
    """Measure the minimum: one upsert and one insert per batch, then one ZADD per user, without version checks."""
    rng = random.Random(SEED)
    pool = await asyncpg.create_pool(postgres.url(), min_size=SENDERS, max_size=SENDERS)
    await pool.execute("CREATE TABLE plain_events (seq bigserial PRIMARY KEY, user_id text, score double precision)")
    await pool.execute("CREATE TABLE plain_scores (user_id text PRIMARY KEY, score double precision)")
    await pool.execute(
        "INSERT INTO plain_scores SELECT user_id, score FROM scores WHERE period_id = $1", ranking.period_id
    )
    names_of_plain = [user_name(number) for number in range(users)]
    for first in range(0, users, 10_000):
        await plain.zadd("plain", dict.fromkeys(names_of_plain[first : first + 10_000], 1.0))
    statement = """
        WITH input AS (SELECT * FROM unnest($1::text[], $2::double precision[]) AS i (user_id, score)),
        stored AS (INSERT INTO plain_events (user_id, score) SELECT user_id, score FROM input)
        INSERT INTO plain_scores AS s (user_id, score) SELECT user_id, score FROM input ORDER BY user_id
        ON CONFLICT (user_id) DO UPDATE SET score = s.score + excluded.score RETURNING user_id, score
    """

    async def update() -> int:
        names = rng.sample(range(users), BATCH) if users > BATCH else list(range(users))
        rows = await pool.fetch(statement, [user_name(name) for name in names], [1.0] * len(names))
        await plain.zadd("plain", {row["user_id"]: row["score"] for row in rows})
        return len(names)

    async def rank() -> int:
        await plain.zrevrank("plain", user_name(rng.randrange(users)))
        return 1

    figures = {"update": await repeat(update, SENDERS, seconds), "rank": await repeat(rank, CONNECTIONS, seconds)}
    await pool.close()
    await plain.delete("plain")
    return figures


def show(figures: Figures, bare: Figures) -> None:
    rows = [
        ("rebuild", "rebuild, users/s", ",.0f", "rows read, then ZADD in pipelines of 1000"),
        ("bytes", "memory a user in Redis, bytes", ".0f", "the bare sorted set"),
        ("update", f"updates/s, {BATCH} a call", ",.0f", "bare upsert + insert, then ZADD"),
        ("rank", "rank of a random user /s", ",.0f", "bare ZREVRANK, one per command"),
    ]
    print(f"\n{'':32}{'laurels':>12}{'baseline':>12}{'ratio':>8}")
    for key, label, form, what in rows:
        line = f"{label:32}{format(figures[key], form):>12}"
        if key in bare:
            line += f"{format(bare[key], form):>12}{figures[key] / bare[key]:>8.2f}  {what}"
        print(line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--users", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=5.0, help="seconds to measure each rate")
    options = parser.parse_args()
    configure_logs("error")
    print(f"command      PYTHONPATH=tests {' '.join([Path(sys.executable).name, *sys.argv])}")
    print(f"machine      {os.cpu_count()} cores, Python {platform.python_version()}")
    print("durability   PostgreSQL with fsync and synchronous_commit on, on both sides; Redis without persistence")
    print(f"users        {options.users}, 24-character ids, {options.seconds:g} s per rate")
    with (
        temporary_folder() as folder,
        PostgresServer(folder / "postgres") as postgres,
        RedisServer(folder / "redis") as store,
    ):
        version = store.client().info("server")["redis_version"]
        print(f"servers      {postgres.sql('SHOW server_version').stdout.split()[2]} (PostgreSQL), {version} (Redis)")
        figures, bare = asyncio.run(measure(postgres, store, options.users, options.seconds))
    show(figures, bare)


if __name__ == "__main__":
    main()
