"""The spool: while PostgreSQL is down, writes are kept on disk and answered 202; each counts once afterwards."""

import json
import time
from collections.abc import Iterator

import httpx
import pytest

from support.running import ADMIN_KEY, RunningServer, laurels
from support.shared import Deployment, deployed
from support.waiting import until, until_equal

BOARD = "/api/v1/leaderboards/default"


@pytest.fixture
def deployment() -> Iterator[Deployment]:
    with deployed(1) as running:
        running.servers[0].restart_with(spool=str(running.folder / "spool"))
        yield running


def score_of(client: httpx.Client, user: str) -> float | None:
    score: float | None = client.get(f"{BOARD}/users/{user}/rank").json().get("score")
    return score


def wait_for_score(client: httpx.Client, user: str, score: float) -> None:
    until_equal(lambda: score_of(client, user), score, 10)


def test_spooled_events_survive_a_kill_and_count_once(deployment: Deployment) -> None:
    (server,) = deployment.servers
    with server.client() as client:
        assert client.put(BOARD + "/users/ada", json={"score": 1, "eventId": "before"}).status_code == 200
        deployment.postgres.kill()
        for _ in range(2):
            taken = client.put(BOARD + "/users/ada", json={"score": 10, "eventId": "during"})
            assert (taken.status_code, taken.json()["rankState"]) == (202, "spooled")
            assert (taken.json()["score"], taken.json()["rank"], taken.json()["eventId"]) == (None, None, "during")
        batch = [{"userId": f"u{number}", "score": number, "eventId": f"b{number}"} for number in range(1, 6)]
        batch.append({"userId": "u9", "score": "odd", "eventId": "bad"})
        answer = client.post(BOARD + "/scores", json={"scores": batch})
        assert answer.status_code == 202
        assert [result["status"] for result in answer.json()["results"]] == ["spooled"] * 5 + ["refused"]
        short = client.post("/v1/scores", json={"user_id": "ada", "points": 100, "event_id": "short"})
        assert short.status_code == 202
        # The server is killed; the next one finds the spooled events while the ledger is still down.
        server.kill()
        server.start(wait=False)
        time.sleep(1.5)
        deployment.postgres.start()
        server.wait_ready()
        wait_for_score(client, "ada", 111)
        wait_for_score(client, "u5", 5)
        again = client.put(BOARD + "/users/ada", json={"score": 10, "eventId": "during"})
        assert (again.status_code, again.json()["duplicate"], again.json()["score"]) == (200, True, 111)
        until(lambda: "laurels_spool_events 0.0" in client.get("/metrics").text, "an empty spool")
    check = laurels("verify", data_dir=server.data_dir, url=server.url, key=ADMIN_KEY)
    assert check.returncode == 0, check.stdout


def test_first_of_two_events_with_the_same_id_is_kept(deployment: Deployment) -> None:
    (server,) = deployment.servers
    with server.client() as client:
        assert client.put(BOARD + "/users/ada", json={"score": 1, "eventId": "same"}).status_code == 200
        deployment.postgres.kill()
        assert client.put(BOARD + "/users/ada", json={"score": 5, "eventId": "same"}).status_code == 202
        assert client.put(BOARD + "/users/ada", json={"score": 7, "eventId": "other"}).status_code == 202
        deployment.postgres.start()
        wait_for_score(client, "ada", 8)
        events = client.get(BOARD + "/events").json()["events"]
        assert [(event["eventId"], event["score"]) for event in events] == [("same", 1), ("other", 7)]


def test_events_that_cannot_be_replayed_are_set_aside_without_delaying_others(deployment: Deployment) -> None:
    """The board no longer exists after PostgreSQL was restored."""
    (server,) = deployment.servers
    with server.client() as client:
        gone = {"UUID": "gone", "podId": "default", "name": "Gone"}
        assert client.post("/api/v1/leaderboards", json=gone).status_code == 201
        deployment.postgres.kill()
        for number in range(3):
            for board in ("gone", "default"):
                body = {"score": number + 1, "eventId": f"{board}-{number}"}
                answer = client.put(f"/api/v1/leaderboards/{board}/users/ada", json=body)
                assert answer.status_code == 202, answer.text
        server.kill()
        deployment.postgres.start()
        statements = ["DELETE FROM periods WHERE board_id = (SELECT id FROM boards WHERE uuid = 'gone')"]
        statements.append("DELETE FROM boards WHERE uuid = 'gone'")
        for statement in statements:
            deployment.postgres.sql(statement)
        server.start()
        wait_for_score(client, "ada", 6)
        until(lambda: "laurels_spool_events 0.0" in client.get("/metrics").text, "an empty spool")
        spool = client.get("/api/v1/spool").json()
        assert spool["waiting"] == 0
        assert [(each["eventId"], each["code"], each["userId"]) for each in spool["putAside"]] == [
            (f"gone-{number}", "board_not_found", "ada") for number in range(3)
        ]
        # Events that were set aside are still reported after a restart.
        server.restart_with()
        assert "laurels_spool_events_put_aside 3.0" in client.get("/metrics").text
        listed = laurels("spool", "list", "--json", data_dir=server.data_dir, url=server.url, key=ADMIN_KEY)
        assert [each["eventId"] for each in json.loads(listed.stdout)] == [f"gone-{number}" for number in range(3)]
        replayed = laurels("spool", "replay", data_dir=server.data_dir, url=server.url, key=ADMIN_KEY)
        assert (replayed.returncode, replayed.stdout) == (0, "Events to replay: 3.\n")
        # The board still does not exist.
        until(lambda: len(client.get("/api/v1/spool").json()["putAside"]) == 3, "the same three events")


def test_spool_request_to_a_server_without_a_spool_is_refused(server: RunningServer) -> None:
    with server.client() as client:
        answer = client.get("/api/v1/spool")
        assert (answer.status_code, answer.json()["code"]) == (409, "spool_off")
