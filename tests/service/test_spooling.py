"""Writes that PostgreSQL could not take are kept on the disk, answered 202, and counted once when it is back."""

import time
from collections.abc import Iterator

import httpx
import pytest

from support.running import ADMIN_KEY, laurels
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


def test_events_wait_on_the_disk_and_count_once(deployment: Deployment) -> None:
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
        # The server dies with them; the next one finds them, with the ledger still away for a while.
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


def test_of_two_with_one_id_the_first_stays(deployment: Deployment) -> None:
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
