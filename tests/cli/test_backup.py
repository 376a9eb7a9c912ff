"""`laurels backup` and `laurels restore`: a copy under load has every score that was acknowledged before it began."""

import json
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from support.running import ADMIN_KEY, RunningServer, environment, laurels

BOARD = "/api/v1/leaderboards/default"


class Writer(threading.Thread):
    """Submits scores until it is stopped, and notes the acknowledged ones."""

    def __init__(self, server: RunningServer, name: str) -> None:
        super().__init__()
        self.server, self.label = server, name
        self.acknowledged: dict[str, tuple[str, float]] = {}
        self.stopping = threading.Event()

    def run(self) -> None:
        number = 0
        with self.server.client() as client:
            while not self.stopping.is_set():
                number += 1
                event_id, user = f"{self.label}-{number}", f"u{number % 50}"
                body = {"score": number % 7, "eventId": event_id}
                assert client.put(f"{BOARD}/users/{user}", json=body).status_code == 200
                self.acknowledged[event_id] = user, number % 7


def events_in(path: Path) -> dict[str, tuple[str, float]]:
    with closing(sqlite3.connect(path)) as db:
        found = db.execute("SELECT event_id, user_id, score FROM events").fetchall()
    assert len({event_id for event_id, _, _ in found}) == len(found)
    return {event_id: (user_id, score) for event_id, user_id, score in found}


def test_backup_under_load_is_complete_and_is_served_after_a_restore(tmp_path: Path) -> None:
    folder = tmp_path / "backups"
    with RunningServer(tmp_path / "data") as server:
        writers = [Writer(server, f"w{number}") for number in range(3)]
        for writer in writers:
            writer.start()
        before: list[dict[str, tuple[str, float]]] = []
        for _ in range(4):
            time.sleep(0.3)
            before.append({key: value for writer in writers for key, value in dict(writer.acknowledged).items()})
            made = laurels("backup", str(folder), "--json", data_dir=server.data_dir)
            assert made.returncode == 0, made.stderr
            manifest = json.loads(made.stdout)
            stored = events_in(folder / manifest["file"])
            assert len(stored) == manifest["events"] >= len(before[-1]) > 0
            assert {key: stored.get(key) for key in before[-1]} == before[-1]
        for writer in writers:
            writer.stopping.set()
            writer.join()
    files = sorted(folder.iterdir())
    assert [path.suffix for path in files] == [".db", ".json"] * 4
    assert {path.stat().st_mode & 0o077 for path in files} == {0}

    target = tmp_path / "restored"
    restored = laurels("restore", str(folder), "--json", data_dir=target)
    assert restored.returncode == 0, restored.stderr
    assert json.loads(restored.stdout) == manifest
    with RunningServer(target) as server, server.client() as client:
        totals: dict[str, float] = {}
        for user, score in stored.values():
            totals[user] = totals.get(user, 0) + score
        shown = client.get(f"{BOARD}/top", params={"limit": 1000, "window": "all"}).json()["users"]
        assert {each["userId"]: each["score"] for each in shown} == totals
        # A score that was acknowledged after the backup is sent again, and one from before is a duplicate.
        event_id, (user, score) = next(iter(stored.items()))
        again = client.put(f"{BOARD}/users/{user}", json={"score": score, "eventId": event_id})
        assert again.json()["duplicate"]
        verified = laurels("verify", data_dir=target, url=server.url, key=ADMIN_KEY)
        assert verified.returncode == 0, verified.stdout


@pytest.fixture(scope="module")
def backup(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a backup of a folder that no server uses."""
    folder = tmp_path_factory.mktemp("backups")
    data = tmp_path_factory.mktemp("data")
    assert laurels("migrate", data_dir=data).returncode == 0
    made = laurels("backup", str(folder), "--json", data_dir=data)
    assert made.returncode == 0, made.stderr
    return folder / str(json.loads(made.stdout)["file"])


def test_damaged_backup_is_refused(backup: Path, tmp_path: Path) -> None:
    assert laurels("restore", str(backup), "--check", data_dir=tmp_path).returncode == 0
    copy = tmp_path / backup.name
    manifest = backup.with_suffix(".json")
    (tmp_path / manifest.name).write_bytes(manifest.read_bytes())
    content = bytearray(backup.read_bytes())
    content[len(content) // 2] ^= 1
    copy.write_bytes(content)
    damaged = laurels("restore", str(copy), data_dir=tmp_path / "data")
    assert damaged.returncode != 0
    assert "checksum" in damaged.stderr
    copy.write_bytes(backup.read_bytes()[:-4096])
    assert laurels("restore", str(copy), "--check", data_dir=tmp_path).returncode != 0
    (tmp_path / manifest.name).unlink()
    copy.write_text("not a database")
    refused = laurels("restore", str(copy), data_dir=tmp_path / "data")
    assert "no Laurels ledger" in refused.stderr
    assert not (tmp_path / "data").exists()


def test_restore_overwrites_nothing(backup: Path, tmp_path: Path) -> None:
    assert laurels("restore", str(backup), data_dir=tmp_path).returncode == 0
    before = (tmp_path / "laurels.db").read_bytes()
    again = laurels("restore", str(backup), data_dir=tmp_path)
    assert again.returncode != 0
    assert "exists" in again.stderr
    assert (tmp_path / "laurels.db").read_bytes() == before


def test_backup_of_a_newer_release_is_refused(backup: Path, tmp_path: Path) -> None:
    copy = tmp_path / "newer.db"
    copy.write_bytes(backup.read_bytes())
    with closing(sqlite3.connect(copy)) as db:
        db.execute("PRAGMA user_version = 999")
    refused = laurels("restore", str(copy), data_dir=tmp_path / "data")
    assert refused.returncode != 0
    assert "newer Laurels" in refused.stderr


def test_backup_to_a_stream_is_the_ledger(tmp_path: Path) -> None:
    data = tmp_path / "data"
    assert laurels("migrate", data_dir=data).returncode == 0
    with (tmp_path / "stream.db").open("wb") as out:
        arguments = [sys.executable, "-m", "laurels", "backup", "-"]
        subprocess.run(arguments, env=environment(data), stdout=out, check=True, timeout=60)
    assert laurels("restore", str(tmp_path / "stream.db"), data_dir=tmp_path / "copy").returncode == 0
    with RunningServer(tmp_path / "copy") as server:
        assert httpx.get(f"{server.url}{BOARD}").status_code == 200


def test_backups_are_made_at_an_interval_and_rotated(tmp_path: Path) -> None:
    data, folder = tmp_path / "data", tmp_path / "backups"
    assert laurels("migrate", data_dir=data).returncode == 0
    arguments = [sys.executable, "-m", "laurels", "backup", str(folder), "--every", "1s", "--keep", "2"]
    with subprocess.Popen(arguments, env=environment(data), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for _ in range(4):
            assert "0 events" in process.stdout.readline()
        process.terminate()
        process.wait(timeout=20)
    assert 2 <= len(list(folder.glob("*.db"))) <= 3
    wrong = laurels("backup", str(folder), "--every", "soon", data_dir=data)
    assert "30m" in wrong.stderr


def test_postgres_is_left_to_its_own_backups(tmp_path: Path) -> None:
    refused = laurels(
        "backup", str(tmp_path), data_dir=tmp_path, ledger="postgresql://127.0.0.1/x", index="redis://127.0.0.1:1"
    )
    assert refused.returncode != 0
    assert "pg_dump" in refused.stderr
