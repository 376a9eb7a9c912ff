"""Baselines: the least code that does a part of what Laurels does.

- `serve_protocol`: an asyncio protocol with httptools that returns constant bytes.
- `serve_asgi`: an ASGI application on uvicorn that returns constant bytes.
- `serve_durable`: that protocol, sqlite3 with group commit on a thread, and a SortedList: durable scores and ranks.
"""

import asyncio
import sqlite3
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import httptools
import msgspec
import uvicorn
import uvloop
from sortedcontainers import SortedList

from laurels.bench.data import first_scores
from laurels.server import listen

BODY = b"x" * 1000

Tell = Callable[[int], None]
# A user, the score and the time.
Row = tuple[str, float, int]


def serve_protocol(where: str, users: int, tell: Tell) -> None:
    del where, users

    class Constant(_Requests):
        def on_message_complete(self) -> None:
            self.respond(BODY)

    uvloop.run(_listen(Constant, tell))


def serve_asgi(where: str, users: int, tell: Tell) -> None:
    del where, users

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            while (await receive()).get("more_body"):
                pass
            await respond(send, BODY)

    serve_app(app, tell)


def serve_app(app: Any, tell: Tell) -> None:
    """Run an ASGI application on uvicorn, and tell its port."""

    async def run() -> None:
        config = uvicorn.Config(app, http="httptools", lifespan="off", log_config=None, access_log=False)
        listening = listen("127.0.0.1", 0)
        tell(listening.getsockname()[1])
        await uvicorn.Server(config).serve(sockets=[listening])

    uvloop.run(run())


async def respond(send: Any, body: bytes) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def serve_durable(where: str, users: int, tell: Tell) -> None:
    """Answer `PUT …/{user}` with a score, and `POST` with a list of scores."""
    filled = BareBoard(Path(where) / "bare.db")
    filled.update(list(first_scores(users)))
    board = _GroupCommit(filled)

    class Scores(_Requests):
        def on_message_complete(self) -> None:
            body = msgspec.json.decode(self.body)
            if "scores" in body:
                board.put([(each["userId"], float(each["score"])) for each in body["scores"]], self)
            else:
                board.put([(self.url.rpartition(b"/")[2].decode(), float(body["score"]))], self)

    uvloop.run(_listen(Scores, tell))


class _Requests(asyncio.Protocol):
    """A connection that parses requests and leaves the answer to a subclass."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self._parser = httptools.HttpRequestParser(self)
        self.url = b""
        self.body = b""

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self.url, self.body = url, b""

    def on_header(self, name: bytes, value: bytes) -> None:
        pass

    def on_body(self, body: bytes) -> None:
        self.body += body

    def respond(self, body: bytes) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\ncontent-type: application/json\r\n\r\n"
        if not self._transport.is_closing():
            self._transport.write(head % len(body) + body)


async def _listen(protocol: type[asyncio.Protocol], tell: Tell) -> None:
    server = await asyncio.get_running_loop().create_server(protocol, "127.0.0.1", 0)
    tell(server.sockets[0].getsockname()[1])
    await server.serve_forever()


class BareBoard:
    """The least board: events and totals in SQLite with the pragmas of Laurels, and ranks in a SortedList of tuples."""

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        for statement in (
            "PRAGMA journal_mode = WAL",
            "PRAGMA synchronous = FULL",
            "PRAGMA cache_size = -65536",
            "CREATE TABLE IF NOT EXISTS events (id TEXT UNIQUE, user TEXT, score REAL, at INTEGER)",
            "CREATE TABLE IF NOT EXISTS scores (user TEXT PRIMARY KEY, score REAL, at INTEGER) WITHOUT ROWID",
        ):
            self._db.execute(statement)
        self._number = int(self._db.execute("SELECT count(*) FROM events").fetchone()[0])
        self.ranked = SortedList()
        self.entries: dict[str, tuple[float, int, str]] = {}

    def load(self) -> None:
        for user, score, at in self._db.execute("SELECT user, score, at FROM scores"):
            self.entries[user] = (-score, at, user)
        self.ranked = SortedList(self.entries.values())

    def commit(self, scores: Sequence[tuple[str, float]]) -> list[Row]:
        """Store scores in one transaction, and return the new rows: user, score, time."""
        at = time.time_ns() // 1000
        rows = []
        self._db.execute("BEGIN IMMEDIATE")
        for user, score in scores:
            self._number += 1
            self._db.execute("INSERT INTO events VALUES (?, ?, ?, ?)", (f"{self._number:026}", user, score, at))
            rows.append(
                self._db.execute(
                    "INSERT INTO scores VALUES (?, ?, ?) ON CONFLICT (user) DO UPDATE "
                    "SET score = score + excluded.score, at = excluded.at RETURNING user, score, at",
                    (user, score, at),
                ).fetchone()
            )
        self._db.execute("COMMIT")
        return rows

    def rank(self, row: Row) -> int:
        """Move a user to the position of a new row, and return the rank."""
        user, score, at = row
        if user in self.entries:
            self.ranked.remove(self.entries[user])
        entry = self.entries[user] = (-score, at, user)
        self.ranked.add(entry)
        return int(self.ranked.index(entry)) + 1

    def update(self, scores: Sequence[tuple[str, float]]) -> None:
        for row in self.commit(scores):
            self.rank(row)


class _GroupCommit:
    """A board on a thread of its own. All scores that arrive during a transaction share the next one."""

    def __init__(self, board: BareBoard) -> None:
        self._board = board
        self._thread = ThreadPoolExecutor(1)
        self._waiting: list[tuple[list[tuple[str, float]], _Requests]] = []
        self._writing: asyncio.Task[None] | None = None

    def put(self, scores: list[tuple[str, float]], sender: _Requests) -> None:
        self._waiting.append((scores, sender))
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write())

    async def _write(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            batch, self._waiting = self._waiting, []
            scores = [score for scores, _ in batch for score in scores]
            rows = iter(await loop.run_in_executor(self._thread, self._board.commit, scores))
            for own, sender in batch:
                answers = [
                    {"userId": row[0], "score": row[1], "rank": self._board.rank(row)} for row in islice(rows, len(own))
                ]
                sender.respond(msgspec.json.encode(answers if len(answers) > 1 else answers[0]))
