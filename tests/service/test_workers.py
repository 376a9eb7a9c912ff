"""Several worker processes on one socket: whoever asks meets one that can serve, if there is one."""

import os
import signal
import time
from collections.abc import Iterator

import httpx
import psutil
import pytest

from laurels.server import HOLD_BACK_S
from support.running import RunningServer
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


def test_they_share_a_socket_and_are_started_again(server: RunningServer) -> None:
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


def test_one_that_cannot_serve_yet_leaves_the_socket_to_the_others(
    deployment: Deployment, server: RunningServer
) -> None:
    """PostgreSQL is away, so that it can't start; the others read from Redis."""
    with server.client() as client:
        assert client.put(f"{BOARD}/users/left", json={"score": 1}).status_code == 200
    old = children(server.pid)
    # The last that a worker opens, after which it needs PostgreSQL no more.
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
        # Alone, it answers that it can't serve, and probes that it is alive.
        for pid in old[1:]:
            os.kill(pid, signal.SIGKILL)
        until(lambda: is_alive_at(server), "a worker that answers without PostgreSQL")
        refused = httpx.get(server.url + "/readyz", timeout=30)
        assert (refused.status_code, refused.json()["status"]) == (503, "not_ready")
    finally:
        deployment.postgres.start()
    until_equal(lambda: httpx.get(server.url + "/readyz", timeout=30).status_code, 200)


def test_one_whose_parent_died_before_it_could_look_stops(deployment: Deployment) -> None:
    server = RunningServer(deployment.folder / "orphan", workers="2", **deployment.settings)
    server.start(wait=False)
    pids = until(lambda: [] if len(found := children(server.pid)) < 2 else found, "workers")
    server.kill()
    until_equal(lambda: [pid for pid in pids if is_alive(pid)], [])


def read(server: RunningServer, user: str) -> httpx.Response:
    """By a connection of its own: which worker accepts it, nobody knows."""
    with server.client() as client:
        return client.get(f"{BOARD}/users/{user}/rank")


def is_alive_at(server: RunningServer) -> bool:
    try:
        return httpx.get(server.url + "/healthz", timeout=1).status_code == 200
    except httpx.TransportError:
        return False


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
