"""A Kafka that requires TLS and a password: the client settings are passed to librdkafka."""

import asyncio
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from laurels.adapters.kafka import KafkaBroker, read_client_config
from laurels.errors import Unavailable
from laurels.ports import OutgoingRecord
from support.kafka import KafkaServer
from support.running import free_port
from support.stores import HOST, need, temporary_folder
from support.waiting import until_async

JAAS = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    'username="admin" password="s3cret" user_admin="s3cret" user_laurels="open-sesame";'
)


class GuardedKafka(KafkaServer):
    """A Kafka whose clients use SASL over TLS; only the test harness uses its plaintext listener."""

    def __init__(self, folder: Path) -> None:
        self.guarded = free_port()
        super().__init__(folder)
        folder.mkdir(parents=True, exist_ok=True)
        key, certificate = folder / "key.pem", folder / "certificate.pem"
        command = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
        names = ["-addext", f"subjectAltName=IP:{HOST}", "-keyout", str(key), "-out", str(certificate)]
        subprocess.run([need("openssl"), *command, *names], check=True, capture_output=True)
        store = folder / "store.pem"
        store.write_text(key.read_text() + certificate.read_text(), "utf-8")
        self.certificate = certificate
        listeners = f"PLAINTEXT://{HOST}:{self.port},CONTROLLER://{HOST}:{self._controller}"
        self._settings = {
            "listeners": f"{listeners},SASL_SSL://{HOST}:{self.guarded}",
            "advertised.listeners": f"PLAINTEXT://{HOST}:{self.port},SASL_SSL://{HOST}:{self.guarded}",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl_ssl.plain.sasl.jaas.config": JAAS,
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(store),
        }


@pytest.fixture(scope="module")
def kafka() -> Iterator[GuardedKafka]:
    with temporary_folder() as folder, GuardedKafka(folder / "kafka") as running:
        yield running


def settings(folder: Path, password: str, ca: Path) -> dict[str, str]:
    path = folder / "client.properties"
    lines = [
        "security.protocol=SASL_SSL",
        "sasl.mechanisms=PLAIN",
        "sasl.username=laurels",
        f"sasl.password={password}",
        f"ssl.ca.location={ca}",
    ]
    path.write_text("\n".join(lines), "utf-8")
    return read_client_config(path)


async def answers(broker: KafkaBroker) -> bool:
    try:
        await broker.ping()
    except Unavailable:
        return False
    return True


def test_sasl_over_tls_connection_sends_and_consumes(kafka: GuardedKafka, tmp_path: Path) -> None:
    async def run() -> None:
        config = settings(tmp_path, "open-sesame", kafka.certificate)
        broker = KafkaBroker(f"{HOST}:{kafka.guarded}", config)
        await until_async(partial(answers, broker), "the first handshake")
        assert await broker.send([OutgoingRecord("guarded", None, b"1")]) == [None]
        inbox = broker.open_consumer("^guarded$", "g")
        letters = []
        for _ in range(60):
            letters += await inbox.poll(10, 0.5)
            if letters:
                break
        assert [letter.value for letter in letters] == [b"1"]
        await inbox.close()
        await broker.close()

    asyncio.run(run())


def test_connection_with_wrong_sasl_password_fails(kafka: GuardedKafka, tmp_path: Path) -> None:
    async def run() -> None:
        right = KafkaBroker(f"{HOST}:{kafka.guarded}", settings(tmp_path, "open-sesame", kafka.certificate))
        wrong = KafkaBroker(f"{HOST}:{kafka.guarded}", settings(tmp_path, "guess", kafka.certificate))
        for _ in range(2):
            # Kafka is up: the right password works.
            await until_async(partial(answers, right), "the handshake")
            assert not await answers(wrong)
        await right.close()
        await wrong.close()

    asyncio.run(run())
