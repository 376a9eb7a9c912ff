"""What `laurels bench` measures: each suite starts its sides, measures them in turn, and returns rows."""

import contextlib
import random
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

import uvloop
from msgspec import Struct, field

from laurels.bench.data import BOARD
from laurels.bench.load import SEED, closed_loop, open_loop
from laurels.bench.peers import CALLS, Peer
from laurels.bench.sides import (
    ASGI,
    DURABLE,
    EMBEDDED,
    PROTOCOL,
    SHARED,
    SQLITE_ALONE,
    STORES_ALONE,
    Options,
    create_board,
    fill,
    open_sides,
    running_laurels,
)

SMALL_USERS = 10_000
LARGE_USERS = 1_000_000
READS_PER_S, WRITES_PER_S = 10_000, 2_000
READ_P95_MS, WRITE_P95_MS = 50, 100
PODS, BOARDS = 100, 1_000
BOARD_USERS = 100
OPEN_LOOP_CONNECTIONS = 256

# With which side a call is compared, besides bare ASGI.
BASELINES = {"top": PROTOCOL, "rank": PROTOCOL, "around": PROTOCOL, "put": DURABLE}
BATCH_BASELINES = {EMBEDDED: [DURABLE, SQLITE_ALONE], SHARED: [STORES_ALONE]}

Say = Callable[[str], None]


class Row(Struct, frozen=True):
    """The results of one side: a value per round, all in one unit. `ratios`: of the median, by name of the baseline."""

    suite: str
    what: str
    side: str
    unit: str
    values: list[float]
    durability: str = ""
    ratios: dict[str, float] = field(default_factory=dict)

    @property
    def median(self) -> float:
        return statistics.median(self.values)


def run_calls(folder: Path, options: Options, peers: Sequence[Peer], say: Say) -> list[Row]:
    """Measure HTTP calls and batches of every side, beside the baselines."""
    found: dict[tuple[str, str], list[float]] = {}
    with contextlib.ExitStack() as stack:
        say("starting all sides, and creating their users")
        sides = open_sides(stack, folder, options, peers, say)
        for number in range(options.rounds):
            for call in (*CALLS, "batch"):
                for side in sides:
                    if call in side.calls:
                        rate = uvloop.run(side.calls[call](options.seconds))
                        found.setdefault((call, side.name), []).append(rate)
            say(f"round {number + 1} of {options.rounds} is done")
    durability = {side.name: side.durability for side in sides}
    medians = {key: statistics.median(rates) for key, rates in found.items()}
    rows = []
    for (call, name), rates in found.items():
        against = BATCH_BASELINES.get(name, []) if call == "batch" else [ASGI, BASELINES[call]]
        ratios = {each: medians[call, name] / medians[call, each] for each in against if (call, each) in medians}
        ratios.pop(name, None)
        unit = "scores/s" if call == "batch" else "requests/s"
        rows.append(Row("calls", call, name, unit, rates, durability[name], ratios))
    return rows


def run_sizes(folder: Path, options: Options, peers: Sequence[Peer], say: Say) -> list[Row]:
    """Measure the same calls with 10,000 and with a million users, embedded."""
    del peers
    calls = ("top", "rank", "put")
    found: dict[tuple[str, int], list[float]] = {}
    with contextlib.ExitStack() as stack:
        servers = {}
        for users in (SMALL_USERS, LARGE_USERS):
            say(f"creating {users:,} users")
            servers[users] = stack.enter_context(running_laurels(folder / str(users), users))
        for _ in range(options.rounds):
            for call in calls:
                for users, server in servers.items():
                    requests = server.requests(call, users)
                    rate = uvloop.run(closed_loop(server.port, requests, options.connections, options.seconds))
                    found.setdefault((call, users), []).append(rate)
    rows = []
    for (call, users), rates in found.items():
        ratio = statistics.median(found[call, SMALL_USERS]) / statistics.median(rates)
        ratios = {} if users == SMALL_USERS else {f"time of {SMALL_USERS:,} users": ratio}
        rows.append(Row("sizes", call, f"{users:,} users", "requests/s", rates, "SQLite, synced", ratios))
    return rows


def run_mixed(folder: Path, options: Options, peers: Sequence[Peer], say: Say) -> list[Row]:
    """Measure response times at a given rate of reads and writes together, embedded, in an open loop."""
    del peers
    users = options.users
    rows: dict[str, list[float]] = {"reads": [], "writes": []}
    with running_laurels(folder / "mixed", users) as server:
        reads = [*server.requests("rank", users)[:2000], *(server.requests("top", users) * 2000)]
        loads = [(reads, READS_PER_S), (server.requests("put", users), WRITES_PER_S)]
        for number in range(options.rounds):
            times = uvloop.run(open_loop(server.port, loads, OPEN_LOOP_CONNECTIONS, options.seconds))
            for name, found in zip(rows, times, strict=True):
                rows[name].append(statistics.quantiles(found, n=20)[-1] * 1000)
            say(f"round {number + 1} of {options.rounds} is done")
    told = {"reads": (READS_PER_S, READ_P95_MS), "writes": (WRITES_PER_S, WRITE_P95_MS)}
    return [
        Row(
            "mixed",
            f"p95 of {name} at {told[name][0]:,}/s",
            EMBEDDED,
            f"ms, within {told[name][1]}: {'yes' if statistics.median(values) <= told[name][1] else 'no'}",
            values,
            "SQLite, synced",
        )
        for name, values in rows.items()
    ]


def run_boards(folder: Path, options: Options, peers: Sequence[Peer], say: Say) -> list[Row]:
    """Measure five writes to one read on a thousand boards of a hundred pods, and on one board with as many users."""
    del peers
    found: dict[str, list[float]] = {"one board": [], f"{BOARDS:,} boards": []}
    many = [f"board-{number}" for number in range(BOARDS)]
    total = BOARDS * BOARD_USERS
    with running_laurels(folder / "boards", total, max_boards=str(2 * BOARDS)) as server:
        with server.client() as client:
            say(f"creating {PODS} pods and {BOARDS:,} boards")
            for number in range(PODS):
                client.post("/api/v1/pods", json={"podId": f"pod-{number}", "name": f"Pod {number}"}).raise_for_status()
            for number, board in enumerate(many):
                create_board(client, board, f"pod-{number % PODS}")
                fill(client, board, BOARD_USERS)
        for number in range(options.rounds):
            for name, boards, users in zip(found, ((BOARD,), many), (total, BOARD_USERS), strict=True):
                requests = server.requests("put", users, boards) * 5 + server.requests("rank", users, boards)
                random.Random(SEED).shuffle(requests)
                rate = uvloop.run(closed_loop(server.port, requests, options.connections, options.seconds))
                found[name].append(rate)
            say(f"round {number + 1} of {options.rounds} is done")
    one = statistics.median(found["one board"])
    return [
        Row(
            "boards",
            "5 writes : 1 read",
            name,
            "requests/s",
            rates,
            "SQLite, synced",
            {} if name == "one board" else {"one board": statistics.median(rates) / one},
        )
        for name, rates in found.items()
    ]


SUITES: dict[str, Callable[[Path, Options, Sequence[Peer], Say], list[Row]]] = {
    "calls": run_calls,
    "sizes": run_sizes,
    "mixed": run_mixed,
    "boards": run_boards,
}
