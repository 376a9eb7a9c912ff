"""Continuous writers and readers, and checks of every response.

Writers retry requests without a response, with the same event id and at any server, as clients do; some events carry
the user's region. Readers check every response: the entries are in order and have the right ranks, and each score is
possible, given the events that were sent before the response arrived and those that were acknowledged with a rank
before the request was made. A moderator hides and shows users of one board, voids and restores its events, and lets
users join and leave circles.
"""

import contextlib
import math
import random
import threading
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from typing import Any

import httpx

from support.model import exact
from support.running import ADMIN_KEY, PLAIN, RunningServer
from support.waiting import until_equal

USERS = [f"user-{number}" for number in range(12)]
REGIONS = ["eu", "us"]
CIRCLES = ["red", "blue"]
SEGMENTS = [f"region:{region}" for region in REGIONS] + [f"circle:{circle}" for circle in CIRCLES]


@dataclass(frozen=True)
class Tally:
    """A summary of some scores of a user that serves every rule."""

    total: Fraction = Fraction(0)
    lowest: float = math.inf
    values: frozenset[float] = frozenset()

    def plus(self, score: float) -> "Tally":
        return Tally(self.total + exact(score), min(self.lowest, score), self.values | {score})


Tallies = dict[str, Tally]


@dataclass
class TrafficBoard:
    uuid: str
    rule: str
    order: str = "desc"
    ties: str = "earliest"
    capacity: int | None = None
    segmented: bool = False
    shards: int = 1
    subscore: str | None = None
    # The moderator hides users and voids events here, so a score can go up or down.
    judged: bool = False
    # The events sent so far, and those acknowledged with a rank.
    sent: Tallies = field(default_factory=lambda: dict.fromkeys(USERS, Tally()))
    ranked: Tallies = field(default_factory=lambda: dict.fromkeys(USERS, Tally()))

    @property
    def definition(self) -> dict[str, Any]:
        fields: dict[str, Any] = {"UUID": self.uuid, "rule": self.rule, "order": self.order, "ties": self.ties}
        if self.subscore is not None:
            fields["subscore"] = self.subscore
        if self.segmented:
            fields["segments"] = ["global", "region", "circle"]
        # Readers look at `all`; meanwhile a second window resets every minute.
        windows = ["all", {"window": "minute", "cron": "* * * * *"}]
        seasons = {"windows": windows, "graceSeconds": 2}
        size = {"capacity": self.capacity, "shards": self.shards}
        return {"podId": "default", "name": self.uuid} | size | fields | seasons


def make_boards() -> list[TrafficBoard]:
    return [
        TrafficBoard("sums", "increment"),
        TrafficBoard("shared", "increment", ties="shared"),
        TrafficBoard("laps", "best", order="asc"),
        TrafficBoard("kills", "best", order="asc", subscore="desc"),
        TrafficBoard("newest", "latest", ties="latest"),
        TrafficBoard("few", "increment", capacity=5),
        TrafficBoard("regions", "increment", segmented=True),
        TrafficBoard("split", "increment", ties="shared", segmented=True, shards=4),
        TrafficBoard("judged", "increment", segmented=True, judged=True),
    ]


def await_boards(servers: Sequence[RunningServer], uuids: Sequence[str]) -> None:
    """Check that every server knows the boards within a second."""
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(server.client()) for server in servers]
        paths = [f"/api/v1/leaderboards/{uuid}" for uuid in uuids]
        until_equal(lambda: {client.get(path).status_code for client in clients for path in paths}, {200}, 1)


def subscore_of(event_id: str) -> int:
    """Return the subscore with which an event is sent to boards that have them."""
    return int(event_id.rpartition("-")[2]) % 5


