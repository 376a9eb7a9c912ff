"""An upgrade: servers of two releases on one database. Each uses the functions of its own release."""

import asyncio
import re
import shutil
import threading
from pathlib import Path

import httpx
import pytest

from laurels import adapters
from laurels.adapters.postgres import PostgresLedger
from laurels.errors import Unavailable
from support.ledgers import FakeClock
from support.running import RunningServer
from support.stores import PostgresServer, RedisServer, temporary_folder
from support.waiting import until

PACKAGE = Path(adapters.__file__).parents[1]
EACH = 60
USERS = 7


def next_release(folder: Path) -> Path:
    """Copy the package as a release in which some functions and a type have a new version."""
    source = folder / "next"
    shutil.copytree(PACKAGE, source / "laurels", ignore=shutil.ignore_patterns("__pycache__"))
    postgres = source / "laurels/adapters/postgres"
    for file in [*postgres.rglob("*.sql"), *postgres.rglob("*.py")]:
        text = file.read_text("utf-8")
        file.write_text(re.sub(r"\b([a-z_]+)_v(\d+)\b", raised, text), "utf-8")
    for file in [*(postgres / "functions").iterdir(), *(postgres / "types").iterdir()]:
        file.rename(file.with_name(re.sub(r"^([a-z_]+)_v(\d+)", raised, file.name)))
    return source


def raised(found: re.Match[str]) -> str:
    """Return the name of a function with the next version. Functions that take the new type have one, too."""
    return found[0] if found[1] in KEPT else f"{found[1]}_v{NEXT}"


# Above every version that exists.
NEXT = 999
# Unchanged in the next release.
KEPT = {
    "now_us", "nearest_double", "segments_of", "hidden_on", "ranked_rows", "resegment_users", "ledger_identity",
    "ledger_system", "need_ledger", "remove_user", "profile_key",
}  # fmt: skip


def calls_of(postgres: PostgresServer, function: str) -> int:
    asked = f"SELECT coalesce(sum(calls), 0) FROM pg_stat_user_functions WHERE funcname ~ '^{function}$'"
    return int(postgres.sql(f"COPY ({asked}) TO STDOUT").stdout)


def test_old_and_new_release_work_on_one_database() -> None:
    with (
        temporary_folder() as folder,
        PostgresServer(folder / "postgres", track_functions="all") as postgres,
        RedisServer(folder / "redis") as redis,
    ):
        stores = {"ledger": postgres.url(), "index": redis.url, "log_level": "warning"}
        old = RunningServer(folder / "old", **stores)
        new = RunningServer(folder / "new", **stores)
        new.source = next_release(folder)
        with old, new, old.client() as first, new.client() as second:
            board = {"UUID": "both", "podId": "default", "name": "Both", "rule": "increment"}
            assert first.post("/api/v1/leaderboards", json=board).status_code == 201
            until(lambda: second.get("/api/v1/leaderboards/both").status_code == 200, "the board on the other server")

            def write(client: httpx.Client, name: str) -> None:
                for number in range(EACH):
                    body = {"score": number, "eventId": f"{name}-{number}"}
                    answer = client.put(f"/api/v1/leaderboards/both/users/u{number % USERS}", json=body)
                    assert answer.status_code == 200, answer.text

            writers = [threading.Thread(target=write, args=each) for each in ((first, "old"), (second, "new"))]
            for writer in writers:
                writer.start()
            for writer in writers:
                writer.join()
            wanted = {f"u{user}": 2 * sum(range(user, EACH, USERS)) for user in range(USERS)}
            for client in (first, second):
                users = client.get("/api/v1/leaderboards/both/top").json()["users"]
                assert {user["userId"]: user["score"] for user in users} == wanted
                *_, last = client.get("/api/v1/verify").text.splitlines()
                assert '"differences":0' in last
            # The old release starts again while the new one runs.
            old.kill()
            old.start()
            assert first.put("/api/v1/leaderboards/both/users/u0", json={"score": 1}).status_code == 200
        assert calls_of(postgres, f"record_events_v{NEXT}") > 0
        assert calls_of(postgres, r"record_events_v\d+") > calls_of(postgres, f"record_events_v{NEXT}")


@pytest.mark.parametrize("kind", ["FUNCTION", "TYPE"])
def test_changed_function_or_type_without_a_new_version_is_refused(kind: str) -> None:
    """Two releases with different text under one name would overwrite each other's functions."""

    async def run(url: str) -> None:
        ledger = PostgresLedger(url, FakeClock(), max_connections=2)
        await ledger.open()
        folder = PACKAGE / "adapters/postgres" / f"{kind.lower()}s"
        name = min(file.stem for file in folder.iterdir())
        await ledger.pool.write(lambda c: c.execute(f"COMMENT ON {kind} {name} IS 'another text'"), repeat=True)
        await ledger.close()
        with pytest.raises(Unavailable, match=f"{name} in PostgreSQL differs from the one of this Laurels"):
            await ledger.open()
        await ledger.close()

    with temporary_folder() as folder, PostgresServer(folder / "postgres") as postgres:
        asyncio.run(run(postgres.url()))
