"""Ingest from Kafka until events are durable and ranked, on SQLite and memory and on PostgreSQL and Redis.

Baselines in the same run: a bare consume loop with JSON decode, which stores nothing, and a bare batched upsert of the
same rows into each database, which reads nothing from Kafka. Compare ratios, not times: the broker, the stores and the
program share the machine's cores.
"""

import argparse
import asyncio
import json
import os
import platform
import random
import sqlite3
import sys
import time
from pathlib import Path

import asyncpg
from confluent_kafka import Consumer

from laurels.adapters.http_sender import HttpSender
from laurels.adapters.kafka import KafkaBroker
from laurels.adapters.memory_feed import MemoryFeed
from laurels.adapters.memory_index import MemoryIndex
from laurels.adapters.postgres import PostgresLedger
from laurels.adapters.redis import RedisConnection, RedisFeed, RedisIndex, parse_redis_url
from laurels.adapters.sqlite import SqliteLedger
from laurels.adapters.system_clock import SystemClock
from laurels.core.schemas import FieldMappings, FieldSource, SchemaState, SchemaTerms, TimestampFormat
from laurels.logs import configure_logs
from laurels.ports import Feed, Index, Ledger
from laurels.server import settle_memory
from laurels.service.ingest.topics import Topics
from laurels.service.laurels import Laurels
from laurels.settings import Settings
from load import BOARD, SEED, bench_board, user_name
from support.kafka import Game, KafkaServer
from support.stores import PostgresServer, RedisServer, temporary_folder

POD = "default"
PARTITIONS = 4
BATCH = 1000
TERMS = SchemaTerms(
    FieldMappings("who", "points", "board", "at"), TimestampFormat.EPOCH_MILLIS, event_id_from=FieldSource(field="id")
)


def make_events(count: int, users: int) -> list[dict[str, object]]:
    rng = random.Random(SEED)
    now_ms = int(time.time() * 1000)
    return [
        {
            "id": f"{number:024x}",
            "who": user_name(rng.randrange(users)),
            "points": rng.randrange(1, 100),
            "at": now_ms - count + number,
            "board": BOARD,
            "mode": "ranked",
        }
        for number in range(count)
    ]


def consume_bare(servers: str, topic: str, count: int) -> float:
    """Measure baseline (a): events per second that are read and decoded, and nothing else."""
    consumer = Consumer(
        {"bootstrap.servers": servers, "group.id": "bare", "auto.offset.reset": "earliest", "enable.auto.commit": False}
    )
    consumer.subscribe([topic])
    seen = 0
    start = 0.0
    while seen < count:
        messages = consumer.consume(BATCH, 0.5)
        if messages and not start:
            start = time.perf_counter()
        for message in messages:
            json.loads(message.value() or b"")
        seen += len(messages)
        consumer.commit(asynchronous=True) if messages else None
    elapsed = time.perf_counter() - start
    consumer.close()
    return count / elapsed


def upsert_sqlite(path: Path, events: list[dict[str, object]]) -> float:
    """Measure baseline (b): events per second in transactions of 1000.

    Each event is stored once and added to its user's row, with the same durability as in Laurels.
    """
    connection = sqlite3.connect(path, isolation_level=None)
    connection.executescript(
        "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;"
        "CREATE TABLE events (id TEXT PRIMARY KEY, who TEXT, points REAL, at INTEGER, metadata TEXT);"
        "CREATE TABLE scores (who TEXT PRIMARY KEY, score REAL, at INTEGER) WITHOUT ROWID;"
    )
    start = time.perf_counter()
    for first in range(0, len(events), BATCH):
        some = events[first : first + BATCH]
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(
            "INSERT INTO events VALUES (:id, :who, :points, :at, :mode) ON CONFLICT DO NOTHING", some
        )
        connection.executemany(
            "INSERT INTO scores VALUES (:who, :points, :at) ON CONFLICT (who) DO UPDATE SET "
            "score = score + excluded.score, at = max(at, excluded.at)",
            some,
        )
        connection.execute("COMMIT")
    elapsed = time.perf_counter() - start
    connection.close()
    return len(events) / elapsed


