"""Baselines without HTTP: what SQLite, PostgreSQL and Redis do alone, with the same durability and batches."""

import asyncio
import random
import sqlite3
import time
from pathlib import Path
from typing import Any

import asyncpg
import redis.asyncio as redis

from laurels.bench.bare import BareBoard
from laurels.bench.data import first_scores, user_name
from laurels.bench.load import SEED

# Senders of a database at the same time.
SENDERS = 4
FILL_ROWS = 10_000


class SqliteAlone:
    """Events and totals in SQLite, `batch` scores per transaction, and nothing else."""

    def __init__(self, folder: Path, users: int, batch: int) -> None:
        self._board = BareBoard(folder / "alone.db")
        self._users, self._batch = users, batch
        scores = list(first_scores(users))
        for first in range(0, users, FILL_ROWS):
            self._board.commit(scores[first : first + FILL_ROWS])
        self.version = sqlite3.sqlite_version

    async def rate(self, seconds: float) -> float:
        """Return scores per second."""
        rng = random.Random(SEED)
        count, start = 0, time.perf_counter()
        while (passed := time.perf_counter() - start) < seconds:
            self._board.commit([(user_name(rng.randrange(self._users)), 1.0) for _ in range(self._batch)])
            count += self._batch
        return count / passed


class StoresAlone:
    """An insert and an upsert per batch in PostgreSQL, then a ZADD in Redis: no event ids, no ranks, no checks."""

    def __init__(self, postgres: str, store: str, users: int, batch: int) -> None:
        self._postgres, self._redis = postgres, store
        self._users, self._batch = users, batch
        self._is_filled = False

    async def rate(self, seconds: float) -> float:
        """Return scores per second."""
        pool = await asyncpg.create_pool(self._postgres, min_size=SENDERS, max_size=SENDERS)
        plain = redis.Redis.from_url(self._redis)
        if not self._is_filled:
            self._is_filled = True
            await self._fill(pool, plain)
        rng = random.Random(SEED)

        async def update() -> int:
            names = [user_name(name) for name in rng.sample(range(self._users), min(self._batch, self._users))]
            rows = await pool.fetch(_UPSERT, names, [1.0] * len(names))
            await plain.zadd("plain", {row[0]: row[1] for row in rows})
            return len(names)

        try:
            return await repeat(update, SENDERS, seconds)
        finally:
            await pool.close()
            await plain.aclose()

    async def _fill(self, pool: "asyncpg.Pool[Any]", plain: "redis.Redis") -> None:
        await pool.execute("CREATE TABLE plain_events (seq bigserial PRIMARY KEY, user_id text, score float8)")
        await pool.execute("CREATE TABLE plain_scores (user_id text PRIMARY KEY, score float8)")
        scores = list(first_scores(self._users))
        await pool.copy_records_to_table("plain_scores", records=scores)
        for first in range(0, len(scores), FILL_ROWS):
            await plain.zadd("plain", dict(scores[first : first + FILL_ROWS]))


_UPSERT = """
    WITH input AS (SELECT * FROM unnest($1::text[], $2::float8[]) AS i (user_id, score)),
    stored AS (INSERT INTO plain_events (user_id, score) SELECT user_id, score FROM input)
    INSERT INTO plain_scores AS s (user_id, score) SELECT user_id, score FROM input ORDER BY user_id
    ON CONFLICT (user_id) DO UPDATE SET score = s.score + excluded.score RETURNING user_id, score
"""


class RedisAlone:
    """The rank of a user by one ZREVRANK at a time per caller."""

    def __init__(self, store: str, users: int, callers: int) -> None:
        self._redis, self._users, self._callers = store, users, callers

    async def rate(self, seconds: float) -> float:
        plain = redis.Redis.from_url(self._redis)
        scores = list(first_scores(self._users))
        for first in range(0, len(scores), FILL_ROWS):
            await plain.zadd("alone", dict(scores[first : first + FILL_ROWS]))
        rng = random.Random(SEED)

        async def rank() -> int:
            await plain.zrevrank("alone", user_name(rng.randrange(self._users)))
            return 1

        try:
            return await repeat(rank, self._callers, seconds)
        finally:
            await plain.aclose()


async def repeat(call: Any, callers: int, seconds: float) -> float:
    """Call a function again and again, by several callers at once, and return the sum of its results per second."""
    end = time.perf_counter() + seconds

    async def caller() -> int:
        count = 0
        while time.perf_counter() < end:
            count += await call()
        return count

    start = time.perf_counter()
    counts = await asyncio.gather(*(caller() for _ in range(callers)))
    return sum(counts) / (time.perf_counter() - start)