class Traffic:
    def __init__(
        self, servers: Sequence[RunningServer], seed: int, writers: int = 4, readers: int = 3, *, moderated: bool = True
    ) -> None:
        self.servers = servers
        self.boards = [board for board in make_boards() if moderated or not board.judged]
        # True while acknowledged events may be lost, so that no check relies on them.
        self.losing = False
        # Number of data losses. A read that spans one is not checked.
        self.losses = 0
        # event id → (board, user, score)
        self.sent: dict[str, tuple[str, str, float]] = {}
        self.lock = threading.Lock()
        # event id → (board, user, score, time in µs)
        self.acknowledged: dict[str, tuple[str, str, float, int]] = {}
        self.spooled = 0
        # Acknowledged events that are in the ledger, not only in a spool.
        self.stored: set[str] = set()
        self.reads = 0
        self.degraded_reads = 0
        self.refused_reads = 0
        self.problems: list[str] = []
        self.stopping = threading.Event()
        self.moderator = Moderator(self, "moderator", seed * 100 + 99)
        self._threads = [
            *([self.moderator] if moderated else []),
            *(Writer(self, f"writer-{number}", seed * 100 + number) for number in range(writers)),
            *(Reader(self, f"reader-{number}", seed * 100 + 50 + number) for number in range(readers)),
        ]

    def make_boards(self) -> None:
        with self.servers[0].client() as client:
            for board in self.boards:
                assert client.post("/api/v1/leaderboards", json=board.definition).status_code == 201
        await_boards(self.servers, [board.uuid for board in self.boards])

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def lose(self, keys: Collection[str]) -> None:
        """Forget acknowledged events that were lost: from now on no read may show their effect."""
        self.losses += 1
        for key in keys:
            del self.acknowledged[key]
            del self.sent[key]
            self.stored.discard(key)
        for board in self.boards:
            board.sent = dict.fromkeys(USERS, Tally())
            for uuid, user, score in self.sent.values():
                if uuid == board.uuid:
                    board.sent[user] = board.sent[user].plus(score)

    def stop(self) -> None:
        self.stopping.set()
        for thread in self._threads:
            thread.join(timeout=60)
            assert not thread.is_alive(), thread.name


class _Client(threading.Thread):
    def __init__(self, traffic: Traffic, name: str, seed: int) -> None:
        super().__init__(name=name, daemon=True)
        self.traffic = traffic
        self.rng = random.Random(seed)
        headers = {"Authorization": f"Bearer {ADMIN_KEY}"}
        self._clients = {
            server.url: httpx.Client(
                base_url=server.url, headers=headers, timeout=httpx.Timeout(12, connect=1), verify=PLAIN
            )
            for server in traffic.servers
        }

    def run(self) -> None:
        try:
            while not self.traffic.stopping.is_set():
                self.step()
        except Exception as error:  # noqa: BLE001 - the test reports every error
            self.traffic.problems.append(f"{self.name}: {error!r}")
        finally:
            for client in self._clients.values():
                client.close()

    def step(self) -> None:
        raise NotImplementedError

    def call(self, method: str, path: str, **rest: Any) -> httpx.Response | None:
        """Send a request to a random server; return None if it was unreachable or the connection broke."""
        client = self._clients[self.rng.choice(list(self._clients))]
        try:
            return client.request(method, path, **rest)
        except httpx.TransportError:
            time.sleep(0.02)
            return None


class Writer(_Client):
    _number = 0

    def step(self) -> None:
        board = self.rng.choice(self.traffic.boards)
        events = [self._new_event(board) for _ in range(self.rng.choice([1, 1, 1, 8]))]
        with self.traffic.lock:
            for event in events:
                board.sent[event["userId"]] = board.sent[event["userId"]].plus(event["score"])
                self.traffic.sent[event["eventId"]] = (board.uuid, event["userId"], event["score"])
        self._send_until_answered(board, events)
        time.sleep(0.004)

    def _new_event(self, board: TrafficBoard) -> dict[str, Any]:
        self._number += 1
        now = time.time_ns() // 1000 - self.rng.randrange(1_000_000)
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now // 1_000_000)) + f".{now % 1_000_000:06}Z"
        event_id = f"{self.name}-{self._number}"
        more = {} if board.subscore is None else {"subscore": subscore_of(event_id)}
        return (
            more
            | {
                "userId": self.rng.choice(USERS),
                "score": self.rng.choice([1, 2, 3, 0.1, 0.2]),
                "eventId": event_id,
                "timestamp": stamp,
                "_at": now,
            }
            | ({"region": self.rng.choice(REGIONS)} if self.rng.random() < 0.3 else {})
        )

    def _send_until_answered(self, board: TrafficBoard, events: list[dict[str, Any]]) -> None:
        body = {"scores": [{name: value for name, value in event.items() if name != "_at"} for event in events]}
        # Split boards return ranks only if they are asked for.
        params = {"rank": "true"} if board.shards > 1 and self.rng.random() < 0.5 else {}
        while True:
            response = self.call("POST", f"/api/v1/leaderboards/{board.uuid}/scores", json=body, params=params)
            if response is not None and response.status_code in {200, 202}:
                results = response.json()["results"]
                if all(result["status"] != "refused" for result in results):
                    break
                self.traffic.problems.append(f"{self.name}: refused {results}")
                return
            if response is not None and response.status_code not in {503, 429}:
                self.traffic.problems.append(f"{self.name}: {response.status_code} {response.text}")
                return
            if self.traffic.stopping.is_set():
                return
            time.sleep(0.05)
        with self.traffic.lock:
            for event, result in zip(events, results, strict=True):
                key = event["eventId"]
                self.traffic.acknowledged[key] = (board.uuid, event["userId"], event["score"], event["_at"])
                self.traffic.spooled += result["status"] == "spooled"
                if result["status"] != "spooled":
                    self.traffic.stored.add(key)
                if result["rankState"] in {"ranked", "outside_capacity"} and not self.traffic.losing:
                    board.ranked[event["userId"]] = board.ranked[event["userId"]].plus(event["score"])


