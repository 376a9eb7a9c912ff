"""One board of 25 million players, split over a local Redis Cluster, beside an unsplit board of a million.

Starts PostgreSQL, a cluster without replicas and one `laurels serve`, fills the ledger with COPY, builds the index, and
prints memory per player and build time, then the times of single calls and the rates of many, on both boards in turn.
The ranks of some players are compared with a COUNT in PostgreSQL. With --freeze, it also ends the period of the large
board.

Compare ratios, not times: all nodes, PostgreSQL, the server and this program share the machine's cores, so the rate of
a read that asks 16 parts can't be that of a read that asks one.
"""

import argparse
import asyncio
import contextlib
import os
import platform
import random
import statistics
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import asyncpg
import httpx
import psutil

from freeze import periods_job, seconds_of
from laurels.bench.data import user_name
from laurels.bench.load import SEED, Connection, closed_loop
from load import CONNECTIONS
from support.running import ADMIN_KEY, RunningServer
from support.stores import PostgresServer, RedisClusterServers, temporary_folder

SMALL, LARGE = "small", "giant"
WINDOW = "season"
SCORES = 1_000_003
SPREAD = 7919
TOP, DEEP_TOP, PUT = "top, first page", "top, deep page", "PUT without rank"
# From how many offsets the deep pages are chosen.
DEEP_PAGES = 1000
CHECKED_PLAYERS = 5


class Side:
    """A board, its number of players and the requests that are timed."""

    def __init__(self, name: str, players: int, shards: int, deep: int) -> None:
        self.name, self.players, self.shards, self.deep = name, players, shards, deep
        self.path = f"/api/v1/leaderboards/{name}"
        self.times: dict[str, list[float]] = {}

    def requests(self) -> dict[str, list[bytes]]:
        rng = random.Random(SEED)
        somebody = [self.path + f"/users/{user_name(rng.randrange(self.players))}" for _ in range(2000)]
        pages = [rng.randrange(DEEP_PAGES) for _ in range(2000)]
        return {
            TOP: [request("GET", f"{self.path}/top?limit=10")],
            DEEP_TOP: [request("GET", f"{self.path}/top?limit=10&offset={self.deep + page}") for page in pages],
            "rank": [request("GET", each + "/rank") for each in somebody],
            "around, 4 and 4": [request("GET", each + "/around?above=4&below=4") for each in somebody],
            PUT: [request("PUT", each + "?rank=false", b'{"score": 1}') for each in somebody],
            "PUT with rank": [request("PUT", each + "?rank=true", b'{"score": 1}') for each in somebody],
        }


def request(method: str, path: str, body: bytes = b"") -> bytes:
    length = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n" if body else ""
    return f"{method} {path} HTTP/1.1\r\nHost: bench\r\nX-API-Key: {ADMIN_KEY}\r\n{length}\r\n".encode() + body


def create(client: httpx.Client, side: Side) -> None:
    body = {
        "UUID": side.name,
        "podId": "default",
        "name": side.name,
        "rule": "increment",
        "shards": side.shards,
        "graceSeconds": 0,
        "windows": [{"window": WINDOW, "cron": "0 0 1 1 *"}],
    }
    client.post("/api/v1/leaderboards", json=body).raise_for_status()


async def fill(url: str, side: Side, first_version: int) -> None:
    """Copy the rows of a board into the ledger, without the events that they would come from."""
    connection = await asyncpg.connect(url)
    period = await connection.fetchval(
        "SELECT p.id FROM periods p JOIN boards b ON b.id = p.board_id "
        "WHERE b.uuid = $1 AND p.start_at < extract(epoch FROM now()) * 1000000 ORDER BY p.start_at DESC LIMIT 1",
        side.name,
    )
    now = time.time_ns() // 1000

    def rows() -> Iterable[tuple[object, ...]]:
        for number in range(side.players):
            score = number * SPREAD % SCORES
            yield period, user_name(number), float(score), now - number, score, score != 0, first_version + number

    columns = ["period_id", "user_id", "score", "achieved_at", "total", "has_nonzero", "version"]
    await connection.copy_records_to_table("scores", records=rows(), columns=columns, timeout=3600)
    await connection.execute("SELECT setval('versions', $1)", first_version + side.players)
    await connection.execute("VACUUM ANALYZE scores", timeout=3600)
    await connection.close()


def used_memory(cluster: RedisClusterServers) -> int:
    total = 0
    for node in cluster.nodes:
        with node.client() as client:
            total += int(client.info("memory")["used_memory"])
    return total


def rebuild(client: httpx.Client, side: Side) -> float:
    start = time.perf_counter()
    client.post("/api/v1/rebuild", params={"board": side.name}, timeout=7200).raise_for_status()
    took = time.perf_counter() - start
    total = client.get(f"{side.path}/top", params={"limit": 1}).raise_for_status()
    assert total.json()["totalUsers"] == side.players, total.json()
    assert "Laurels-Degraded" not in total.headers, "the index must answer"
    return took


