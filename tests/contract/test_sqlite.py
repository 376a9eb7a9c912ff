"""The ledger on SQLite, beyond the contract: one process at a time, migrations, no scans of large tables."""

import asyncio
import contextlib
import re
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from laurels.adapters.sql.files import load_migrations
from laurels.adapters.sqlite.sql import SQL
from laurels.errors import Unavailable
from laurels.ports import Key, Ledger, Pod, Role
from support.ledgers import open_sqlite, with_ledger


def test_ledger_can_be_opened_only_once_at_a_time(tmp_path: Path) -> None:
    async def second(ledger: Ledger) -> None:
        del ledger
        with pytest.raises(Unavailable, match="in use by"):
            await open_sqlite(tmp_path)

    with_ledger(open_sqlite, tmp_path, second)


@pytest.mark.parametrize("exists", [False, True])
def test_ledger_files_are_readable_by_their_owner_only(tmp_path: Path, exists: bool) -> None:
    tmp_path.chmod(0o755)
    if exists:
        with contextlib.closing(sqlite3.connect(tmp_path / "laurels.db")) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
        (tmp_path / "laurels.db").chmod(0o644)

    modes: dict[str, int] = {}

    def look() -> None:
        for path in tmp_path.glob("laurels.db*"):
            modes[path.name] = path.stat().st_mode & 0o777

    async def use(ledger: Ledger) -> None:
        await ledger.pods()
        look()

    with_ledger(open_sqlite, tmp_path, use)
    assert modes == dict.fromkeys(["laurels.db", "laurels.db-wal", "laurels.db-shm"], 0o600)


def test_ledger_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "laurels.db")
    connection.execute("PRAGMA user_version = 999")
    connection.close()
    with pytest.raises(Unavailable, match="newer Laurels"):
        asyncio.run(open_sqlite(tmp_path))


def test_only_listed_sqlite_statements_scan_a_large_table() -> None:
    """The planner has no statistics, so a statement overrides the plan where the planner would choose badly."""
    meant = {"changed_rows", "count_changed", "count_rows", "count_events"}
    large = {"scores", "events", "finals", "grants", "profiles", "actions", "replays", "s", "e", "f", "g"}
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        for migration in load_migrations("laurels.adapters.sqlite"):
            connection.executescript(migration.script)
        looked: set[str] = set()
        for name, statement in SQL.items():
            named = set(re.findall(r":(\w+)", statement))
            values: Any = dict.fromkeys(named) if named else [None] * statement.count("?")
            if numbered := re.findall(r"\?(\d+)", statement):
                values = [None] * max(map(int, numbered))
            plan = connection.execute(f"EXPLAIN QUERY PLAN {statement}", values)
            steps = [step.split() for *_, step in plan]
            looked |= {name for step in steps if step[0] == "SCAN" and step[1] in large}
        assert looked == meant


def test_keys_and_boards_of_the_first_schema_are_kept_by_an_upgrade(tmp_path: Path) -> None:
    path = tmp_path / "laurels.db"
    first, *_ = load_migrations("laurels.adapters.sqlite")
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript(first.script)
        connection.executescript("""
            INSERT INTO pods VALUES ('pod', 'Pod', 1);
            INSERT INTO keys VALUES ('k1', 'pod', 'server', 'ci', x'01', 2, NULL);
            INSERT INTO keys VALUES ('k2', 'pod', 'client', NULL, x'02', 3, 4);
            PRAGMA user_version = 1;
        """)

    async def read(ledger: Ledger) -> Any:
        return await ledger.keys(), await ledger.pods()

    found = with_ledger(open_sqlite, tmp_path, read)
    assert found == ([Key("k1", "pod", Role.SERVER, "ci", b"\x01", 2)], [Pod("pod", "Pod", 1)])
