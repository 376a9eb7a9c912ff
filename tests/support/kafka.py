"""A private Kafka for tests: Apache Kafka (KRaft, one broker) from its Maven artifacts, or librdkafka's mock broker.

Also a client that writes records as a game does, and reads topics as other services do.
"""

import atexit
import contextlib
import functools
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from support.running import free_port
from support.stores import HOST, Process, Store, _shared_folder
from support.waiting import until

CLASSPATH = Path(sys.prefix) / "kafka.classpath"
CLUSTER_ID = "bGF1cmVscy10ZXN0cy0xMg"
TIMEOUT_S = 20


def classpath() -> str | None:
    """Return the class path of Apache Kafka, or None if Kafka or Java is not installed."""
    if not CLASSPATH.exists() or shutil.which("java") is None:
        return None
    text = CLASSPATH.read_text("utf-8").strip()
    return text if all(Path(part).exists() for part in text.split(os.pathsep)) else None


def need_kafka() -> str:
    """Return the class path of Apache Kafka; without Kafka, skip the test with the reason, or fail it in CI."""
    found = classpath()
    if found is None:
        reason = "Apache Kafka is not installed (`make test` downloads it if Java and Maven are installed)"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return found


class KafkaServer(Store):
    def __init__(self, folder: Path, port: int | None = None, **settings: str) -> None:
        super().__init__(folder, port)
        self._classpath = need_kafka()
        self._controller = free_port()
        self._settings = settings

    @property
    def servers(self) -> str:
        return f"{HOST}:{self.port}"

    def start(self) -> None:
        config = self.folder / "server.properties"
        if not config.exists():
            self._make(config)
        heap = ["-Xms256m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        self._process = Process(
            ["java", *heap, "-cp", self._classpath, "kafka.Kafka", str(config)], self.folder / "kafka.log"
        )
        until(self._answers, "Kafka", 60)

    def _make(self, config: Path) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@{HOST}:{self._controller}",
            "listeners": f"PLAINTEXT://{HOST}:{self.port},CONTROLLER://{HOST}:{self._controller}",
            "advertised.listeners": f"PLAINTEXT://{HOST}:{self.port}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(self.folder / "data"),
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "4",
            "transaction.state.log.replication.factor": "1",
            "group.initial.rebalance.delay.ms": "0",
            # Lets Kafka notice dead consumers quickly.
            "group.min.session.timeout.ms": "1000",
            "auto.create.topics.enable": "false",
            "num.partitions": "2",
        } | self._settings
        config.write_text("".join(f"{name}={value}\n" for name, value in settings.items()), "utf-8")
        command = [
            "java",
            "-cp",
            self._classpath,
            "kafka.tools.StorageTool",
            "format",
            "-t",
            CLUSTER_ID,
            "-c",
            str(config),
        ]
        subprocess.run(command, check=True, capture_output=True, timeout=60)

    def _answers(self) -> bool:
        assert self.process.is_running, (self.folder / "kafka.log").read_text()
        try:
            return bool(AdminClient({"bootstrap.servers": self.servers, "log_level": 0}).list_topics(timeout=1).brokers)
        except KafkaException:
            return False


class LibrdkafkaBroker:
    """The mock broker of librdkafka, in this process. Its data ends with it."""

    def __init__(self) -> None:
        self._holder = Producer({"bootstrap.servers": "x", "test.mock.num.brokers": 1, "log_level": 0})
        (broker,) = self._holder.list_topics(timeout=TIMEOUT_S).brokers.values()
        self.servers = f"{broker.host}:{broker.port}"


@functools.cache
def shared_kafka() -> KafkaServer | LibrdkafkaBroker:
    """Return the Kafka that all non-destructive tests share; each test uses its own pods."""
    if classpath() is None and not os.environ.get("CI"):
        return LibrdkafkaBroker()
    server = KafkaServer(_shared_folder() / "kafka")
    server.start()
    atexit.register(server.kill)
    return server