async def time_calls(port: int, requests: list[bytes], count: int, between: list[bytes]) -> list[float]:
    """Return the response times of calls, one after the other. The calls `between` are not measured."""
    answered = asyncio.Event()
    failed: list[int] = []

    def note(_: Connection, status: int) -> None:
        if not 200 <= status < 300:
            failed.append(status)
        answered.set()

    _, connection = await asyncio.get_running_loop().create_connection(lambda: Connection(note), "127.0.0.1", port)
    times = []

    async def call(request: bytes) -> float:
        answered.clear()
        start = time.perf_counter()
        connection.send(request)
        await answered.wait()
        assert not failed, failed
        return time.perf_counter() - start

    for number in range(count):
        if between:
            await call(between[number % len(between)])
        times.append(await call(requests[number % len(requests)]))
    connection.close()
    return times


async def measure(port: int, sides: list[Side], rounds: int, count: int) -> None:
    requests = {side.name: side.requests() for side in sides}
    for number in range(rounds + 1):
        for kind in requests[SMALL]:
            for side in sides:
                offset = number * count
                wanted = requests[side.name][kind]
                wanted = wanted[offset % len(wanted) :] + wanted[: offset % len(wanted)]
                # A page that is read again comes from a cache, until a score changes.
                between = requests[side.name][PUT] if kind in {TOP, DEEP_TOP} else []
                times = await time_calls(port, wanted, count, between)
                if number:
                    # The first round warms up.
                    side.times.setdefault(kind, []).extend(times)


class Rate(NamedTuple):
    """Calls per second, and the processor time of a call in microseconds: in the server, Redis and PostgreSQL."""

    calls: float
    server: float
    redis: float
    postgres: float


async def measure_rates(
    server: RunningServer, cluster: RedisClusterServers, postgres: PostgresServer, sides: list[Side], seconds: float
) -> dict[str, list[Rate]]:
    everybody = [
        [psutil.Process(server.pid)],
        [each for node in cluster.nodes for each in node.process.everybody()],
        postgres.process.everybody(),
    ]

    def used() -> list[float]:
        return [sum(map(cpu_s, processes)) for processes in everybody]

    async def measure_one(requests: list[bytes]) -> Rate:
        everybody[2] = postgres.process.everybody()
        before, start = used(), time.perf_counter()
        calls = await closed_loop(server.port, requests, CONNECTIONS, seconds)
        passed = time.perf_counter() - start
        return Rate(calls, *(1e6 * (now - then) / (calls * passed) for now, then in zip(used(), before, strict=True)))

    return {kind: [await measure_one(side.requests()[kind]) for side in sides] for kind in sides[0].requests()}


def cpu_s(process: psutil.Process) -> float:
    with contextlib.suppress(psutil.NoSuchProcess):
        times = process.cpu_times()
        return float(times.user + times.system)
    return 0.0


def check(client: httpx.Client, postgres: PostgresServer, side: Side) -> None:
    """Compare the ranks of some players with a COUNT of the better ones in the ledger."""
    rng = random.Random(SEED + 1)
    for _ in range(CHECKED_PLAYERS):
        user = user_name(rng.randrange(side.players))
        found = client.get(f"{side.path}/users/{user}/rank").raise_for_status()
        counted = postgres.sql(
            "SELECT count(*) FROM scores s, (SELECT * FROM scores JOIN periods p ON p.id = period_id JOIN boards b ON "
            f"b.id = p.board_id WHERE b.uuid = '{side.name}' AND user_id = '{user}') u "
            "WHERE s.period_id = u.period_id AND (s.score > u.score OR "
            "(s.score = u.score AND (s.achieved_at, s.user_id) <= (u.achieved_at, u.user_id)))",
            timeout_s=600,
        )
        rank = int(counted.stdout.split()[2])
        assert found.json()["rank"] == rank, (user, found.json(), rank)


def freeze(client: httpx.Client, side: Side) -> float:
    """End the period by hand and return how long its final ranks take."""
    periods = client.get(side.path).json()["periods"]
    name = next(each["period"] for each in periods if each["window"] == WINDOW)
    closed = client.post(f"{side.path}/periods/{name}/close").raise_for_status().json()
    time.sleep(max(0.0, seconds_of(closed["endTime"]) - time.time()))
    while not (job := periods_job(client)).get("result", {}).get("frozen"):
        time.sleep(0.5)
    top = client.get(f"{side.path}/top", params={"period": name, "limit": 1}).json()
    assert top["totalUsers"] == side.players, top["totalUsers"]
    return seconds_of(job["finishedAt"]) - seconds_of(job["startedAt"])


@contextlib.contextmanager
def step(what: str) -> Iterator[None]:
    start = time.perf_counter()
    print(f"  {what} ...", end="", flush=True)
    yield
    print(f" {time.perf_counter() - start:.0f} s", flush=True)