async def upsert_postgres(url: str, events: list[dict[str, object]]) -> float:
    connection = await asyncpg.connect(url)
    await connection.execute(
        "CREATE TABLE bare_events (id text PRIMARY KEY, who text, points float8, at bigint, metadata text);"
        "CREATE TABLE bare_scores (who text PRIMARY KEY, score float8, at bigint)"
    )
    names = ["id", "who", "points", "at", "mode"]
    statement = """
        WITH taken AS (
            INSERT INTO bare_events
            SELECT * FROM unnest($1::text[], $2::text[], $3::float8[], $4::bigint[], $5::text[])
            ON CONFLICT DO NOTHING RETURNING who, points, at
        )
        INSERT INTO bare_scores AS s SELECT who, sum(points), max(at) FROM taken GROUP BY who ORDER BY who
        ON CONFLICT (who) DO UPDATE SET score = s.score + excluded.score, at = greatest(s.at, excluded.at)
    """
    start = time.perf_counter()
    for first in range(0, len(events), BATCH):
        some = events[first : first + BATCH]
        await connection.execute(statement, *([event[name] for event in some] for name in names))
    elapsed = time.perf_counter() - start
    await connection.close()
    return len(events) / elapsed


async def ingest(name: str, ledger: Ledger, index: Index, feed: Feed, servers: str, count: int) -> float:
    """Measure the events per second from Kafka into the ledger and the index.

    The measurement starts when the first events are in the ledger.
    """
    laurels = Laurels(
        ledger,
        index,
        feed,
        SystemClock(),
        sender=HttpSender(),
        broker=KafkaBroker(servers, {}),
        admin_key="bench",
        settings=Settings.of(
            {
                "max_boards": 10,
                "max_batch": BATCH,
                "max_pending": 100_000,
                "write_timeout_ms": 60_000,
                "repair_interval_ms": 600_000,
                "jobs_interval_ms": 500,
                "ingest": 1,
                "kafka_group": f"bench-{name}",
                "ingest_batch": BATCH,
            }
        ),
    )
    try:
        await laurels.open()
        await laurels.schemas.put(POD, "1", TERMS, SchemaState.ACTIVE)
        await laurels.load()
        # As the server does after it has loaded.
        settle_memory()
        # The board exists long before the consumer has joined its group.
        board = await bench_board(laurels)
        start, before = 0.0, 0
        while True:
            counted = await ledger.count_events(board.id)
            if counted and not start:
                start, before = time.perf_counter(), counted
            if counted == count:
                break
            await asyncio.sleep(0.05)
        elapsed = time.perf_counter() - start
        # All durable events must be ranked, too.
        async for checked in laurels.verify():
            assert not checked.differences, checked.differences[:3]
        return (count - before) / elapsed
    finally:
        await laurels.close()


def show(name: str, rate: float, bare: dict[str, float]) -> None:
    ratios = ", ".join(f"{rate / each:.2f} of {what}" for what, each in bare.items())
    print(f"{name:<34}{rate:>10,.0f} events/s   {ratios}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=200_000)
    parser.add_argument("--users", type=int, default=20_000)
    options = parser.parse_args()
    configure_logs("error")
    print(f"command: {' '.join([Path(sys.executable).name, *sys.argv])}")
    print(f"machine: {os.cpu_count()} cores, Python {platform.python_version()}")
    print(
        "durability: SQLite WAL with synchronous=FULL; PostgreSQL with synchronous_commit=on; Kafka offsets after that"
    )
    print(f"{options.events:,} events by {options.users:,} users, {PARTITIONS} partitions, batches of {BATCH}\n")
    events = make_events(options.events, options.users)
    with temporary_folder() as folder, KafkaServer(folder / "kafka") as kafka:
        topic = Topics().updates(POD)
        game = Game(kafka.servers)
        game.make_topic(topic, PARTITIONS)
        game.write(topic, events)
        bare = consume_bare(kafka.servers, topic, options.events)
        show("bare consume and JSON decode", bare, {})
        rows = upsert_sqlite(folder / "bare.db", events)
        show("bare upsert, SQLite", rows, {})
        ledger = SqliteLedger(folder / "laurels.db", SystemClock())
        rate = asyncio.run(ingest("sqlite", ledger, MemoryIndex(), MemoryFeed(), kafka.servers, options.events))
        show("Laurels on SQLite + memory", rate, {"bare consume": bare, "bare upsert": rows})
        with PostgresServer(folder / "postgres") as postgres, RedisServer(folder / "redis") as redis:
            rows = asyncio.run(upsert_postgres(postgres.url(), events))
            show("bare upsert, PostgreSQL", rows, {})

            async def shared() -> float:
                connection = RedisConnection(parse_redis_url(redis.url), timeout_ms=10_000)
                ledger = PostgresLedger(postgres.url(), SystemClock(), max_connections=8)
                return await ingest(
                    "postgres", ledger, RedisIndex(connection), RedisFeed(connection), kafka.servers, options.events
                )

            rate = asyncio.run(shared())
            show("Laurels on PostgreSQL + Redis", rate, {"bare consume": bare, "bare upsert": rows})


if __name__ == "__main__":
    main()
