"""Consumers and the Kafka broker are killed, suspended and restarted at random while a game writes events.

The game writes events in any order, some of them twice, and some records that can't be read. At the end every readable
event is counted once, all other records are dead letters, and `verify` finds no differences.
"""

import contextlib
import json
import os
import random
import signal
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx

from support.kafka import Game, KafkaServer
from support.pods import told_by
from support.running import ADMIN_KEY, RunningIngest, RunningServer, laurels
from support.shared import Deployment, deployed
from support.stores import temporary_folder

FAULTS = int(os.environ.get("LAURELS_TEST_FAULTS", "7"))
HEALED_WITHIN_S = 90
KILLS = 4
LOG_LEVEL = os.environ.get("LAURELS_TEST_LOG_LEVEL", "error")
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


class Chaos:
    def __init__(self, consumers: list[RunningIngest], kafka: KafkaServer, rng: random.Random) -> None:
        self._consumers = consumers
        self._kafka = kafka
        self._rng = rng

    def strike(self) -> str:
        fault = self._rng.choice(
            [self.kill_a_consumer, self.freeze_a_consumer, self.stop_a_consumer, self.kill_kafka, self.freeze_kafka]
        )
        fault()
        return fault.__name__

    def kill_a_consumer(self) -> None:
        consumer = self._rng.choice(self._consumers)
        consumer.kill()
        self._pause()
        consumer.start(wait=False)

    def freeze_a_consumer(self) -> None:
        """Suspend a consumer, maybe longer than its session: others take over, and it returns with its old records."""
        consumer = self._rng.choice(self._consumers)
        consumer.signal(signal.SIGSTOP)
        time.sleep(self._rng.choice([1.0, 4.0]))
        consumer.signal(signal.SIGCONT)

    def stop_a_consumer(self) -> None:
        consumer = self._rng.choice(self._consumers)
        if consumer.is_running:
            consumer.terminate()
        consumer.start(wait=False)

    def kill_kafka(self) -> None:
        self._kafka.kill()
        self._pause()
        self._kafka.start()

    def freeze_kafka(self) -> None:
        self._kafka.freeze()
        self._pause()
        self._kafka.thaw()

    def _pause(self) -> None:
        time.sleep(self._rng.uniform(0, 1.0))


def test_three_consumers_count_each_event_once_despite_faults() -> None:
    seed = int(os.environ.get("LAURELS_TEST_SEED", str(random.randrange(2**32))))
    print(f"\nLAURELS_TEST_SEED={seed}")
    rng = random.Random(seed)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(temporary_folder())
        kafka = stack.enter_context(KafkaServer(folder / "kafka"))
        config = impatient(folder)
        deployment: Deployment = stack.enter_context(deployed(1))
        settings = deployment.settings | {"kafka": kafka.servers, "kafka_config": str(config), "log_level": LOG_LEVEL}
        game = Game(kafka.servers)
        client = stack.enter_context(deployment.servers[0].client())
        set_up(client, game)
        consumers = [RunningIngest(folder / f"ingest-{number}", **settings) for number in range(3)]
        for consumer in consumers:
            stack.callback(consumer.__exit__, None, None, None)
            consumer.start(wait=False)
        producer = Producer(kafka.servers, rng)
        producer.start()
        chaos = Chaos(consumers, kafka, rng)
        for _ in range(FAULTS):
            print(chaos.strike())
            time.sleep(rng.uniform(0, 2))
        producer.stop()
        print(f"{producer.events} events, {sum(producer.bad.values())} bad records")
        to = {"data_dir": deployment.folder, "url": deployment.servers[0].url, "key": ADMIN_KEY}
        check(client, game, producer, to)
        for consumer in consumers:
            assert consumer.is_running


def test_killed_embedded_server_counts_each_kafka_event_once(tmp_path: Path) -> None:
    """SQLite, the memory index and ingestion all run in the process that is killed."""
    seed = int(os.environ.get("LAURELS_TEST_SEED", str(random.randrange(2**32))))
    print(f"\nLAURELS_TEST_SEED={seed}")
    rng = random.Random(seed)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(temporary_folder())
        kafka = stack.enter_context(KafkaServer(folder / "kafka"))
        settings = {
            "kafka": kafka.servers,
            "kafka_config": str(impatient(folder)),
            "ingest": "1",
            "log_level": LOG_LEVEL,
        }
        server = stack.enter_context(RunningServer(tmp_path, ingest_batch="50", **settings))
        game = Game(kafka.servers)
        client = stack.enter_context(server.client())
        set_up(client, game)
        producer = Producer(kafka.servers, rng)
        producer.start()
        for _ in range(KILLS):
            time.sleep(rng.uniform(0.2, 2.0))
            server.kill()
            server.start()
        producer.stop()
        check(client, game, producer, {"data_dir": tmp_path, "key": ADMIN_KEY})
