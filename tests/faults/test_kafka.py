"""Consumers and the Kafka broker are killed, suspended and restarted at random while a game writes events.

The game writes events in any order, some of them twice, and some records that can't be read. At the end every readable
event is counted once, all other records are dead letters, and `verify` finds no differences.
"""

import contextlib
import os
import random
import signal
import time
from pathlib import Path

from support.kafka import Game, KafkaServer
from support.kafka_game import Producer, check, impatient, set_up
from support.running import ADMIN_KEY, RunningIngest, RunningServer
from support.shared import Deployment, deployed
from support.stores import temporary_folder

FAULTS = int(os.environ.get("LAURELS_TEST_FAULTS", "7"))
KILLS = 4
LOG_LEVEL = os.environ.get("LAURELS_TEST_LOG_LEVEL", "error")


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