class Reader(_Client):
    def step(self) -> None:
        board = self.rng.choice(self.traffic.boards)
        with self.traffic.lock:
            ranked = dict(board.ranked)
            losses = self.traffic.losses
        user = self.rng.choice(USERS)
        path = self.rng.choice(["top?limit=20", "top?limit=20", f"users/{user}/around", f"users/{user}/rank"])
        if board.segmented and path.startswith("top") and self.rng.random() < 0.7:
            path += f"&segment={self.rng.choice(SEGMENTS)}"
        response = self.call("GET", f"/api/v1/leaderboards/{board.uuid}/{path}")
        if response is None:
            return
        with self.traffic.lock:
            sent = dict(board.sent)
            if self.traffic.losing or self.traffic.losses != losses:
                return
        self.traffic.reads += 1
        self.traffic.degraded_reads += "Laurels-Degraded" in response.headers
        if response.status_code == 200:
            self._check(board, path, response, ranked, sent)
        elif response.status_code == 503:
            self.traffic.refused_reads += 1
            time.sleep(0.02)
        elif response.status_code != 404 or (board.capacity is None and not board.judged and ranked[user].values):
            self.traffic.problems.append(f"{board.uuid}/{path}: {response.status_code} {response.text}")

    def _check(
        self,
        board: TrafficBoard,
        path: str,
        response: httpx.Response,
        ranked: Tallies,
        sent: Tallies,
    ) -> None:
        answer = response.json()
        entries = answer.get("users", [answer])
        if answer.get("rankState") == "outside_capacity":
            # Only the score can be checked.
            problems = [] if answer["totalUsers"] == board.capacity and answer["rank"] is None else [f"{answer}"]
        else:
            problems = check_entries(board, entries, answer["totalUsers"], from_the_top=path.startswith("top"))
        for entry in entries:
            user, score = entry["userId"], entry["score"]
            if not board.judged and not is_possible(board, score, ranked[user], sent[user]):
                problems.append(f"{user} has {score}; ranked {ranked[user]}, sent {sent[user]}")
        if problems:
            where = "ledger" if "Laurels-Degraded" in response.headers else "index"
            self.traffic.problems.append(f"{board.uuid}/{path} from the {where}: {problems} in {answer}")


