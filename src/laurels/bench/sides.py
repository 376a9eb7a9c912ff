"""The sides of a benchmark: Laurels in each mode, baselines, other stacks and other servers."""

import contextlib
import importlib.util
import multiprocessing
import os
import random
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import uvloop
from msgspec import Struct

from laurels.bench import bare, stacks
from laurels.bench.data import BOARD, first_scores, user_name
from laurels.bench.inside import RedisAlone, SqliteAlone, StoresAlone
from laurels.bench.load import SEED, closed_loop
from laurels.bench.peers import CALLS, REQUESTS, Peer
from laurels.bench.stores import (
    STOP_S,
    find_program,
    free_port,
    running_postgres,
    running_redis,
    wait_for_end,
    wait_until,
)
from laurels.client.tls import tls_for
from laurels.core.ids import new_secret
from laurels.errors import Unavailable

EMBEDDED = "Laurels, SQLite"
SHARED = "Laurels, PostgreSQL + Redis"
PROTOCOL = "bare protocol"
ASGI = "bare ASGI"
DURABLE = "bare durable handler"
SQLITE_ALONE = "SQLite alone"
STORES_ALONE = "PostgreSQL + Redis alone"
REDIS_ALONE = "Redis alone"
PACKAGE = "PyPI leaderboard on Redis"
COUNT = "COUNT in PostgreSQL"

BATCH = 1000
BATCH_CONNECTIONS = 4
FILL_ITEMS = 5000
API = "/api/v1/leaderboards"


Measure = Callable[[float], Coroutine[Any, Any, float]]


class Options(Struct, frozen=True):
    users: int
    seconds: float
    rounds: int
    connections: int


class Side(Struct, frozen=True):
    """Who is measured.

    `calls`: by name of the call, a function that measures it for some seconds and returns calls (of `batch`: scores)
    per second. `durability`: what is stored before a write is answered.
    """

    name: str
    durability: str
    calls: dict[str, Measure]


class Server(Struct, frozen=True):
    """A running Laurels with a board and its users."""

    port: int
    key: str

    def client(self) -> httpx.Client:
        url = f"http://127.0.0.1:{self.port}"
        return httpx.Client(base_url=url, headers={"X-API-Key": self.key}, timeout=60, verify=tls_for(url))

    def requests(self, call: str, users: int, boards: Sequence[str] = (BOARD,)) -> list[bytes]:
        """Return requests of random users, on random boards."""
        rng = random.Random(SEED)
        head = f"HTTP/1.1\r\nHost: bench\r\nX-API-Key: {self.key}\r\n"
        if call == "top":
            return [f"GET {API}/{board}/top {head}\r\n".encode() for board in boards]
        if call == "batch":
            return [_post(head, _scores(rng, users)) for _ in range(20)]
        paths = [f"{API}/{rng.choice(boards)}/users/{user_name(rng.randrange(users))}" for _ in range(REQUESTS)]
        if call == "put":
            body = '{"score": 1}'
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}"
            return [f"PUT {path} {head}".encode() for path in paths]
        return [f"GET {path}/{call} {head}\r\n".encode() for path in paths]


def _scores(rng: random.Random, users: int) -> str:
    items = ",".join(f'{{"userId": "{user_name(rng.randrange(users))}", "score": 1}}' for _ in range(BATCH))
    return f'{{"scores": [{items}]}}'


def _post(head: str, body: str) -> bytes:
    kind = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return f"POST {API}/{BOARD}/scores {head}{kind}{body}".encode()


@contextlib.contextmanager
def running_laurels(folder: Path, users: int, **settings: str) -> Iterator[Server]:
    """Run `laurels serve` with one board and its users."""
    folder.mkdir(parents=True, exist_ok=True)
    server = Server(free_port(), new_secret())
    values = {
        "data_dir": str(folder),
        "port": str(server.port),
        "admin_key": server.key,
        "log_level": "error",
    } | settings
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("LAURELS_")}
    environment = inherited | {f"LAURELS_{name.upper()}": value for name, value in values.items()}
    log = folder / "laurels.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "laurels", "serve"], env=environment, stdout=output, stderr=output
        )
    try:
        with server.client() as client:
            wait_until(lambda: _is_ready(client), process, log)
            create_board(client, BOARD, "default")
            fill(client, BOARD, users)
        yield server
    finally:
        process.terminate()
        wait_for_end(process)


def _is_ready(client: httpx.Client) -> bool:
    try:
        return client.get("/readyz").is_success
    except httpx.TransportError:
        return False


