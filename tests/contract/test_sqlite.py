"""What a ledger on SQLite owes beyond the contract: one holder, migrations, no look through a large table."""

import asyncio
import contextlib
import re
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from laurels.adapters.sql_files import load_migrations, load_queries, load_text
from laurels.errors import Unavailable
from laurels.ports import Act, Ledger
from support.ledgers import open_sqlite, with_ledger


def test_only_one_process_may_hold_a_ledger(tmp_path: Path) -> None:
    async def second(ledger: Ledger) -> None:
        del ledger
        with pytest.raises(Unavailable, match="in use by"):
            await open_sqlite(tmp_path)

    with_ledger(open_sqlite, tmp_path, second)


def test_a_ledger_from_the_future_is_refused(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "laurels.db")
    connection.execute("PRAGMA user_version = 999")
    connection.close()
    with pytest.raises(Unavailable, match="newer Laurels"):
        asyncio.run(open_sqlite(tmp_path))


def test_the_migrations_lead_to_the_schema() -> None:
    migrated, described = sqlite3.connect(":memory:"), sqlite3.connect(":memory:")
    for migration in load_migrations("laurels.adapters.sqlite"):
        migrated.executescript(migration.script)
    described.executescript(load_text("laurels.adapters.sqlite", "schema.sql"))
    assert describe(migrated) == describe(described)
    migrated.close()
    described.close()


def test_a_ledger_of_before_is_brought_up_to_date_with_what_is_in_it(tmp_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "laurels.db")) as old:
        for migration in load_migrations("laurels.adapters.sqlite")[:3]:
            old.executescript(f"BEGIN; {migration.script}; PRAGMA user_version = {migration.number}; COMMIT;")
        old.executescript(
            """
            INSERT INTO pods VALUES ('pod', 'Pod', 0);
            INSERT INTO boards (id, uuid, pod_id, name, rule, sort_order, ties, public, windows, segments, created_at,
                                revision)
            VALUES (1, 'old', 'pod', 'Old', 'increment', 'desc', 'earliest', 0, '[{"name":"all"}]', '["global"]', 0, 1);
            INSERT INTO periods (id, board_id, window_name, name) VALUES (1, 1, 'all', 'all');
            INSERT INTO acts (id, board_id, act_id, kind, user_id, by_key, at)
            VALUES (7, 1, 'x', 'remove', 'b', 'k', 3);
            INSERT INTO events (board_id, event_id, user_id, score, at, stamped, received_at, voided_by)
            VALUES (1, 'e1', 'a', 2, 0, 0, 0, NULL), (1, 'e2', 'b', 3, 0, 0, 0, 7);
            INSERT INTO scores (period_id, user_id, score, achieved_at, moved, version)
            VALUES (1, 'a', 2, 0, 1, 1), (1, 'b', NULL, NULL, 0, 2);
            UPDATE counters SET value = 2 WHERE name = 'version';
            """
        )

    async def check(ledger: Ledger) -> None:
        (board,) = await ledger.boards()
        (act,) = await ledger.people.acts("pod", board.id, 2**63 - 1, 10)
        assert (act.id, act.kind, act.user_id, act.at, act.done_at) == (7, "remove", "b", 3, 3)
        undo = await ledger.people.begin_act("pod", board.id, None, Act("undo", "restore", "k", 5))
        events = await ledger.people.voided_by(act.id, 10)
        touched = await ledger.people.restore(board, act, undo, [event.seq for event in events])
        assert [(row.user_id, row.standing and row.standing.score) for row in touched.rows] == [("b", 3)]

    with_ledger(open_sqlite, tmp_path, check)
    with contextlib.closing(sqlite3.connect(tmp_path / "laurels.db")) as now:
        assert now.execute("PRAGMA foreign_key_check").fetchall() == []


def describe(connection: sqlite3.Connection) -> dict[str, Any]:
    """Everything about a schema but the layout of its text."""
    tables = [
        name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
    ]
    return {
        table: {
            "options": connection.execute("SELECT * FROM pragma_table_list(?)", (table,)).fetchall(),
            "columns": connection.execute("SELECT * FROM pragma_table_xinfo(?)", (table,)).fetchall(),
            "references": connection.execute("SELECT * FROM pragma_foreign_key_list(?)", (table,)).fetchall(),
            "indexes": [
                (*index[1:], connection.execute("SELECT * FROM pragma_index_xinfo(?)", (index[1],)).fetchall())
                for index in connection.execute("SELECT * FROM pragma_index_list(?)", (table,)).fetchall()
            ],
        }
        for table in tables
    }


def test_no_statement_of_sqlite_looks_through_a_large_table() -> None:
    """Its planner has no statistics; where it would choose badly the statement tells it."""
    meant = {"changed_rows", "count_changed", "count_rows", "count_events"}
    large = {"scores", "events", "finals", "grants", "profiles", "acts", "replays", "s", "e", "f", "g"}
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(load_text("laurels.adapters.sqlite", "schema.sql"))
        looked: set[str] = set()
        for file in ("queries.sql", "seasons.sql", "people.sql", "streams.sql"):
            for name, statement in load_queries("laurels.adapters.sqlite", file).items():
                named = set(re.findall(r":(\w+)", statement))
                values: Any = dict.fromkeys(named) if named else [None] * statement.count("?")
                if numbered := re.findall(r"\?(\d+)", statement):
                    values = [None] * max(map(int, numbered))
                plan = connection.execute(f"EXPLAIN QUERY PLAN {statement}", values)
                steps = [step.split() for *_, step in plan]
                looked |= {name for step in steps if step[0] == "SCAN" and step[1] in large}
        assert looked == meant
