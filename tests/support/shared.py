"""Several servers on one PostgreSQL and one Redis, or one Redis Cluster."""

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path

from support.running import RunningServer
from support.stores import PostgresServer, RedisClusterServers, RedisServer, temporary_folder


class Deployment:
    def __init__(
        self,
        folder: Path,
        postgres: PostgresServer,
        redis: RedisServer | RedisClusterServers,
        servers: int,
        **settings: str,
    ) -> None:
        self.folder = folder
        self.postgres = postgres
        self.redis = redis
        # A long timeout, so that a pause of the test machine does not look like a Redis outage.
        patient = {"index_timeout_ms": "10000", "log_level": "warning"}
        self.settings = {"ledger": postgres.url(), "index": redis.url} | patient | settings
        self.servers = [RunningServer(folder / f"server-{number}", **self.settings) for number in range(servers)]

    def start(self) -> None:
        for server in self.servers:
            server.start(wait=False)
        for server in self.servers:
            server.wait_ready()

    def stop(self) -> None:
        for server in self.servers:
            if server.is_running:
                server.signal(signal.SIGCONT)
                server.kill()


@contextlib.contextmanager
def deployed(servers: int, *, cluster: bool = False, **settings: str) -> Iterator[Deployment]:
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(temporary_folder())
        postgres = stack.enter_context(PostgresServer(folder / "postgres"))
        redis: RedisServer | RedisClusterServers
        if cluster:
            redis = stack.enter_context(RedisClusterServers(folder / "redis"))
        else:
            redis = stack.enter_context(RedisServer(folder / "redis"))
        deployment = Deployment(folder, postgres, redis, servers, **settings)
        stack.callback(deployment.stop)
        deployment.start()
        yield deployment