def create_board(client: httpx.Client, board: str, pod: str) -> None:
    body = {"UUID": board, "podId": pod, "name": board, "rule": "increment", "ties": "shared", "public": True}
    client.post(API, json=body).raise_for_status()


def fill(client: httpx.Client, board: str, users: int) -> None:
    scores = [{"userId": user, "score": score} for user, score in first_scores(users)]
    for first in range(0, users, FILL_ITEMS):
        client.post(f"{API}/{board}/scores", json={"scores": scores[first : first + FILL_ITEMS]}).raise_for_status()


@contextlib.contextmanager
def bare_server(serve: Callable[..., None], where: str, users: int) -> Iterator[int]:
    """Run a baseline in a process of its own, and yield its port."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=serve, args=(where, users, there.send))
    process.start()
    # Only the process has this end now, so `recv` ends if the process does.
    there.close()
    try:
        yield here.recv()
    except EOFError:
        raise Unavailable("internal", f"The baseline {serve.__name__} did not start.") from None
    finally:
        process.terminate()
        process.join(STOP_S)
        process.kill()


def open_sides(
    stack: contextlib.ExitStack, folder: Path, options: Options, peers: Sequence[Peer], say: Callable[[str], None]
) -> list[Side]:
    """Start every side that can run here. `say` is called with what is left out, and why."""
    users = options.users

    def http(
        name: str, durability: str, port: int, requests: Callable[[str], list[bytes]], calls: Sequence[str]
    ) -> Side:
        def measure(call: str) -> Measure:
            # Made once, because all rounds send the same requests.
            prepared = requests(call)

            async def rate(seconds: float) -> float:
                if call == "batch":
                    return BATCH * await closed_loop(port, prepared, BATCH_CONNECTIONS, seconds)
                return await closed_loop(port, prepared, options.connections, seconds)

            return rate

        return Side(name, durability, {call: measure(call) for call in calls})

    def laurels(name: str, durability: str, server: Server) -> Side:
        return http(name, durability, server.port, lambda call: server.requests(call, users), (*CALLS, "batch"))

    def baseline(
        name: str, durability: str, serve: Callable[..., None], where: str, calls: Sequence[str] = CALLS
    ) -> Side:
        port = stack.enter_context(bare_server(serve, where, users))
        server = Server(port, "none")
        return http(name, durability, port, lambda call: server.requests(call, users), calls)

    sqlite_alone = SqliteAlone(folder, users, BATCH)
    sides = [
        laurels(EMBEDDED, "SQLite, synced", stack.enter_context(running_laurels(folder / "embedded", users))),
        baseline(PROTOCOL, "stores nothing", bare.serve_protocol, str(folder)),
        baseline(ASGI, "stores nothing", bare.serve_asgi, str(folder)),
        baseline(DURABLE, "SQLite, synced", bare.serve_durable, str(folder), ("put", "batch")),
        Side(SQLITE_ALONE, "SQLite, synced", {"batch": sqlite_alone.rate}),
    ]
    missing = [program for program in ("initdb", "postgres", "redis-server") if find_program(program) is None]
    if missing:
        say(f"without PostgreSQL and Redis: {', '.join(missing)} not installed")
    else:
        postgres = stack.enter_context(running_postgres(folder / "postgres"))
        other = stack.enter_context(running_postgres(folder / "other-postgres"))
        store = stack.enter_context(running_redis(folder / "redis"))
        server = stack.enter_context(running_laurels(folder / "shared", users, ledger=postgres, index=store))
        alone = StoresAlone(other, store, users, BATCH)
        sides += [
            laurels(SHARED, "PostgreSQL, synced; Redis can be rebuilt", server),
            Side(STORES_ALONE, "PostgreSQL, synced", {"batch": alone.rate}),
            Side(REDIS_ALONE, "stores nothing", {"rank": RedisAlone(store, users, options.connections).rate}),
            baseline(COUNT, "PostgreSQL, synced", stacks.serve_count, other),
        ]
        if importlib.util.find_spec("leaderboard") is None:
            say("without the PyPI package leaderboard: it is not installed")
        else:
            sides.append(baseline(PACKAGE, "not durable", stacks.serve_package, store))
    for peer in peers:
        uvloop.run(peer.fill(users, options.connections))
        sides.append(_peer_side(peer, options))
    return sides


def _peer_side(peer: Peer, options: Options) -> Side:
    def measure(call: str) -> Measure:
        prepared = peer.requests(call, options.users)

        async def rate(seconds: float) -> float:
            return await closed_loop(peer.port, prepared, options.connections, seconds, peer.host)

        return rate

    return Side(peer.name, "see its documentation", {call: measure(call) for call in peer.calls})
