"""The commands for schemas, schema trials, dead letters and replays, on a server that ingests from Kafka."""

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException

from support.kafka import Game, shared_kafka
from support.running import RunningServer, environment, laurels
from support.stores import need
from support.waiting import until

SCHEMA: dict[str, Any] = {
    "schemaVersion": "1.0",
    "fieldMappings": {"userId": "playerId", "score": "points", "UUID": "leaderboardUuid"},
    "scoreType": "integer",
    "state": "active",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    settings = {
        "kafka": shared_kafka().servers,
        "kafka_topic_prefix": f"cli{time.time_ns()}.",
        "ingest": "1",
        "log_level": "warning",
    }
    with RunningServer(tmp_path_factory.mktemp("kafka-server"), **settings) as running:
        yield running


def run(server: RunningServer, *arguments: str, code: int = 0, stdin: str | None = None) -> str:
    done = laurels(
        *arguments, data_dir=server.data_dir, stdin=stdin, url=server.url, key="an-admin-key-for-tests-of-all-kinds"
    )
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stdout + done.stderr


def test_dead_letter_is_replayed_after_fix(server: RunningServer, tmp_path: Path) -> None:  # noqa: PLR0915 - one story
    prefix = server.settings["kafka_topic_prefix"]
    topic = f"{prefix}pod-arcade-score-updates"
    game = Game(shared_kafka().servers)
    run(server, "pods", "create", "arcade")
    with server.client() as client:
        board = {"UUID": "arcade-board", "podId": "arcade", "name": "Arcade", "rule": "increment"}
        assert client.post("/api/v1/leaderboards", json=board).status_code == 201

        file = tmp_path / "schema.json"
        file.write_text(json.dumps(SCHEMA | {"state": "draft"}), "utf-8")
        assert "draft" in run(server, "schemas", "put", "arcade", str(file))
        event = {"playerId": "ann", "points": 5, "leaderboardUuid": "arcade-board", "mode": "duo"}
        tried = json.loads(run(server, "schemas", "try", "arcade", "-", "--version", "1.0", stdin=json.dumps(event)))
        assert (tried["userId"], tried["score"], tried["metadata"]) == ("ann", 5.0, {"mode": "duo"})
        failed = run(server, "schemas", "try", "arcade", "-", "--version", "1.0", stdin='{"playerId": "ann"}', code=2)
        assert "points (score) is missing" in failed or "leaderboardUuid (UUID) is missing" in failed
        assert "active" in run(server, "schemas", "state", "arcade", "1.0", "active")
        shown = json.loads(run(server, "schemas", "show", "arcade", "1.0"))
        assert shown["fieldMappings"]["score"] == "points"
        # `schemas put` accepts the output of `schemas show`.
        run(server, "schemas", "put", "arcade", "-", stdin=json.dumps(shown))
        assert [each["state"] for each in json.loads(run(server, "schemas", "list", "arcade", "--json"))] == ["active"]
        assert "Retire it" in run(server, "schemas", "delete", "arcade", "1.0", code=3)

        game.make_topic(topic)
        bad = {"playerId": "bob", "pts": 7, "leaderboardUuid": "arcade-board"}
        game.write(topic, [event, bad, b"\xff"])
        until(lambda: client.get("/api/v1/leaderboards/arcade-board/top").json()["users"], "the score")

        def listed() -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = json.loads(run(server, "dead-letters", "list", "arcade", "--json"))
            return found if len(found) == 2 else []

        letters = until(listed, "the dead letters")
        codes = {each["code"]: each for each in letters}
        assert set(codes) == {"schema_mismatch", "invalid_json"}
        assert codes["schema_mismatch"]["field"] == "points"
        assert "invalid_json" in run(server, "dead-letters", "list", "arcade", "--code", "invalid_json")
        one = json.loads(run(server, "dead-letters", "show", "arcade", codes["schema_mismatch"]["id"]))
        assert json.loads(one["value"]) == bad
        other = json.loads(run(server, "dead-letters", "show", "arcade", codes["invalid_json"]["id"]))
        assert (other["value"], other["valueBase64"]) == (None, "/w==")
        assert "no dead letter" in run(server, "dead-letters", "show", "arcade", "0-999", code=3)

        fixed = SCHEMA | {"fieldMappings": SCHEMA["fieldMappings"] | {"score": "pts"}}
        run(server, "schemas", "put", "arcade", "-", stdin=json.dumps(fixed | {"state": "active"}))
        replayed = run(server, "dead-letters", "replay", "arcade", code=3)
        assert "2 tried: 1 counted, 0 counted before, 1 refused." in replayed
        assert "is not JSON" in replayed
        again = run(server, "dead-letters", "replay", "arcade", codes["schema_mismatch"]["id"])
        assert "1 tried: 0 counted, 1 counted before, 0 refused." in again
        users = client.get("/api/v1/leaderboards/arcade-board/top").json()["users"]
        assert {user["userId"]: user["score"] for user in users} == {"ann": 5.0, "bob": 7.0}
        left = json.loads(run(server, "dead-letters", "list", "arcade", "--json"))
        assert [each["code"] for each in left] == ["invalid_json"]
        assert len(json.loads(run(server, "dead-letters", "list", "arcade", "--replayed", "--json"))) == 2
        told = run(server, "dead-letters", "discard", "arcade", left[0]["id"], "--reason", "not an event")
        assert "1 discarded." in told
        assert json.loads(run(server, "dead-letters", "list", "arcade", "--json")) == []
        (gone,) = client.get(
            "/api/v1/pods/arcade/dead-letters", params={"replayed": True, "code": "invalid_json"}
        ).json()["deadLetters"]
        assert (gone["discardReason"], gone["replayedAt"], gone["discardedAt"] is None) == ("not an event", None, False)
        # Records of a pod that does not exist can be listed, and counted once it exists.
        stray = f"{prefix}pod-stray-score-updates"
        game.make_topic(stray)
        game.write(stray, [{"playerId": "eve", "points": 9, "leaderboardUuid": "stray-board"}])
        strays = "/api/v1/pods/stray/dead-letters"
        (letter,) = until(lambda: client.get(strays).json()["deadLetters"], "the stray record")
        assert "stray" in client.get(f"{strays}/{letter['id']}").json()["value"]
        run(server, "pods", "create", "stray")
        assert client.post("/api/v1/leaderboards", json=board | {"UUID": "stray-board", "podId": "stray"}).is_success
        file.write_text(json.dumps(SCHEMA | {"state": "active"}), "utf-8")
        run(server, "schemas", "put", "stray", str(file))
        assert "1 tried: 1 counted" in run(server, "dead-letters", "replay", "stray")
        run(server, "schemas", "state", "arcade", "1.0", "retired")
        run(server, "schemas", "delete", "arcade", "1.0")
        metrics = client.get("/metrics").text
        assert 'laurels_ingested_records_total{outcome="accepted",pod="arcade"} 1.0' in metrics
        assert 'laurels_dead_letters_total{code="schema_mismatch",pod="arcade"} 1.0' in metrics
        until(lambda: 'laurels_ingest_lag_records{pod="arcade"} 0.0' in client.get("/metrics").text, "the lag")
        assert client.get("/readyz").json()["dependencies"]["kafka"] == "ok"


def test_kcat_commands_of_the_kafka_guide_work(server: RunningServer, tmp_path: Path) -> None:
    """The commands are those of docs/guides/kafka.md, except for the address and the topic prefix of this test."""
    guide = (Path(__file__).parents[2] / "docs/guides/kafka.md").read_text("utf-8")
    schemas = re.findall(r"```json\n(.*?)```", guide, re.DOTALL)
    blocks = re.findall(r"```sh\n(.*?)```", guide, re.DOTALL)
    (define,) = [block for block in blocks if "laurels schemas put" in block]
    (kcat,) = [block for block in blocks if "kcat" in block]
    (tmp_path / "schema.json").write_text(schemas[0], "utf-8")
    (tmp_path / "next.json").write_text(schemas[1], "utf-8")
    prefix = server.settings["kafka_topic_prefix"]
    with server.client() as client:
        with contextlib.suppress(KafkaException):
            Game(shared_kafka().servers).make_topic(f"{prefix}pod-arcade-score-updates")
        script = define + kcat.partition("\n")[2].replace("127.0.0.1:9092", shared_kafka().servers).replace(
            "-t pod-", f"-t {prefix}pod-"
        )
        script = script.replace("curl -X", "curl -sS -X")
        reads = script.index("kcat -b", script.index("no JSON") + 20)
        shell(server, tmp_path, script[:reads] + "\n")
        run(server, "schemas", "put", "arcade", str(tmp_path / "next.json"))

        def counted() -> bool:
            users = client.get("/api/v1/leaderboards/arcade-board/top").json()["users"]
            return "kit" in {user["userId"] for user in users}

        until(counted, "the score")
        game = Game(shared_kafka().servers)
        for topic in ("score-updates-dlq", "score-changes"):
            until(partial(game.read, f"{prefix}pod-arcade-{topic}"), topic)
        shown = shell(server, tmp_path, script[reads:])
        assert "laurels-code=invalid_json" in shown
        assert 'kit {"id":' in shown


def shell(server: RunningServer, folder: Path, script: str) -> str:
    need("kcat")
    bin_folder = Path(sys.executable).parent
    settings = environment(server.data_dir, url=server.url, key="an-admin-key-for-tests-of-all-kinds")
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        env=settings | {"PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}"},
        cwd=folder,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("settings", "code", "says"),
    [
        ({}, 2, "LAURELS_KAFKA"),
        ({"kafka": "127.0.0.1:1"}, 2, "serve --ingest"),
        ({"kafka": "127.0.0.1"}, 2, "HOST:PORT"),
        ({"kafka": "127.0.0.1:abc"}, 2, "HOST:PORT"),
    ],
)
def test_ingest_reports_missing_or_invalid_settings(
    tmp_path: Path, settings: dict[str, str], code: int, says: str
) -> None:
    done = laurels("ingest", data_dir=tmp_path, **settings)
    assert done.returncode == code
    assert says in done.stderr


def test_serve_refuses_missing_or_invalid_kafka_settings(tmp_path: Path) -> None:
    done = laurels("serve", "--ingest", data_dir=tmp_path)
    assert (done.returncode, "LAURELS_KAFKA" in done.stderr) == (2, True)
    config = tmp_path / "client.properties"
    config.write_text("acks=1\n", "utf-8")
    done = laurels("serve", "--kafka", "127.0.0.1:1", "--kafka-config", str(config), data_dir=tmp_path)
    assert (done.returncode, "Laurels sets it" in done.stderr) == (2, True)
    config.write_text("security.protokoll=SSL\n", "utf-8")
    done = laurels("serve", "--kafka", "127.0.0.1:1", "--kafka-config", str(config), data_dir=tmp_path)
    assert (done.returncode, "security.protokoll" in done.stderr) == (2, True)
