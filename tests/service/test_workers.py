"""Several worker processes on one socket: connections reach a worker that can serve, if there is one."""

import os
import signal
import time
import uuid
from collections.abc import Iterator

import httpx
import psutil
import pytest

from laurels.server import HOLD_BACK_S
from support.kafka import Game, shared_kafka
from support.running import PLAIN, RunningIngest, RunningServer
from support.shared import Deployment, deployed
from support.waiting import until, until_equal

WORKERS = 3
BOARD = "/api/v1/leaderboards/default"


@pytest.fixture(scope="module")
def deployment() -> Iterator[Deployment]:
    with deployed(0, index_timeout_ms="10000") as stores:
        yield stores


@pytest.fixture
def server(deployment: Deployment) -> Iterator[RunningServer]:
    with RunningServer(deployment.folder / "workers", workers=str(WORKERS), **deployment.settings) as running:
        yield running


def test_workers_share_a_socket_and_are_restarted(server: RunningServer) -> None:
    pids = children(server.pid)
    assert len(pids) == WORKERS
    with server.client() as client:
        answers = [client.put(f"{BOARD}/users/shared", json={"score": 1}) for _ in range(30)]
        assert [answer.text for answer in answers if answer.status_code != 200] == []
    os.kill(pids[0], signal.SIGKILL)
    until_equal(lambda: len([pid for pid in children(server.pid) if pid not in pids]), 1, 10)
    with server.client() as client:
        metrics = client.get("/metrics").text
        assert 'laurels_events_total{outcome="accepted"}' in metrics
    assert read(server, "shared").json()["score"] == 30
    assert server.terminate() == 0
    assert all(not is_alive(pid) for pid in pids)


def test_worker_that_cannot_serve_yet_leaves_connections_to_the_others(
    deployment: Deployment, server: RunningServer
) -> None:
    """PostgreSQL is down, so the new worker can't start; the others read from Redis."""
    with server.client() as client:
        assert client.put(f"{BOARD}/users/left", json={"score": 1}).status_code == 200
    old = children(server.pid)
    # A worker connects to Redis last; after that it can serve without PostgreSQL.
    until(lambda: all(has_connection(pid, deployment.redis.port) for pid in old), "workers that are ready")  # type: ignore[union-attr]
    deployment.postgres.kill()
    try:
        end = time.monotonic() + HOLD_BACK_S
        os.kill(old[0], signal.SIGKILL)
        until_equal(lambda: len([pid for pid in children(server.pid) if pid not in old]), 1)
        answers = []
        while time.monotonic() < end - 2:
            answer = read(server, "left")
            answers += [answer.text] if time.monotonic() < end and answer.status_code != 200 else []
        assert answers == []
        # Without other workers, it answers that it is alive but can't serve.
        for pid in old[1:]:
            os.kill(pid, signal.SIGKILL)
        until(lambda: is_alive_at(server), "a worker that answers without PostgreSQL")
        refused = httpx.get(server.url + "/readyz", timeout=30, verify=PLAIN)
        assert (refused.status_code, refused.json()["status"]) == (503, "not_ready")
    finally:
        deployment.postgres.start()
    until_equal(lambda: httpx.get(server.url + "/readyz", timeout=30, verify=PLAIN).status_code, 200)


def test_workers_stop_if_their_parent_dies_during_startup(deployment: Deployment) -> None:
    server = RunningServer(deployment.folder / "orphan", workers="2", **deployment.settings)
    server.start(wait=False)
    pids = until(lambda: [] if len(found := children(server.pid)) < 2 else found, "workers")
    server.kill()
    until_equal(lambda: [pid for pid in pids if is_alive(pid)], [])


def read(server: RunningServer, user: str) -> httpx.Response:
    """Read on a new connection, which any worker may accept."""
    with server.client() as client:
        return client.get(f"{BOARD}/users/{user}/rank")


def is_alive_at(server: RunningServer) -> bool:
    try:
        return httpx.get(server.url + "/healthz", timeout=1, verify=PLAIN).status_code == 200
    except httpx.TransportError:
        return False


def test_ingest_workers_share_the_partitions_and_count_each_record_once(
    deployment: Deployment, server: RunningServer
) -> None:
    pod = f"pod-{uuid.uuid4().hex[:8]}"
    prefix = f"{pod}."
    game = Game(shared_kafka().servers)
    topic = f"{prefix}pod-{pod}-score-updates"
    schema = {
        "fieldMappings": {"userId": "who", "score": "points", "UUID": "board"},
        "eventIdFrom": {"field": "id"},
        "state": "active",
    }
    settings = deployment.settings | {"kafka": shared_kafka().servers, "kafka_topic_prefix": prefix}
    with (
        server.client() as client,
        RunningIngest(deployment.folder / "ingest", workers="2", kafka_group=pod, **settings) as ingest,
    ):
        assert client.post("/api/v1/pods", json={"podId": pod, "name": pod}).status_code == 201
        board = {"UUID": pod, "podId": pod, "name": pod, "rule": "increment"}
        assert client.post("/api/v1/leaderboards", json=board).status_code == 201
        assert client.put(f"/api/v1/pods/{pod}/schemas/1", json=schema).status_code == 200
        game.make_topic(topic, 4)

        def write(first: int) -> None:
            for partition in range(4):
                records = [
                    {"who": f"user-{partition}", "points": 1, "board": pod, "id": f"{first}-{partition}-{number}"}
                    for number in range(50)
                ]
                game.write(topic, records, partition=partition)

        def scores() -> dict[str, float]:
            users = client.get(f"/api/v1/leaderboards/{pod}/top").json()["users"]
            return {user["userId"]: user["score"] for user in users}

        write(1)
        until_equal(scores, {f"user-{partition}": 50 for partition in range(4)}, 60)
        pids = children(ingest.pid)
        assert len(pids) == 2
        os.kill(pids[0], signal.SIGKILL)
        write(2)
        until_equal(scores, {f"user-{partition}": 100 for partition in range(4)}, 60)
        until_equal(lambda: len([pid for pid in children(ingest.pid) if pid not in pids]), 1, 10)
        pids = children(ingest.pid)
        assert ingest.terminate() == 0
        assert all(not is_alive(pid) for pid in pids)


def children(pid: int) -> list[int]:
    return [child.pid for child in psutil.Process(pid).children()]


def has_connection(pid: int, port: int) -> bool:
    remote = [tuple(each.raddr) for each in psutil.Process(pid).net_connections("tcp")]
    return any(address[1:] == (port,) for address in remote)


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
