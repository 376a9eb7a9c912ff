"""Moving a running instance from SQLite to PostgreSQL and Redis: nothing is lost or counted twice."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.running import ADMIN_KEY, RunningServer, laurels
from support.shared import deployed
from support.waiting import until

PAST = "2026-01-01T00:00:00Z"


@pytest.fixture(scope="module")
def target() -> Iterator[RunningServer]:
    with deployed(1) as deployment:
        yield deployment.servers[0]


def fill(client: httpx.Client) -> str:
    """Create boards of every kind, removed users, metadata, and a pod with a key; return the key."""
    rng = random.Random(3)
    assert client.post("/api/v1/pods", json={"podId": "chess", "name": "Chess"}).status_code == 201
    for version, state in (("1.0", "deprecated"), ("1.1", "active")):
        mappings = {"userId": "who.id", "score": "points", "UUID": "board"}
        schema = {"fieldMappings": mappings, "versionFrom": {"header": "v"}, "state": state}
        assert client.put(f"/api/v1/pods/chess/schemas/{version}", json=schema).status_code == 200
    key = client.post("/api/v1/pods/chess/keys", json={"role": "server", "label": "game"}).json()["key"]
    definitions: list[dict[str, Any]] = [
        {"UUID": "sums", "rule": "increment", "ties": "shared", "metadata": {"a": [1]}},
        {"UUID": "laps", "rule": "best", "order": "asc", "minScore": 0, "public": True},
        {"UUID": "newest", "rule": "latest", "capacity": 5},
        {"UUID": "ended", "rule": "best"},
        {"UUID": "archived", "rule": "increment"},
        # Its scores were accepted on the source, so none of them waits on the target.
        {"UUID": "kills", "rule": "best", "subscore": "asc", "operations": ["set"], "scoreTtlSeconds": 10**8},
    ]
    for definition in definitions:
        body = {"podId": "chess", "name": definition["UUID"]} | definition
        assert client.post("/api/v1/leaderboards", json=body).status_code == 201
    for board in ("default", *(definition["UUID"] for definition in definitions)):
        for _ in range(30):
            scores = [new_score(rng) for _ in range(40)]
            assert client.post(f"/api/v1/leaderboards/{board}/scores", json={"scores": scores}).status_code == 200
            if rng.random() < 0.3:
                client.delete(f"/api/v1/leaderboards/{board}/users/u{rng.randrange(60)}")
    client.patch("/api/v1/leaderboards/kills", json={"review": [{"name": "high", "scores": {"atLeast": 0}}]})
    client.patch("/api/v1/leaderboards/ended", json={"status": "ENDED"})
    client.delete("/api/v1/leaderboards/archived")
    return str(key)


def new_score(rng: random.Random) -> dict[str, Any]:
    score: dict[str, Any] = {"userId": f"u{rng.randrange(60)}", "score": rng.choice([1, 2, 0.1, 0.25])}
    if rng.random() < 0.5:
        score["timestamp"] = f"2026-02-{rng.randrange(1, 28):02}T10:00:00.{rng.randrange(10**6):06}Z"
    if rng.random() < 0.3:
        score["metadata"] = {"match": rng.randrange(5)}
    return score


def everything(client: httpx.Client) -> dict[str, Any]:
    """Return all that can be read from an instance, except for the times of receipt."""
    seen: dict[str, Any] = {}
    for schema in client.get("/api/v1/pods/chess/schemas").json()["schemas"]:
        seen[f"schema {schema['schemaVersion']}"] = schema["fieldMappings"], schema["versionFrom"], schema["state"]
    for board in ("default", "sums", "laps", "newest", "ended", "archived"):
        path = f"/api/v1/leaderboards/{board}"
        definition = client.get(path).json()
        # The end of a board and the state of its periods may differ between instances.
        own = {"createdAt", "periods"} if board in {"ended", "archived"} else {"createdAt"}
        seen[board] = {name: value for name, value in definition.items() if name not in own}
        seen[board + " top"] = client.get(path + "/top?limit=1000").json()["users"]
        histories = {}
        for number in range(60):
            answer = client.get(f"{path}/users/u{number}/history?limit=1000").json()
            for event in answer.get("events", ()):
                del event["receivedAt"]
            histories[number] = answer.get("events")
        seen[board + " history"] = histories
    seen["pods"] = [(pod["podId"], pod["name"]) for pod in client.get("/api/v1/pods").json()["pods"]]
    return seen


def move(source: RunningServer, target: RunningServer, *arguments: str) -> str:
    done = laurels(
        "import", *arguments, "--from", source.url, "--from-key", ADMIN_KEY,
        data_dir=target.data_dir, url=target.url, key=ADMIN_KEY,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stderr.splitlines()[-1].partition("Events: ")[2]


def test_import_from_a_running_server_copies_everything_once(tmp_path: Path, target: RunningServer) -> None:
    with RunningServer(tmp_path) as source, source.client() as old, target.client() as new:
        key = fill(old)
        events = 7 * 30 * 40
        assert move(source, target) == f"{events} accepted, 0 already there, 0 refused."
        assert everything(new) == everything(old)
        # Running the import again brings over later changes.
        late = {"score": 5, "eventId": "late", "timestamp": PAST}
        stamped = {"score": 7, "eventId": "stamped"}
        assert old.put("/api/v1/leaderboards/sums/users/u1", json=late).status_code == 200
        assert old.put("/api/v1/leaderboards/sums/users/u2", json=stamped).status_code == 200
        assert old.delete("/api/v1/leaderboards/laps/users/u3").status_code == 200
        closed = 2 * 30 * 40
        assert move(source, target) == f"2 accepted, {events - closed} already there, 0 refused."
        assert everything(new) == everything(old)
        assert move(source, target, "sums") == f"0 accepted, {30 * 40 + 2} already there, 0 refused."
        assert everything(new) == everything(old)
        # Keys still work, and repeated events that the old instance accepted are duplicates.
        with target.client(key) as game:
            again = game.put("/api/v1/leaderboards/sums/users/u2", json=stamped).json()
            assert again["duplicate"]
            assert game.get("/api/v1/leaderboards/sums/top").status_code == 200
        check = laurels("verify", data_dir=target.data_dir, url=target.url, key=ADMIN_KEY)
        assert check.returncode == 0, check.stdout


def test_board_is_moved_by_exporting_and_importing_a_file(tmp_path: Path, target: RunningServer) -> None:
    with RunningServer(tmp_path) as source, source.client() as old, target.client() as new:
        for client in (old, new):
            body = {"UUID": "by-file", "podId": "default", "name": "x", "rule": "increment"}
            client.post("/api/v1/leaderboards", json=body)
        rng = random.Random(9)
        scores = {"scores": [new_score(rng) for _ in range(500)]}
        old.post("/api/v1/leaderboards/by-file/scores", json=scores)
        for name in ("events.ndjson", "events.csv"):
            file = str(tmp_path / name)
            out = laurels("export", "by-file", file, data_dir=tmp_path, url=source.url, key=ADMIN_KEY)
            assert out.returncode == 0, out.stderr
            done = laurels("import", "by-file", file, data_dir=tmp_path, url=target.url, key=ADMIN_KEY)
            assert done.returncode == 0, done.stderr
        assert done.stderr.splitlines()[-1] == "0 accepted, 500 already there, 0 refused."
        paths = "/api/v1/leaderboards/by-file/top?limit=1000"
        assert old.get(paths).json()["users"] == new.get(paths).json()["users"]


def test_import_from_a_server_reports_invalid_arguments(tmp_path: Path, target: RunningServer) -> None:
    with RunningServer(tmp_path) as source:
        unknown = laurels(
            "import", "nothing", "--from", source.url, "--from-key", ADMIN_KEY,
            data_dir=tmp_path, url=target.url, key=ADMIN_KEY,
        )  # fmt: skip
        assert unknown.returncode == 3
        assert "no board 'nothing'" in unknown.stderr
        wrong = laurels("import", "--from", source.url, "--from-key", "wrong" * 5, data_dir=tmp_path, url=target.url)
        assert (wrong.returncode, "--from-key" in wrong.stderr) == (4, True)
        itself = laurels(
            "import", "--from", source.url, "--from-key", ADMIN_KEY, data_dir=tmp_path, url=source.url, key=ADMIN_KEY
        )
        assert (itself.returncode, "--url" in itself.stderr) == (2, True)
        bare = laurels("import", "--from", "127.0.0.1:1", data_dir=tmp_path, url=target.url, key=ADMIN_KEY)
        assert (bare.returncode, "http://" in bare.stderr) == (2, True)
        gone = laurels("import", "--from", "http://127.0.0.1:1", data_dir=tmp_path, url=target.url, key=ADMIN_KEY)
        assert (gone.returncode, "http://127.0.0.1:1 can't be reached" in gone.stderr) == (5, True)
    nameless = laurels("import", data_dir=tmp_path, url=target.url)
    assert nameless.returncode == 2
    assert "--from" in nameless.stderr


def test_import_copies_current_seasons_and_reports_past_ones(tmp_path: Path, target: RunningServer) -> None:
    body = {
        "UUID": "seasonal",
        "podId": "default",
        "name": "Seasonal",
        "rule": "increment",
        "graceSeconds": 0,
        "windows": [{"window": "year", "cron": "0 0 1 1 *", "timeZone": "Asia/Seoul"}, "all"],
        "rewards": [{"name": "cup", "prize": 1, "ranks": {"from": 1, "to": 1}}],
        "keepEventsDays": 400,
    }
    path = "/api/v1/leaderboards/seasonal"
    with RunningServer(tmp_path) as source, source.client() as old, target.client() as new:
        assert old.post("/api/v1/leaderboards", json=body).status_code == 201
        assert old.put(path + "/users/ada", json={"score": 5}).status_code == 200
        first = old.get(path).json()["periods"][0]["period"]
        assert old.post(f"{path}/periods/{first}/close").status_code == 200
        until(lambda: "FINAL" in old.get(path + "/periods").text, "the final ranks")
        assert old.put(path + "/users/ada", json={"score": 7}).status_code == 200
        for last in ([], ["--last"]):
            done = laurels(
                "import", "seasonal", "--from", source.url, "--from-key", ADMIN_KEY, *last,
                data_dir=target.data_dir, url=target.url, key=ADMIN_KEY,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
            assert "seasonal: 1 past periods stay on the source server" in done.stderr
            assert ("its rewards are not copied yet" in done.stderr) == (not last)
            assert bool(new.get(path).json()["rewards"]) == bool(last)
        moved = new.get(path).json()
        assert body.items() <= moved.items()
        assert new.get(path + "/top?window=all").json()["users"][0]["score"] == 12


def test_board_that_cannot_be_imported_does_not_stop_others(tmp_path: Path, target: RunningServer) -> None:
    boards: list[dict[str, Any]] = [
        {"UUID": "to-come", "startTime": "2100-01-01T00:00:00Z", "endTime": "2100-02-01T00:00:00Z", "minScore": 1},
        {"UUID": "clash", "rule": "best"},
        {"UUID": "after-them", "rule": "increment"},
    ]
    with RunningServer(tmp_path) as source, source.client() as old, target.client() as new:
        for board in boards:
            body = {"podId": "default", "name": board["UUID"]} | board
            assert old.post("/api/v1/leaderboards", json=body).status_code == 201
        other = {"UUID": "clash", "podId": "default", "name": "clash", "rule": "latest"}
        assert new.post("/api/v1/leaderboards", json=other).status_code == 201
        assert old.put("/api/v1/leaderboards/after-them/users/ada", json={"score": 3}).status_code == 200
        for _ in range(2):
            done = laurels(
                "import", "--from", source.url, "--from-key", ADMIN_KEY,
                data_dir=target.data_dir, url=target.url, key=ADMIN_KEY,
            )  # fmt: skip
            assert (done.returncode, "clash: " in done.stderr) == (1, True), done.stderr
            moved = new.get("/api/v1/leaderboards/to-come").json()
            assert (moved["status"], moved["startTime"], moved["minScore"]) == ("SCHEDULED", "2100-01-01T00:00:00Z", 1)
            assert new.get("/api/v1/leaderboards/after-them/top").json()["users"][0]["score"] == 3


@pytest.mark.parametrize("moved_before", [True, False], ids=["moved before its end", "moved after its end"])
def test_rewards_of_an_ended_board_are_not_granted_again_after_import(
    tmp_path: Path, target: RunningServer, moved_before: bool
) -> None:
    uuid = f"prizes-{moved_before}".lower()
    path = f"/api/v1/leaderboards/{uuid}"
    rewards = [{"name": "cup", "prize": 1, "ranks": {"from": 1, "to": 1}}]
    body = {"UUID": uuid, "podId": "default", "name": "Prizes", "graceSeconds": 0, "rewards": rewards}

    def move_it(*last: str) -> str:
        done = laurels(
            "import", uuid, "--from", source.url, "--from-key", ADMIN_KEY, *last,
            data_dir=target.data_dir, url=target.url, key=ADMIN_KEY,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stderr

    with RunningServer(tmp_path) as source, source.client() as old, target.client() as new:
        assert old.post("/api/v1/leaderboards", json=body).status_code == 201
        assert old.put(path + f"/users/{uuid}", json={"score": 5}).status_code == 200
        if moved_before:
            move_it("--last")
            assert new.get(path).json()["rewards"] == rewards
        assert old.patch(path, json={"status": "ENDED"}).status_code == 200
        until(lambda: "FINAL" in old.get(path + "/periods").text, "the final ranks")
        assert "its rewards stay on the source server" in move_it()
        until(lambda: "FINAL" in new.get(path + "/periods").text, "the final ranks here")
        assert new.get(path + "/top").json()["users"][0]["userId"] == uuid
        granted = [client.get(f"/api/v1/users/{uuid}/rewards?podId=default").json()["rewards"] for client in (old, new)]
        assert [len(each) for each in granted] == [1, 0]
