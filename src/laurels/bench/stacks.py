"""Other ways to build a leaderboard from common parts, each behind a small ASGI application on uvicorn.

- `serve_count`: the relational way: scores in PostgreSQL, a rank is a COUNT of the better ones. Durable.
- `serve_package`: the PyPI package `leaderboard` on Redis. Not durable.

Both answer the paths of Laurels: `…/top`, `…/users/{user}/rank`, `…/users/{user}/around` and `PUT …/users/{user}`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
import msgspec
import redis

from laurels.bench.bare import Tell, respond, serve_app
from laurels.bench.data import BOARD, first_scores

CONNECTIONS = 16
FILL_ROWS = 10_000
TOP = 10
AROUND = 4

# Answers a call: its name, the user and the score of a `PUT`.
Answer = Callable[[str, str, float], Awaitable[Any]]


def _application(answer: Answer) -> Any:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body = b""
        more = True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        parts = scope["path"].split("/")
        if scope["method"] == "PUT":
            found = await answer("put", parts[-1], float(msgspec.json.decode(body)["score"]))
        else:
            found = await answer(parts[-1], parts[-2], 0.0)
        await respond(send, msgspec.json.encode(found))

    return app


def serve_count(where: str, users: int, tell: Tell) -> None:
    """`where`: the URL of a PostgreSQL database."""
    pool: asyncpg.Pool[Any] | None = None
    opening = asyncio.Lock()

    async def opened() -> "asyncpg.Pool[Any]":
        nonlocal pool
        async with opening:
            if pool is None:
                pool = await asyncpg.create_pool(where, min_size=CONNECTIONS, max_size=CONNECTIONS)
            return pool

    async def answer(call: str, user: str, score: float) -> Any:
        database = await opened()
        match call:
            case "top":
                rows = await database.fetch(
                    f"SELECT user_id, score FROM bench_scores ORDER BY score DESC, user_id LIMIT {TOP}"
                )
                return [{"userId": row[0], "score": row[1], "rank": rank} for rank, row in enumerate(rows, 1)]
            case "around":
                rows = await database.fetch(_AROUND, user)
                return [{"userId": row[0], "score": row[1], "rank": row[2]} for row in rows]
            case "put":
                row = await database.fetchrow(_PUT, user, score)
            case _:
                row = await database.fetchrow(_RANK, user)
        assert row is not None, "the user exists"
        return {"userId": user, "score": row[0], "rank": row[1]}

    asyncio.run(_fill_count(where, users))
    serve_app(_application(answer), tell)


_RANK = """
    SELECT m.score, 1 + (SELECT count(*) FROM bench_scores o WHERE o.score > m.score)
    FROM bench_scores m WHERE m.user_id = $1
"""
_PUT = """
    WITH changed AS (UPDATE bench_scores SET score = score + $2 WHERE user_id = $1 RETURNING score)
    SELECT c.score, 1 + (SELECT count(*) FROM bench_scores o WHERE o.score > c.score) FROM changed c
"""
_AROUND = f"""
    WITH mine AS (SELECT user_id, score FROM bench_scores WHERE user_id = $1),
    shown AS (
        (SELECT o.user_id, o.score FROM bench_scores o, mine m WHERE (o.score, o.user_id) > (m.score, m.user_id)
         ORDER BY o.score, o.user_id LIMIT {AROUND})
        UNION ALL
        (SELECT o.user_id, o.score FROM bench_scores o, mine m WHERE (o.score, o.user_id) <= (m.score, m.user_id)
         ORDER BY o.score DESC, o.user_id DESC LIMIT {AROUND + 1})
    ), first AS (SELECT 1 + (SELECT count(*) FROM bench_scores o WHERE o.score > max(s.score)) AS rank FROM shown s)
    SELECT s.user_id, s.score, f.rank - 1 + rank() OVER (ORDER BY s.score DESC) FROM shown s, first f
    ORDER BY s.score DESC, s.user_id DESC
"""


async def _fill_count(url: str, users: int) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute('CREATE TABLE bench_scores (user_id text COLLATE "C" PRIMARY KEY, score float8 NOT NULL)')
    await connection.copy_records_to_table("bench_scores", records=first_scores(users))
    await connection.execute("CREATE INDEX ON bench_scores (score, user_id)")
    await connection.execute("VACUUM ANALYZE bench_scores")
    await connection.close()


class _Pipeline(redis.client.Pipeline):
    def zadd(self, name: Any, member: Any, score: Any) -> Any:  # type: ignore[override]
        return super().zadd(name, {member: score})

    def zincrby(self, name: Any, member: Any, amount: Any) -> Any:  # type: ignore[override]
        return super().zincrby(name, amount, member)


class _Redis(redis.Redis):
    """A client with the methods of redis-py 2, which the package `leaderboard` calls."""

    def pipeline(self, transaction: Any = True, shard_hint: Any = None) -> Any:
        return _Pipeline(self.connection_pool, self.response_callbacks, transaction, shard_hint)


def serve_package(where: str, users: int, tell: Tell) -> None:
    """`where`: the URL of a Redis server."""
    from leaderboard.leaderboard import Leaderboard

    board = Leaderboard(BOARD, redis_connection=_Redis.from_url(where, max_connections=CONNECTIONS * 4))
    batch: list[Any] = []
    for user, score in first_scores(users):
        batch += [user, score]
        if len(batch) >= FILL_ROWS:
            board.rank_members(batch)
            batch = []
    if batch:
        board.rank_members(batch)

    def ask(call: str, user: str, score: float) -> Any:
        match call:
            case "top":
                return board.leaders(1, page_size=TOP)
            case "around":
                return board.around_me(user, page_size=2 * AROUND + 1)
            case "put":
                board.change_score_for(user, score)
        return board.score_and_rank_for(user)

    async def answer(call: str, user: str, score: float) -> Any:
        return _readable(await asyncio.to_thread(ask, call, user, score))

    serve_app(_application(answer), tell)


def _readable(found: Any) -> Any:
    return found if isinstance(found, list) else dict(found)
