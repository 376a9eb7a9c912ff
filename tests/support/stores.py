"""Private PostgreSQL and Redis servers for tests.

They listen on free loopback ports and keep temporary data. Tests signal them by process id to kill, freeze and restart
them.
"""

import atexit
import contextlib
import functools
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import psutil
import pytest
import redis

from support.running import free_port, reserve_ports
from support.waiting import until

S = TypeVar("S", "PostgresServer", "RedisServer", "RedisClusterServers")

START_TIMEOUT_S = 30
HOST = "127.0.0.1"


def need(name: str) -> str:
    """Return the path of a program; if it is not installed, skip the test with the reason, or fail it in CI."""
    folders = [*map(str, sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)), "/usr/sbin"]
    found = shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), *folders]))
    if found is None:
        reason = f"{name} is not installed (as root on Debian, `make test` installs it)"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return found


class Process:
    """A server with its child processes, which can be killed and frozen as a whole."""

    def __init__(self, command: list[str], log: Path, user: str | None = None) -> None:
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, start_new_session=True, user=user
            )

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def signal_all(self, number: int) -> None:
        """Send a signal to the server and its child processes, one by one.

        PostgreSQL's processes run in separate sessions, so a signal to the process group would not reach them.
        """
        for each in self.everybody():
            with contextlib.suppress(psutil.NoSuchProcess):
                each.send_signal(number)

    def everybody(self) -> list[psutil.Process]:
        """Return the server with its child processes."""
        with contextlib.suppress(psutil.NoSuchProcess):
            first = psutil.Process(self._process.pid)
            return [first, *first.children(recursive=True)]
        return []

    def signal_first(self, number: int) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        everybody = self.everybody()
        self.signal_all(signal.SIGKILL)
        self._process.wait()
        # PostgreSQL does not start while a process of the old server is alive.
        psutil.wait_procs(everybody, START_TIMEOUT_S)

    def wait(self) -> None:
        self._process.wait(timeout=START_TIMEOUT_S)


class Store:
    """The common part of all servers here."""

    def __init__(self, folder: Path, port: int | None = None) -> None:
        self.folder = folder
        self.port = port or free_port()
        self._process: Process | None = None

    def start(self) -> None:
        raise NotImplementedError

    @property
    def process(self) -> Process:
        assert self._process is not None
        return self._process

    def kill(self) -> None:
        """Kill the server and its child processes with SIGKILL."""
        if self._process is not None:
            self._process.kill()

    def freeze(self) -> None:
        self.process.signal_all(signal.SIGSTOP)

    def thaw(self) -> None:
        self.process.signal_all(signal.SIGCONT)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()


class PostgresServer(Store):
    """A PostgreSQL server.

    PostgreSQL refuses to run as root, so root starts it as the user that Debian's package creates.
    """

    def __init__(self, folder: Path, port: int | None = None, **settings: str) -> None:
        super().__init__(folder, port)
        self._settings = settings
        self._postgres = need("postgres")
        self.os_user = "postgres" if os.geteuid() == 0 else None
        self.user = self.os_user or pwd.getpwuid(os.geteuid()).pw_name

    def start(self) -> None:
        data = self.folder / "data"
        if not data.exists():
            self._make(data)
        # A killed server leaves its process id in this file, and another process may have that id now.
        (data / "postmaster.pid").unlink(missing_ok=True)
        settings = {
            "port": self.port,
            "listen_addresses": HOST,
            "unix_socket_directories": "",
            "max_connections": 200,
            "shared_buffers": "128MB",
            "max_wal_size": "1GB",
        } | self._settings
        arguments = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        self._process = Process(
            [self._postgres, "-D", str(data), *arguments], self.folder / "postgres.log", user=self.os_user
        )
        until(self._answers, "PostgreSQL")

    def _make(self, data: Path) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        data.mkdir(mode=0o700)
        if self.os_user is not None:
            shutil.chown(data, self.os_user)
            for parent in data.parents:
                with contextlib.suppress(PermissionError):
                    parent.chmod(parent.stat().st_mode | 0o011)
        options = ["-D", str(data), "-U", self.user, "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync"]
        subprocess.run(
            [need("initdb"), *options], user=self.os_user, check=True, capture_output=True, timeout=60, cwd="/"
        )

    def _answers(self) -> bool:
        assert self.process.is_running, (self.folder / "postgres.log").read_text()
        return self.sql("SELECT 1", check=False).returncode == 0

    def sql(
        self, text: str, database: str = "postgres", *, check: bool = True, timeout_s: float = 30
    ) -> subprocess.CompletedProcess[str]:
        command = [need("psql"), "-X", "-q", "-h", HOST, "-p", str(self.port), "-U", self.user, "-d", database]
        return subprocess.run(
            [*command, "-v", "ON_ERROR_STOP=1", "-c", text],
            check=check,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )

    def copy_from(self, primary: "PostgresServer") -> None:
        """Become a standby of another server; replication begins with the next start."""
        self.folder.mkdir(parents=True, exist_ok=True)
        data = self.folder / "data"
        data.mkdir(mode=0o700)
        if self.os_user is not None:
            shutil.chown(data, self.os_user)
        source = [
            "-h",
            HOST,
            "-p",
            str(primary.port),
            "-U",
            self.user,
            "-D",
            str(data),
            "-R",
            "-X",
            "stream",
            "-c",
            "fast",
        ]
        subprocess.run(
            [need("pg_basebackup"), *source], user=self.os_user, check=True, capture_output=True, timeout=60, cwd="/"
        )

    def promote(self) -> None:
        self.sql("SELECT pg_promote()")

    def stop(self) -> None:
        """Stop the server in an orderly way, without waiting for clients."""
        self.process.signal_first(signal.SIGINT)
        self.process.wait()

    def new_database(self, name: str) -> str:
        self.sql(f'CREATE DATABASE "{name}"')
        return self.url(name)

    def dump(self, source: str, target: str) -> None:
        """Dump a database and restore it into another, empty one."""
        where = ["-h", HOST, "-p", str(self.port), "-U", self.user]
        dumped = subprocess.run([need("pg_dump"), *where, source], check=True, capture_output=True, timeout=60)
        subprocess.run(
            [need("psql"), "-X", "-q", *where, "-d", target],
            input=dumped.stdout,
            check=True,
            capture_output=True,
            timeout=60,
        )

    def url(self, database: str = "postgres", **settings: str) -> str:
        options = "&".join(f"{key}={value}" for key, value in settings.items())
        return f"postgresql://{self.user}@{HOST}:{self.port}/{database}" + (f"?{options}" if options else "")