def show(sides: list[Side], rates: dict[str, list[Rate]]) -> None:
    small, large = sides
    print(f"\n{'one call at a time, ms':24}{'p50':>9}{'p99':>9}{'p50':>12}{'p99':>9}{'ratio of p50':>14}")
    print(f"{'':24}{small.name + ', ' + str(small.shards) + ' part':>18}{large.name + f', {large.shards} parts':>21}")
    for kind in small.times:
        one, other = ([quantile(side.times[kind], share) for share in (0.5, 0.99)] for side in sides)
        numbers = f"{one[0]:9.2f}{one[1]:9.2f}{other[0]:12.2f}{other[1]:9.2f}{other[0] / one[0]:14.2f}"
        print(f"{kind:24}{numbers}")
    deep, first = (statistics.median(large.times[kind]) for kind in (DEEP_TOP, TOP))
    print(f"{'deep page of ' + large.name:24}{deep / first:53.2f} of its first page")
    heads = f"{small.name:>12}{large.name:>12}{'ratio':>9}"
    print(f"\n{f'{CONNECTIONS} connections, calls/s':24}{heads}   processor time per call of {large.name}, µs")
    print(f"{'':57}   server, Redis, PostgreSQL (of {small.name})")
    for kind, (one_rate, other_rate) in rates.items():
        costs = ", ".join(
            f"{other:,.0f} ({mine:,.0f})" for mine, other in zip(one_rate[1:], other_rate[1:], strict=True)
        )
        numbers = f"{one_rate.calls:12,.0f}{other_rate.calls:12,.0f}{other_rate.calls / one_rate.calls:9.2f}"
        print(f"{kind:24}{numbers}   {costs}")


def quantile(times: list[float], share: float) -> float:
    return sorted(times)[int(len(times) * share)] * 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--users", type=int, default=25_000_000)
    parser.add_argument("--small", type=int, default=1_000_000, help="players of the board that is not split")
    parser.add_argument("--parts", type=int, default=16)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--calls", type=int, default=300, help="calls of each kind and round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="seconds per rate")
    parser.add_argument("--freeze", action="store_true", help="end the period of the large board")
    options = parser.parse_args()
    print(f"command      PYTHONPATH=tests {' '.join([Path(sys.executable).name, *sys.argv])}")
    print(f"machine      {os.cpu_count()} cores, Python {platform.python_version()}")
    print("durability   PostgreSQL with fsync and synchronous_commit on; Redis without persistence and replicas")
    small = Side(SMALL, options.small, 1, options.small * 4 // 5)
    large = Side(LARGE, options.users, options.parts, options.users * 4 // 5)
    with (
        temporary_folder() as folder,
        PostgresServer(folder / "postgres", shared_buffers="2GB", max_wal_size="16GB") as postgres,
        RedisClusterServers(folder / "cluster", 15_000, options.nodes, replicated=False) as cluster,
        RunningServer(
            folder / "server",
            ledger=postgres.url(),
            index=cluster.url,
            log_level="error",
            target_delay_ms="0",
            index_timeout_ms="10000",
            max_users="0",
            # A repair pass would begin to build what is missing, too.
            repair_interval_ms="600000",
        ) as server,
        server.client() as client,
    ):
        version = cluster.nodes[0].client().info("server")["redis_version"]
        print(f"servers      PostgreSQL {postgres.sql('SHOW server_version').stdout.split()[2]}, Redis {version}")
        print(f"cluster      {options.nodes} nodes; ids of 24 characters")
        first = 1
        for side in (small, large):
            create(client, side)
            with step(f"{side.name}: {side.players:,} players into PostgreSQL"):
                asyncio.run(fill(postgres.url(), side, first))
            first += side.players
        # A ranking that is missing is not compared with the new one.
        for node in cluster.nodes:
            node.call("FLUSHALL")
        for side in (small, large):
            before = used_memory(cluster)
            took = rebuild(client, side)
            memory = (used_memory(cluster) - before) / side.players
            print(
                f"  {side.name}: built in {took:.0f} s, {side.players / took:,.0f} players/s; "
                f"{memory:.0f} bytes per player in Redis, {side.shards} parts"
            )
        for side in (small, large):
            with step(f"{side.name}: {CHECKED_PLAYERS} ranks compared with PostgreSQL"):
                check(client, postgres, side)
        asyncio.run(measure(server.port, [small, large], options.rounds, options.calls))
        rates = asyncio.run(measure_rates(server, cluster, postgres, [small, large], options.seconds))
        show([small, large], rates)
        with step(f"{large.name}: ranks compared again, after the updates"):
            check(client, postgres, large)
        if options.freeze:
            took = freeze(client, large)
            print(f"  {large.name}: final ranks of {large.players:,} players in {took:.0f} s")


if __name__ == "__main__":
    main()
