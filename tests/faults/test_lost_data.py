"""PostgreSQL and Redis come back with an older state, at random, while clients write and read.

A lagging standby takes over, the disk of PostgreSQL is restored from a snapshot, or Redis starts from an old snapshot.
Only writes that were acknowledged after the restored moment may be lost. At the end every replicated event is in the
ledger once, the rows equal the fold of the events, and the index equals the rows. Once all servers have written to the
new primary, no read shows lost data.
"""

import contextlib
import functools
import os
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from support.checks import check_events, check_healed, export_events
from support.replicas import DiskSnapshot, PostgresPair, RedisSnapshot
from support.running import RunningServer
from support.shared import Deployment
from support.stores import RedisServer, temporary_folder
from support.traffic import Traffic
from support.waiting import until

SERVERS = 3
# `make faults` sets this to 200.
FAULTS = int(os.environ.get("LAURELS_TEST_FAULTS", "4"))


class Losses:
    """Faults that lose data, one after the other.

    After each fault the ledger is read to find out which events are lost.
    """

    def __init__(self, deployment: Deployment, pair: PostgresPair, traffic: Traffic, rng: random.Random) -> None:
        self._deployment = deployment
        self._pair = pair
        self._traffic = traffic
        self._rng = rng
        self._number = 0
        self.lost = 0
        self._faults: list[Callable[[], None]] = [
            self.fail_over_to_a_lagging_standby,
            self.fail_over_to_a_lagging_standby,
            self.restore_the_disk,
            self.restore_redis,
            self.lose_both,
        ]

    def strike(self) -> str:
        fault = self._rng.choice(self._faults)
        fault()
        return fault.__name__

    def fail_over_to_a_lagging_standby(self) -> None:
        with self._losing():
            self._pair.catch_up()
            self._pair.cut()
            self._lose_boards()
            self._pause(1.5)
            self._pair.fail_over()
        self._pair.follow()

    def restore_the_disk(self) -> None:
        self._pair.cut()
        with self._losing():
            snapshot = DiskSnapshot(self._pair.primary)
            self._await_servers()
            self._lose_boards()
            # Longer than the interval between two marks: as documented, a shorter loss goes unnoticed.
            self._pause(1.5, at_least=5)
            snapshot.restore()
        self._pair.follow()

    def restore_redis(self) -> None:
        snapshot = RedisSnapshot(self._redis)
        self._pause(2)
        snapshot.restore()

    def lose_both(self) -> None:
        """Combine an old Redis with an old PostgreSQL; either may be the older one."""
        with self._losing():
            self._pair.catch_up()
            if self._rng.random() < 0.5:
                snapshot = RedisSnapshot(self._redis)
                self._pause(0.5)
                self._pair.cut()
            else:
                self._pair.cut()
                self._pause(0.5)
                snapshot = RedisSnapshot(self._redis)
            self._pause(1)
            self._pair.fail_over()
            snapshot.restore()
        self._pair.follow()

    @contextlib.contextmanager
    def _losing(self) -> Iterator[None]:
        """Allow the loss of writes that are acknowledged inside the block; find out afterwards which ones are lost."""
        traffic = self._traffic
        with traffic.lock:
            traffic.losing = True
            safe = set(traffic.acknowledged)
            before = {board.uuid: dict(board.ranked) for board in traffic.boards}
        yield
        # Reads must show at least what was there before.
        with traffic.lock:
            for board in traffic.boards:
                board.ranked = before[board.uuid]
        self._await_servers()
        self._await_writes()
        with traffic.lock:
            at_risk = set(traffic.acknowledged) - safe
        stored = {event["eventId"] for board in traffic.boards for event in export_events(self._server, board.uuid)}
        with traffic.lock:
            gone = at_risk - stored
            traffic.lose(gone)
            self.lost += len(gone)
            traffic.losing = False
        assert safe <= stored, f"replicated and lost: {sorted(safe - stored)[:10]}"

    def _lose_boards(self) -> None:
        """Change a board and create another one, so that a revision and a whole board are lost."""
        self._number += 1
        with self._server.client() as client:
            changed = self._rng.choice(self._traffic.boards)
            path = f"/api/v1/leaderboards/{changed.uuid}"
            with contextlib.suppress(Exception):
                client.patch(path, json={"metadata": {"change": self._number}})
                client.post(
                    "/api/v1/leaderboards", json={"UUID": f"lost-{self._number}", "podId": "default", "name": "L"}
                )

    def _await_servers(self) -> None:
        for server in self._deployment.servers:
            server.wait_ready()

    def _await_writes(self) -> None:
        """Wait until every server writes again, because it then knows the ledger's current history."""
        for number, server in enumerate(self._deployment.servers):
            body = {"score": 1, "eventId": f"probe-{self._number}-{time.monotonic_ns()}"}

            path = f"/api/v1/leaderboards/default/users/probe-{number}"
            until(functools.partial(_writes, server, path, body), "a server that writes again")
        # Let the servers answer reads from the new history, too.
        time.sleep(1)

    @property
    def _server(self) -> RunningServer:
        return self._deployment.servers[0]

    @property
    def _redis(self) -> RedisServer:
        assert isinstance(self._deployment.redis, RedisServer)
        return self._deployment.redis

    def _pause(self, at_most: float, at_least: float = 0) -> None:
        time.sleep(at_least + self._rng.uniform(0, at_most))


def _writes(server: RunningServer, path: str, body: dict[str, Any]) -> bool:
    with server.client() as client:
        answer = client.put(path, json=body)
    assert answer.status_code in {200, 503}, answer.text
    return answer.status_code == 200


@pytest.mark.timeout(7200)
def test_replicated_events_are_kept_and_lost_data_is_not_shown() -> None:
    seed = int(os.environ.get("LAURELS_TEST_SEED", random.randrange(10**6)))
    print(f"seed: LAURELS_TEST_SEED={seed}")
    rng = random.Random(seed)
    with (
        temporary_folder() as folder,
        PostgresPair(folder / "postgres") as pair,
        RedisServer(folder / "redis") as redis,
    ):
        deployment = Deployment(folder, pair.primary, redis, SERVERS, ledger=pair.url())
        try:
            deployment.start()
            traffic = Traffic(deployment.servers, seed, moderated=False)
            traffic.make_boards()
            losses = Losses(deployment, pair, traffic, rng)
            traffic.start()
            try:
                for number in range(FAULTS):
                    time.sleep(rng.choice([0.05, 0.3, 1.0]))
                    print(f"fault {number + 1}: {losses.strike()}", flush=True)
                    if traffic.problems:
                        break
                time.sleep(1)
            finally:
                traffic.stop()
            print(f"{len(traffic.acknowledged)} events kept, {losses.lost} lost; {traffic.reads} reads")
            assert traffic.problems == []
            assert len(traffic.acknowledged) > FAULTS
            check_healed(deployment, [board.uuid for board in traffic.boards])
            check_events(deployment.servers[0], traffic)
        finally:
            deployment.stop()