class Moderator(_Client):
    """A client that sends moderation actions.

    It retries each with the same idempotency key until it succeeds, even after the traffic is stopped.
    """

    BOARD = "judged"
    _number = 0

    def __init__(self, traffic: Traffic, name: str, seed: int) -> None:
        super().__init__(traffic, name, seed)
        # The state that the test expects at the end.
        self.hidden: set[str] = set()
        self.voided: dict[str, set[str]] = {}
        self.circles: dict[str, set[str]] = {user: set() for user in USERS}

    def step(self) -> None:
        self.rng.choice([self.hide, self.void, self.void, self.restore, self.join_or_leave])()
        time.sleep(0.05)

    def hide(self) -> None:
        user = self.rng.choice(USERS)
        path = f"/api/v1/leaderboards/{self.BOARD}/users/{user}/hidden"
        if user in self.hidden:
            if self.insist("DELETE", path) is not None:
                self.hidden.discard(user)
        elif self.insist("PUT", path, {"shadow": self.rng.random() < 0.5}) is not None:
            self.hidden.add(user)

    def void(self) -> None:
        with self.traffic.lock:
            acknowledged = self.traffic.acknowledged
            events = [key for key in sorted(self.traffic.stored) if acknowledged[key][0] == self.BOARD]
        void_already = set().union(*self.voided.values())
        chosen = [each for each in self.rng.sample(events, min(3, len(events))) if each not in void_already]
        if chosen:
            act = self.insist("POST", f"/api/v1/leaderboards/{self.BOARD}/void", {"eventIds": chosen})
            if act is not None:
                self.voided[act["actId"]] = set(chosen)

    def restore(self) -> None:
        if self.voided:
            act_id = self.rng.choice(sorted(self.voided))
            if self.insist("POST", f"/api/v1/acts/{act_id}/restore?podId=default", {}) is not None:
                del self.voided[act_id]

    def join_or_leave(self) -> None:
        user, circle = self.rng.choice(USERS), self.rng.choice(CIRCLES)
        joins = circle not in self.circles[user]
        path = f"/api/v1/users/{user}/circles/{circle}?podId=default"
        if self.insist("PUT" if joins else "DELETE", path) is not None:
            self.circles[user] ^= {circle}

    def insist(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any] | None:
        self._number += 1
        options: dict[str, Any] = {"headers": {"Idempotency-Key": f"{self.name}-{self._number}"}}
        if body is not None:
            options["json"] = body
        end = time.monotonic() + 120
        while time.monotonic() < end:
            response = self.call(method, path, **options)
            if response is not None and response.status_code == 200:
                return dict(response.json())
            # 202: the action is still running.
            if response is not None and response.status_code not in {202, 409, 429, 503}:
                break
            time.sleep(0.05)
        self.traffic.problems.append(f"{self.name}: {method} {path} {response and response.text}")
        return None


def check_entries(board: TrafficBoard, entries: list[dict[str, Any]], total: int, *, from_the_top: bool) -> list[str]:
    """Return what is wrong with the order and the ranks of consecutive entries."""
    ranks = [entry["rank"] for entry in entries]
    wrong = {
        "out of order": not is_in_order(board, entries),
        "a user appears twice": len({entry["userId"] for entry in entries}) < len(entries),
        "wrong ranks": not is_numbered(board, entries, from_the_top=from_the_top),
        "the first rank is not 1": from_the_top and ranks[:1] not in ([], [1]),
        "the total differs from the number of entries": from_the_top and total != len(entries),
        "over capacity": board.capacity is not None and total > board.capacity,
        "a rank greater than the total": max(ranks, default=0) > total,
    }
    return [problem for problem, found in wrong.items() if found]


def is_in_order(board: TrafficBoard, entries: list[dict[str, Any]]) -> bool:
    sign = -1 if board.order == "desc" else 1
    if board.ties == "latest":
        scores = [sign * entry["score"] for entry in entries]
        return scores == sorted(scores)
    sub_sign = -1 if board.subscore == "desc" else 1
    keys = [
        (sign * entry["score"], sub_sign * entry.get("subscore", 0), entry["timestamp"], entry["userId"])
        for entry in entries
    ]
    return keys == sorted(keys)


def is_numbered(board: TrafficBoard, entries: list[dict[str, Any]], *, from_the_top: bool) -> bool:
    ranks = [entry["rank"] for entry in entries]
    if board.ties != "shared":
        return all(after == before + 1 for before, after in pairwise(ranks))
    scores = [entry["score"] for entry in entries]
    return not from_the_top or ranks == [scores.index(score) + 1 for score in scores]


def is_possible(board: TrafficBoard, score: float, ranked: Tally, sent: Tally) -> bool:
    """Check that a score includes all events ranked before the request, and only events sent before the response.

    On boards with the rule `best`, lower is better.
    """
    if board.rule == "latest":
        return score in sent.values
    if board.rule == "best":
        return sent.lowest <= score <= (ranked.lowest if ranked.values else score)
    return float(ranked.total) <= score <= float(sent.total)
