"""A game that writes events to Kafka for a long time, and the check that each of them was counted once."""

import contextlib
import json
import random
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx

from support.kafka import Game
from support.pods import told_by
from support.running import laurels

HEALED_WITHIN_S = 90
PODS = ["blue", "green"]
USERS = 12


class Producer(threading.Thread):
    """A game that writes events in random order, some of them twice, and keeps the expected totals."""

    def __init__(self, servers: str, rng: random.Random) -> None:
        super().__init__(name="game")
        # The broker may be killed several times in a row, so the game waits for it.
        self._game = Game(servers, patience_s=100)
        self._rng = rng
        self._go_on = True
        self.totals: dict[str, Counter[str]] = {pod: Counter() for pod in PODS}
        self.bad: dict[str, int] = dict.fromkeys(PODS, 0)
        self.events = 0
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            while self._go_on:
                self._write()
                time.sleep(0.05)
        except BaseException as error:  # noqa: BLE001 - raised again by the test
            self.failure = error

    def stop(self) -> None:
        self._go_on = False
        self.join(timeout=120)
        assert not self.is_alive()
        if self.failure is not None:
            raise self.failure

    def _write(self) -> None:
        pod = self._rng.choice(PODS)
        records: list[bytes] = []
        for _ in range(self._rng.randrange(1, 80)):
            if self._rng.random() < 0.03:
                self.bad[pod] += 1
                records.append(f"bad {self.bad[pod]}".encode())
                continue
            self.events += 1
            user, score = f"user-{self._rng.randrange(USERS)}", self._rng.randrange(1, 100)
            self.totals[pod][user] += score
            event = {"id": f"e{self.events}", "who": user, "points": score, "board": f"board-{pod}"}
            records += [json.dumps(event).encode()] * (2 if self._rng.random() < 0.2 else 1)
        self._rng.shuffle(records)
        self._game.write(topic_of(pod), records)


def impatient(folder: Path) -> Path:
    """Write client settings with which Kafka notices a dead consumer soon."""
    config = folder / "client.properties"
    config.write_text("session.timeout.ms=2000\nheartbeat.interval.ms=500\n", "utf-8")
    return config


def topic_of(pod: str) -> str:
    return f"pod-{pod}-score-updates"


def set_up(client: httpx.Client, game: Game) -> None:
    schema = {
        "fieldMappings": {"userId": "who", "score": "points", "UUID": "board"},
        "eventIdFrom": {"field": "id"},
        "scoreType": "integer",
        "state": "active",
    }
    for pod in PODS:
        assert client.post("/api/v1/pods", json={"podId": pod, "name": pod}).status_code == 201
        board = {"UUID": f"board-{pod}", "podId": pod, "name": pod, "rule": "increment", "windows": ["all", "daily"]}
        assert client.post("/api/v1/leaderboards", json=board).status_code == 201
        assert client.put(f"/api/v1/pods/{pod}/schemas/1", json=schema).status_code == 200
        game.make_topic(topic_of(pod), 4)


def check(client: httpx.Client, game: Game, producer: Producer, to: dict[str, Any]) -> None:
    end = time.monotonic() + HEALED_WITHIN_S
    found: dict[str, dict[str, float]] = {}
    while found != producer.totals:
        if time.monotonic() > end:
            lags = {pod: game.committed("laurels", topic_of(pod)) for pod in PODS}
            sums = {pod: (sum(found.get(pod, {}).values()), producer.totals[pod].total()) for pod in PODS}
            raise AssertionError(f"counted and written: {sums}; committed and written: {lags}")
        for pod in PODS:
            with contextlib.suppress(httpx.HTTPError, KeyError):
                users = client.get(f"/api/v1/leaderboards/board-{pod}/top", params={"limit": 100}).json()["users"]
                found[pod] = {user["userId"]: user["score"] for user in users}
        time.sleep(0.2)
    for pod in PODS:
        while True:
            letters = game.read(f"{topic_of(pod)}-dlq")
            values = {(letter.value() or b"").decode() for letter in letters}
            if values == {f"bad {number + 1}" for number in range(producer.bad[pod])}:
                break
            assert time.monotonic() < end, values
            time.sleep(0.2)
        assert {told_by(letter)["code"] for letter in letters} <= {"invalid_json"}
    while True:
        checked = laurels("verify", "--json", **to)
        if checked.returncode == 0:
            break
        assert time.monotonic() < end, checked.stdout + checked.stderr
        time.sleep(0.5)