class RedisServer(Store):
    """A Redis server; `options` are its settings. Data survives a restart only with `appendonly yes`."""

    def __init__(self, folder: Path, port: int | None = None, **options: str) -> None:
        super().__init__(folder, port)
        self._program = need("redis-server")
        self._options = {"appendonly": "no", "save": ""} | options

    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self.port}"

    def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        options = {"port": str(self.port), "bind": HOST, "dir": str(self.folder)} | self._options
        arguments = [part for name, value in options.items() for part in (f"--{name.replace('_', '-')}", value)]
        self._process = Process([self._program, *arguments], self.folder / "redis.log")
        until(self._answers, "Redis")

    def client(self) -> "redis.Redis":
        return redis.Redis(host=HOST, port=self.port, password=self._options.get("requirepass"), socket_timeout=5)

    def call(self, *command: Any) -> Any:
        with self.client() as client:
            return client.execute_command(*command)

    def _answers(self) -> bool:
        assert self.process.is_running, (self.folder / "redis.log").read_text()
        try:
            return bool(self.call("PING"))
        except redis.exceptions.ConnectionError:
            return False


class RedisClusterServers:
    """A Redis Cluster of some masters, each with one replica or none."""

    NODE_TIMEOUT_MS = 1000

    def __init__(
        self, folder: Path, node_timeout_ms: int = NODE_TIMEOUT_MS, masters: int = 3, *, replicated: bool = True
    ) -> None:
        self._masters = masters
        self._replicas = masters if replicated else 0
        self.nodes = [
            RedisServer(
                folder / str(number),
                _cluster_port(),
                cluster_enabled="yes",
                cluster_node_timeout=str(node_timeout_ms),
                cluster_replica_validity_factor="0",
                repl_diskless_sync_delay="0",
            )
            for number in range(self._masters + self._replicas)
        ]

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(f"{HOST}:{node.port}" for node in self.nodes[: self._masters])

    def start(self) -> None:
        for node in self.nodes:
            node.start()
        masters, replicas = self.nodes[: self._masters], self.nodes[self._masters :]
        for number, master in enumerate(masters):
            first, last = 16384 * number // len(masters), 16384 * (number + 1) // len(masters) - 1
            master.call("CLUSTER", "ADDSLOTS", *range(first, last + 1))
            master.call("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for node in self.nodes[1:]:
            node.call("CLUSTER", "MEET", HOST, self.nodes[0].port)
        until(lambda: all(self._known(node) == len(self.nodes) for node in self.nodes), "the cluster to meet")
        for master, replica in zip(masters, replicas, strict=False):
            replica.call("CLUSTER", "REPLICATE", master.call("CLUSTER", "MYID"))
        self.wait_ready()

    def wait_ready(self, replicas: int | None = None, timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait until all slots are served and this many replicas (None: all) follow their masters."""

        def ready() -> bool:
            try:
                return all(
                    self._info(node, "CLUSTER").get("cluster_state") == "ok" for node in self.nodes
                ) and self._following() >= (self._replicas if replicas is None else replicas)
            except redis.exceptions.RedisError:
                return False

        until(ready, "the cluster", timeout_s)

    def masters(self) -> list[RedisServer]:
        return [node for node in self.nodes if self._info(node, "REPLICATION").get("role") == "master"]

    def move_slot(self, source: RedisServer, target: RedisServer, slot: int) -> None:
        """Move a slot to another master, slowly, as `redis-cli --cluster reshard` does."""
        source_id, target_id = source.call("CLUSTER", "MYID"), target.call("CLUSTER", "MYID")
        target.call("CLUSTER", "SETSLOT", slot, "IMPORTING", source_id)
        source.call("CLUSTER", "SETSLOT", slot, "MIGRATING", target_id)
        while keys := source.call("CLUSTER", "GETKEYSINSLOT", slot, 1):
            source.call("MIGRATE", HOST, target.port, "", 0, 5000, "KEYS", *keys)
            time.sleep(0.05)
        for node in self.masters():
            node.call("CLUSTER", "SETSLOT", slot, "NODE", target_id)

    def _following(self) -> int:
        infos = [self._info(node, "REPLICATION") for node in self.nodes]
        return sum(info.get("role") == "slave" and info.get("master_link_status") == "up" for info in infos)

    def _known(self, node: RedisServer) -> int:
        return int(self._info(node, "CLUSTER")["cluster_known_nodes"])

    def _info(self, node: RedisServer, section: str) -> dict[str, str]:
        with node.client() as client:
            if section == "CLUSTER":
                raw: Any = client.execute_command("CLUSTER INFO")
            else:
                raw = client.info("replication")
        if isinstance(raw, dict):
            return {str(name): str(value) for name, value in raw.items()}
        lines = (raw.decode() if isinstance(raw, bytes) else str(raw)).split()
        return dict(line.split(":", 1) for line in lines)

    def kill(self) -> None:
        for node in self.nodes:
            node.kill()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()


class PgBouncer(Store):
    """PgBouncer in transaction mode in front of a PostgreSQL."""

    def __init__(self, folder: Path, postgres: PostgresServer) -> None:
        super().__init__(folder)
        self._program = need("pgbouncer")
        self._postgres = postgres

    def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        user = self._postgres.user
        config = self.folder / "pgbouncer.ini"
        (self.folder / "users.txt").write_text(f'"{user}" ""\n')
        config.write_text(
            f"[databases]\n* = host={HOST} port={self._postgres.port}\n"
            f"[pgbouncer]\nlisten_addr = {HOST}\nlisten_port = {self.port}\nauth_type = trust\n"
            f"auth_file = {self.folder}/users.txt\npool_mode = transaction\ndefault_pool_size = 4\nunix_socket_dir =\n"
        )
        self._process = Process([self._program, str(config)], self.folder / "log", user=self._postgres.os_user)
        until(self._answers, "PgBouncer")

    def _answers(self) -> bool:
        assert self.process.is_running, (self.folder / "log").read_text()
        with socket.socket() as probe:
            return probe.connect_ex((HOST, self.port)) == 0

    def url(self, database: str) -> str:
        return f"postgresql://{self._postgres.user}@{HOST}:{self.port}/{database}"


def _cluster_port() -> int:
    """Return a free port for a node of a cluster, whose bus port (10,000 higher) is free too."""
    while True:
        port = free_port()
        if port > 50_000:
            port -= 30_000
        with socket.socket() as probe, socket.socket() as bus:
            try:
                probe.bind((HOST, port))
                bus.bind((HOST, port + 10_000))
            except OSError:
                continue
        if reserve_ports(port, port + 10_000):
            return port


def end_claim(redis_server: RedisServer, meta: bytes) -> None:
    """Expire the lease on the build of a ranking; `meta` is the key of the ranking's metadata."""
    assert redis_server.call("HEXISTS", meta, "until")
    redis_server.call("HSET", meta, "until", 1)


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """Create a folder that other users can enter; pytest's own folders are for their owner only."""
    with tempfile.TemporaryDirectory(prefix="laurels-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


@functools.cache
def shared_postgres() -> PostgresServer:
    """Return the PostgreSQL that all non-destructive tests share; each test uses its own database or schema.

    Only the tests run transactions there, because autovacuum is off.
    """
    # No test kills this server, so it needs no fsync.
    return _until_the_end(PostgresServer(_shared_folder() / "postgres", autovacuum="off", fsync="off"))


@functools.cache
def shared_redis() -> RedisServer:
    return _until_the_end(RedisServer(_shared_folder() / "redis"))


@functools.cache
def shared_cluster() -> RedisClusterServers:
    # No test kills these nodes, so a slow one must not be declared dead.
    return _until_the_end(RedisClusterServers(_shared_folder() / "cluster", node_timeout_ms=15_000))


def _until_the_end(server: S) -> S:
    server.start()
    atexit.register(server.kill)
    return server


@functools.cache
def _shared_folder() -> Path:
    stack = contextlib.ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(temporary_folder())
