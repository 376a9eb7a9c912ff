"""Servers, PostgreSQL and Redis are killed, suspended, restarted and flushed at random while clients write and read.

At the end, within ten seconds, every acknowledged event is in the ledger once, the rows equal the fold of the events,
and the index equals the rows. No read ever shows a wrong rank.
"""

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable

import httpx
import pytest
import redis

from support.checks import check_events, check_healed
from support.replicas import RedisSnapshot
from support.running import RunningServer
from support.shared import Deployment, deployed
from support.stores import RedisClusterServers, RedisServer
from support.traffic import Traffic
from support.waiting import until

SERVERS = 3
# `make faults` sets this to 200, for each kind of Redis.
FAULTS = int(os.environ.get("LAURELS_TEST_FAULTS", "15"))


class Chaos:
    """Random faults, one after the other: the failed process runs again before the next fault begins."""

    def __init__(self, deployment: Deployment, rng: random.Random) -> None:
        self._deployment = deployment
        self._rng = rng
        redis = deployment.redis
        faults: list[Callable[[], None]] = [
            self.kill_a_server,
            self.freeze_a_server,
            self.stop_a_server,
            self.kill_postgres,
            self.freeze_postgres,
            self.restart_postgres,
            self.flush_redis,
            self.cut_the_feed,
            self.reshard_a_board,
        ]
        if isinstance(redis, RedisServer):
            faults += [self.kill_redis, self.freeze_redis, self.restore_redis]
        else:
            faults += [self.kill_a_master, self.kill_a_master, self.freeze_a_master, self.fail_over]
            faults += [self.restore_a_master, self.move_a_slot]
        self._faults = faults

    def strike(self) -> str:
        fault = self._rng.choice(self._faults)
        fault()
        return fault.__name__

    def kill_a_server(self) -> None:
        server = self._a_server()
        server.kill()
        self._pause(0.3)
        server.start(wait=self._rng.random() < 0.5)

    def freeze_a_server(self) -> None:
        server = self._a_server()
        server.signal(signal.SIGSTOP)
        self._pause(2)
        server.signal(signal.SIGCONT)

    def stop_a_server(self) -> None:
        server = self._a_server()
        server.wait_ready()
        assert server.terminate() == 0
        server.start(wait=False)

    def kill_postgres(self) -> None:
        self._deployment.postgres.kill()
        self._pause(4)
        self._deployment.postgres.start()

    def freeze_postgres(self) -> None:
        self._deployment.postgres.freeze()
        self._pause(8)
        self._deployment.postgres.thaw()

    def restart_postgres(self) -> None:
        self._deployment.postgres.stop()
        self._deployment.postgres.start()

    def kill_redis(self) -> None:
        redis = self._redis()
        redis.kill()
        self._pause(1.5)
        redis.start()

    def restore_redis(self) -> None:
        """Start Redis from a snapshot that is older than its data."""
        snapshot = RedisSnapshot(self._redis())
        self._pause(3)
        snapshot.restore()

    def restore_a_master(self) -> None:
        """Restore a master from an old snapshot, before or after its replica takes over."""
        cluster = self._cluster()
        snapshot = RedisSnapshot(self._rng.choice(cluster.masters()))
        self._pause(3)
        snapshot.restore()
        cluster.wait_ready()

    def freeze_redis(self) -> None:
        redis = self._redis()
        redis.freeze()
        self._pause(3)
        redis.thaw()

    def flush_redis(self) -> None:
        redis = self._deployment.redis
        for node in [redis] if isinstance(redis, RedisServer) else redis.masters():
            node.call("FLUSHALL")

    def cut_the_feed(self) -> None:
        redis = self._deployment.redis
        for node in [redis] if isinstance(redis, RedisServer) else redis.nodes:
            node.call("CLIENT", "KILL", "TYPE", "pubsub")

    def reshard_a_board(self) -> None:
        """Change the number of shards of a board, unless it is being changed."""
        shards = self._rng.choice([1, 2, 4, 7])
        with contextlib.suppress(httpx.TransportError), self._a_server().client() as client:
            changed = client.patch("/api/v1/leaderboards/split", json={"shards": shards})
            assert changed.status_code in {200, 409, 503}, changed.text
            print(f"{shards} shards: {changed.status_code}", flush=True)
        self._pause(8)

    def move_a_slot(self) -> None:
        """Move a slot that has keys to another master."""
        cluster = self._cluster()
        source, target = self._rng.sample(cluster.masters(), 2)
        key = source.call("RANDOMKEY")
        if key is not None:
            cluster.move_slot(source, target, int(source.call("CLUSTER", "KEYSLOT", key)))
        cluster.wait_ready()

    def kill_a_master(self) -> None:
        cluster = self._cluster()
        master = self._rng.choice(cluster.masters())
        master.kill()
        if self._rng.random() < 0.5:
            # Long enough for its replica to take over.
            self._pause(0, at_least=2 * cluster.NODE_TIMEOUT_MS / 1000)
        master.start()
        cluster.wait_ready()

    def freeze_a_master(self) -> None:
        cluster = self._cluster()
        master = self._rng.choice(cluster.masters())
        master.freeze()
        self._pause(3)
        master.thaw()
        cluster.wait_ready()

    def fail_over(self) -> None:
        """Fail over manually, as for the upgrade of a node."""
        cluster = self._cluster()
        replica = self._rng.choice([node for node in cluster.nodes if node not in cluster.masters()])
        until(lambda: self._takes_over(replica), "the new master")
        cluster.wait_ready()

    def _takes_over(self, replica: RedisServer) -> bool:
        with replica.client() as client:
            if client.info("replication")["role"] == "master":
                return True
        # A failover may be aborted, so request it again.
        with contextlib.suppress(redis.exceptions.ResponseError):
            replica.call("CLUSTER", "FAILOVER")
        return False

    def _a_server(self) -> RunningServer:
        return self._rng.choice(self._deployment.servers)

    def _redis(self) -> RedisServer:
        assert isinstance(self._deployment.redis, RedisServer)
        return self._deployment.redis

    def _cluster(self) -> RedisClusterServers:
        assert isinstance(self._deployment.redis, RedisClusterServers)
        return self._deployment.redis

    def _pause(self, at_most: float, at_least: float = 0) -> None:
        time.sleep(at_least + self._rng.uniform(0, at_most))


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", ["redis", "cluster"])
@pytest.mark.parametrize("spool", [False, True], ids=["refusing", "spooling"])
def test_random_faults_cause_no_lost_events_or_wrong_ranks(kind: str, spool: bool) -> None:
    seed = int(os.environ.get("LAURELS_TEST_SEED", random.randrange(10**6)))
    print(f"seed: LAURELS_TEST_SEED={seed}")
    rng = random.Random(seed)
    with deployed(SERVERS, cluster=kind == "cluster", index_timeout_ms="1000") as deployment:
        if spool:
            for server in deployment.servers:
                server.restart_with(spool=str(server.data_dir / "spool"))
        traffic = Traffic(deployment.servers, seed)
        traffic.make_boards()
        chaos = Chaos(deployment, rng)
        traffic.start()
        try:
            for number in range(max(1, FAULTS // 2)):
                time.sleep(rng.choice([0.05, 0.3, 1.0]))
                print(f"fault {number + 1}: {chaos.strike()}", flush=True)
                if traffic.problems:
                    break
            for server in deployment.servers:
                server.wait_ready()
            time.sleep(1)
        finally:
            traffic.stop()
        print(
            f"{len(traffic.acknowledged)} events acknowledged, {traffic.spooled} of them from the spool; "
            f"{traffic.reads} reads, {traffic.degraded_reads} from the ledger, {traffic.refused_reads} refused"
        )
        assert traffic.problems == []
        assert len(traffic.acknowledged) > FAULTS
        check_healed(deployment, [board.uuid for board in traffic.boards])
        check_events(deployment.servers[0], traffic)
