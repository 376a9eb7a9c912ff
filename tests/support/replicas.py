"""Stores that come back with less than they had: a PostgreSQL with a standby that lags behind, one whose disk is set
back to an older state, and a Redis that starts from an old snapshot.
"""

import contextlib
import shutil
from pathlib import Path
from types import TracebackType
from typing import Self

from support.stores import HOST, PostgresServer, RedisServer
from support.waiting import until


class PostgresPair:
    """A primary with a standby that follows asynchronously. After a failover they change roles."""

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
        """Make the standby anew; it has all of the primary once this has returned."""
        shutil.rmtree(self.standby.folder / "data", ignore_errors=True)
        self.standby.copy_from(self.primary)
        self.standby.start()
        # What is written from here on is replayed soon, and what was is there.
        until(lambda: "streaming" in self._replication("state"), "the standby")
        self.catch_up()

    def catch_up(self) -> None:
        """Wait until the standby has what the primary has by now."""
        written = self._value(self.primary, "pg_current_wal_flush_lsn()")
        until(
            lambda: self._value(self.standby, f"coalesce(pg_last_wal_replay_lsn() >= '{written}', false)") == "t",
            "the standby to catch up",
        )

    @property
    def followers(self) -> int:
        return int(self._value(self.primary, "count(*) FROM pg_stat_replication"))

    def cut(self) -> None:
        """From now on the standby gets nothing."""
        self.standby.kill()

    def fail_over(self) -> None:
        """The primary is lost, and the standby takes over with what it has."""
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
    """The state of a PostgreSQL's disk, as a storage system keeps it: of one moment, and of the same timeline."""

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
    """What Redis holds at a moment; it may start from that later."""

    def __init__(self, redis: RedisServer) -> None:
        self._redis = redis
        redis.call("SAVE")

    def restore(self) -> None:
        """Only once: the next time it starts empty again, as it does without this."""
        self._redis.kill()
        self._redis.start()
        (self._redis.folder / "dump.rdb").unlink()