class Game:
    """A client that writes records, as a game does, and reads topics, as other services do."""

    def __init__(self, servers: str, patience_s: float = TIMEOUT_S) -> None:
        self._servers = servers
        self._patience_s = patience_s
        self._producer = Producer({"bootstrap.servers": servers, "linger.ms": 1, "log_level": 0})

    def make_topic(self, topic: str, partitions: int = 3, **config: str) -> None:
        admin = AdminClient({"bootstrap.servers": self._servers, "log_level": 0})
        wanted = NewTopic(topic, num_partitions=partitions, replication_factor=1, config=config)
        for made in admin.create_topics([wanted]).values():
            # librdkafka's broker creates a topic only when a client asks for its metadata.
            with contextlib.suppress(TimeoutError):
                made.result(2 if isinstance(shared_kafka(), LibrdkafkaBroker) else TIMEOUT_S)
        admin.list_topics(topic, timeout=TIMEOUT_S)

    def touch(self, topic: str) -> None:
        """Ask for the metadata of a topic, which makes librdkafka's broker create it; Apache Kafka does not."""
        self._producer.list_topics(topic, timeout=TIMEOUT_S)

    def has_topic(self, topic: str) -> bool:
        admin = AdminClient({"bootstrap.servers": self._servers, "log_level": 0})
        return topic in admin.list_topics(timeout=TIMEOUT_S).topics

    def remove_topic(self, topic: str) -> None:
        admin = AdminClient({"bootstrap.servers": self._servers, "log_level": 0})
        for removed in admin.delete_topics([topic]).values():
            removed.result(TIMEOUT_S)

    def write(
        self,
        topic: str,
        records: Iterable[bytes | Mapping[str, Any] | None],
        *,
        headers: Sequence[tuple[str, bytes]] = (),
        partition: int = -1,
    ) -> None:
        """Write records, and return once Kafka has stored them."""
        failed: list[str] = []

        def note(error: Any, _message: Message) -> None:
            if error is not None:
                failed.append(str(error))

        for record in records:
            value = json.dumps(record).encode() if isinstance(record, Mapping) else record
            while True:
                try:
                    self._producer.produce(topic, value, headers=list(headers), partition=partition, on_delivery=note)
                    break
                except BufferError:
                    self._producer.poll(0.1)
            self._producer.poll(0)
        assert self._producer.flush(self._patience_s) == 0, "not all records were written in time"
        assert failed == []

    def committed(self, group: str, topic: str) -> dict[int, tuple[int, int]]:
        """Return, per partition, the committed offset of a group and the end offset of the topic."""
        consumer = Consumer({"bootstrap.servers": self._servers, "group.id": group, "log_level": 0})
        try:
            lanes = [
                TopicPartition(topic, each)
                for each in consumer.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions
            ]
            return {
                lane.partition: (lane.offset, consumer.get_watermark_offsets(lane, timeout=TIMEOUT_S)[1])
                for lane in consumer.committed(lanes, timeout=TIMEOUT_S)
            }
        finally:
            consumer.close()

    def read(self, topic: str) -> list[Message]:
        """Return all messages that a topic has now."""
        consumer = Consumer(
            {"bootstrap.servers": self._servers, "group.id": "looks", "enable.auto.commit": False, "log_level": 0}
        )
        found: list[Message] = []
        try:
            known = consumer.list_topics(topic, timeout=TIMEOUT_S).topics[topic]
            for number in known.partitions:
                low, high = consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=TIMEOUT_S)
                consumer.assign([TopicPartition(topic, number, low)])
                end = time.monotonic() + TIMEOUT_S
                while low < high:
                    if time.monotonic() > end:
                        raise KafkaException(f"{topic} can't be read")
                    for message in consumer.consume(min(500, high - low), 0.2):
                        if message.error() is not None:
                            raise KafkaException(message.error())
                        found.append(message)
                        offset = message.offset()
                        assert offset is not None
                        low = offset + 1
        finally:
            with contextlib.suppress(RuntimeError):
                consumer.close()
        return found
