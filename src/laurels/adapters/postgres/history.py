"""The history that this PostgreSQL is in, and the detection of lost data.

Data can be lost when a lagging standby is promoted (the timeline differs), when a dump is restored (the files differ),
or when the disk is reset to an older state (marks are missing). The first server that notices begins a new history.
From then on, no server can write with what it knew before, and no index can be repaired from the old history.
"""

import secrets
from collections.abc import Sequence
from typing import Any, NamedTuple

import structlog

from laurels.adapters.postgres.pool import Connection, PostgresPool
from laurels.adapters.postgres.sql import SQL
from laurels.errors import Unavailable
from laurels.ports import AsOf, Position

log = structlog.get_logger()

ATTEMPTS = 5


class PostgresHistory:
    def __init__(self, pool: PostgresPool) -> None:
        self._pool = pool
        self.as_of = AsOf()
        self._seen: tuple[int, str] | None = None

    async def read(self) -> AsOf:
        """See Ledger.read_as_of."""
        for _ in range(ATTEMPTS):
            history, is_the_same, floor, number, token = await self._look()
            if is_the_same:
                self._seen = (number, token)
                self.as_of = AsOf(str(history), int(floor))
                self._pool.history = self.as_of.history
                return self.as_of
            await self._begin(str(history), self._seen)
            self._seen = None
        raise Unavailable(
            "ledger_unavailable",
            "Servers with different data answer at PostgreSQL's address. It must lead to one primary.",
        )

    async def _look(self) -> Sequence[Any]:
        asked = (*(self._seen or (None, None)), self.as_of.history)
        found = await self._pool.read(lambda c: c.fetchrow(SQL["read_as_of"], *asked))
        assert found is not None, "there is always a mark"
        return tuple(found)

    async def _begin(self, ended: str, mark: tuple[int, str] | None) -> None:
        """Begin a new history, unless another server just did. `mark` is one that the ledger should have."""

        async def begin(connection: Connection) -> None:
            await connection.execute(SQL["lock_history"])
            found = await connection.fetchrow(SQL["read_as_of"], *(mark or (None, None)), ended)
            assert found is not None, "there is always a mark"
            if found["history"] != ended or found["is_the_same"]:
                return
            history = secrets.token_hex(8)
            await connection.execute(SQL["begin_history"], history)
            await connection.execute(SQL["raise_floor"])
            await connection.execute(SQL["mark_now"])
            log.warning(
                "ledger_lost_data",
                history=history,
                reason="PostgreSQL was failed over or restored. The lost data is gone. Rankings are being rebuilt.",
            )

        await self._pool.write(begin, repeat=True, checked=False)

    async def mark(self) -> None:
        """See Ledger.mark."""

        async def insert(connection: Connection) -> None:
            await connection.execute(SQL["insert_mark"])
            await connection.execute(SQL["forget_marks"])

        await self._pool.write(insert, repeat=True)

    async def position(self) -> Position:
        as_of = self.as_of
        at = str(await self._pool.read(lambda c: c.fetchval(SQL["position"])))
        return Position(as_of.history, as_of.floor, at)

    async def knows(self, position: Position) -> bool:
        """See Ledger.knows."""
        if position.history != self.as_of.history:
            return False
        snapshot = Snapshot.parse(position.at)
        number, token = mark = snapshot.mark
        found = await self._pool.read(lambda c: c.fetchrow(SQL["knows"], number, token, snapshot.next_id))
        assert found is not None, "the statement has one row"
        if not found["is_known"] and not found["is_old"]:
            # No server noticed, because all were stopped when the database was restored.
            await self._begin(position.history, mark)
            await self.read()
        return bool(found["is_known"])

    async def warn(self) -> None:
        """Log a warning for each setting with which this PostgreSQL can lose data."""
        found = await self._pool.read(lambda c: c.fetchrow(SQL["durability"]))
        assert found is not None, "the statement has one row"
        if found["identity"].endswith("?"):
            log.warning(
                "ledger_may_lose_unnoticed",
                reason="This PostgreSQL does not tell its timeline: a failover to a lagging standby may go unnoticed. "
                "Run `laurels rebuild` after each one, or allow Laurels to call pg_walfile_name and "
                "pg_current_wal_insert_lsn.",
            )
        if found["commits"] == "off":
            log.warning(
                "ledger_may_lose",
                reason="synchronous_commit is off behind a pooler: a crash can lose the last acknowledged scores.",
            )
        if found["fsync"] == "off":
            log.warning("ledger_may_lose", reason="fsync is off: a crash of the machine can lose or corrupt any data.")
        if found["followers"] and not found["standbys"]:
            log.warning(
                "ledger_may_lose",
                reason="Standbys follow asynchronously: a failover can lose the last acknowledged scores. "
                "Set synchronous_standby_names to lose none.",
            )


class Snapshot(NamedTuple):
    """The content of a position: PostgreSQL's snapshot, and the last mark.

    `next_id` is the snapshot's xmax. `unfinished` are the transactions between xmin and xmax that were in progress.
    """

    next_id: int
    unfinished: list[int]
    mark: tuple[int, str]

    @classmethod
    def parse(cls, at: str) -> "Snapshot":
        snapshot, _, mark = at.partition(" ")
        _, next_id, unfinished = snapshot.split(":")
        number, _, token = mark.partition(".")
        return cls(
            int(next_id),
            [int(each) for each in unfinished.split(",") if each],
            (int(number), token),
        )
