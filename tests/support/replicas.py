"""Stores that lose data.

A PostgreSQL whose standby lags behind, a PostgreSQL whose disk is reset to an older state, and a Redis that starts from
an old snapshot.
"""

import contextlib
import shutil
from pathlib import Path
from types import TracebackType
from typing import Self

from support.stores import HOST, PostgresServer, RedisServer
from support.waiting import until


class PostgresPair:
    """A PostgreSQL primary with an asynchronous standby. A failover swaps their roles."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.primary = PostgresServer(folder / "one")
        self.standby = PostgresServer(folder / "two")

    def url(self) -> str:
        hosts = f"{HOST}:{self.primary.port},{HOST}:{self.standby.port}"
        return f"postgresql://{self.primary.user}@{hosts}/postgres?target_session_attrs=read-write"

    def start(self) -> None:
        self.primary.start()
        self.follow()

    def follow(self) -> None:
        """Recreate the standby from the primary, and return once it has caught up."""
        shutil.rmtree(self.standby.folder / "data", ignore_errors=True)
        self.standby.copy_from(self.primary)
        self.standby.start()
        # While it streams, the standby replays new writes within moments.
        until(lambda: "streaming" in self._replication("state"), "the standby")
        self.catch_up()

    def catch_up(self) -> None:
        """Wait until the standby has replayed all that the primary has written so far."""
        written = self._value(self.primary, "pg_current_wal_flush_lsn()")
        until(
            lambda: self._value(self.standby, f"coalesce(pg_last_wal_replay_lsn() >= '{written}', false)") == "t",
            "the standby to catch up",
        )

    @property
    def followers(self) -> int:
        return int(self._value(self.primary, "count(*) FROM pg_stat_replication"))

    def cut(self) -> None:
        """Stop replication: kill the standby."""
        self.standby.kill()

    def fail_over(self) -> None:
        """Kill the primary and promote the standby, which has only what it received before."""
        self.primary.kill()
        self.primary, self.standby = self.standby, self.primary
        self.primary.start()
        self.primary.promote()
        until(lambda: self._value(self.primary, "pg_is_in_recovery()") == "f", "the promotion")

    def kill(self) -> None:
        self.primary.kill()
        self.standby.kill()

    def _replication(self, column: str) -> str:
        return self._value(self.primary, f"string_agg({column}, ' ') FROM pg_stat_replication")

    def _value(self, server: PostgresServer, expression: str) -> str:
        lines = server.sql(f"SELECT {expression}").stdout.split("\n")
        return lines[2].strip()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()


class DiskSnapshot:
    """A copy of a PostgreSQL's disk at one moment, as a storage system takes it: restoring it keeps the timeline."""

    def __init__(self, postgres: PostgresServer) -> None:
        self._postgres = postgres
        self._copy = postgres.folder / "snapshot"
        postgres.kill()
        shutil.rmtree(self._copy, ignore_errors=True)
        shutil.copytree(postgres.folder / "data", self._copy, symlinks=True)
        _same_owner(postgres.folder / "data", self._copy)
        postgres.start()

    def restore(self) -> None:
        postgres = self._postgres
        postgres.kill()
        shutil.rmtree(postgres.folder / "data")
        self._copy.rename(postgres.folder / "data")
        postgres.start()


def _same_owner(source: Path, target: Path) -> None:
    stat = source.stat()
    for path in (target, *target.rglob("*")):
        with contextlib.suppress(PermissionError):
            shutil.chown(path, stat.st_uid, stat.st_gid)
    target.chmod(0o700)


class RedisSnapshot:
    """A snapshot of a Redis, from which it can start again later."""

    def __init__(self, redis: RedisServer) -> None:
        self._redis = redis
        redis.call("SAVE")

    def restore(self) -> None:
        """Restart Redis from the snapshot; after the next restart it is empty, as usual."""
        self._redis.kill()
        self._redis.start()
        (self._redis.folder / "dump.rdb").unlink()
