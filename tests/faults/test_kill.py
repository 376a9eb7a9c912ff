"""The server is killed with SIGKILL at random moments while a client writes without pause.

At the end every acknowledged event is in the ledger once, the totals are exact, and `verify` finds no differences.
"""

import json
import os
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.running import ADMIN_KEY, PLAIN, RunningServer, laurels

KILLS = 50
WRITERS = 4
USERS = 20


class Writer(threading.Thread):
    """A client that writes single scores and batches, and repeats unanswered ones with the same event ids."""

    def __init__(self, url: str, name: str, seed: int, stop: threading.Event) -> None:
        super().__init__(name=name)
        self.acknowledged: dict[str, tuple[str, int]] = {}
        self.problems: list[str] = []
        self._url = url
        self._rng = random.Random(seed)
        self._stopping = stop
        self._number = 0

    def run(self) -> None:
        with httpx.Client(
            base_url=self._url, headers={"Authorization": f"Bearer {ADMIN_KEY}"}, timeout=10, verify=PLAIN
        ) as client:
            while not self._stopping.is_set():
                events = [self._new_event() for _ in range(self._rng.choice([1, 1, 1, 20]))]
                self._send_until_answered(client, events)

    def _new_event(self) -> dict[str, Any]:
        self._number += 1
        user = f"user-{self._rng.randrange(USERS)}"
        return {"userId": user, "score": self._rng.randrange(1, 10), "eventId": f"{self.name}-{self._number}"}

    def _send_until_answered(self, client: httpx.Client, events: list[dict[str, Any]]) -> None:
        while True:
            try:
                response = self._send(client, events)
            except httpx.TransportError:
                response = None
            if response is not None and response.status_code == 200:
                break
            if response is not None and response.status_code != 503:
                self.problems.append(response.text)
                return
            if self._stopping.is_set():
                return
            time.sleep(0.01)
        results = response.json().get("results", [])
        self.problems += [str(result) for result in results if result["status"] == "refused"]
        for event in events:
            self.acknowledged[event["eventId"]] = (event["userId"], event["score"])

    def _send(self, client: httpx.Client, events: list[dict[str, Any]]) -> httpx.Response:
        board = "/api/v1/leaderboards/default"
        if len(events) > 1:
            return client.post(board + "/scores", json={"scores": events})
        (event,) = events
        body = {"score": event["score"], "eventId": event["eventId"]}
        return client.put(f"{board}/users/{event['userId']}", json=body)


@contextmanager
def writing(url: str, seed: int) -> Iterator[list[Writer]]:
    stop = threading.Event()
    writers = [Writer(url, f"writer-{number}", seed + number, stop) for number in range(WRITERS)]
    for writer in writers:
        writer.start()
    try:
        yield writers
    finally:
        stop.set()
        for writer in writers:
            writer.join()


@pytest.mark.timeout(900)
def test_acknowledged_events_survive_kills_and_count_once(tmp_path: Path) -> None:
    seed = int(os.environ.get("LAURELS_TEST_SEED", random.randrange(10**6)))
    print(f"seed: LAURELS_TEST_SEED={seed}")
    rng = random.Random(seed)
    server = RunningServer(tmp_path)
    server.start()
    try:
        with writing(server.url, seed) as writers:
            for _ in range(KILLS):
                # Kill the server while it loads, in the middle of a commit, or later.
                time.sleep(rng.choice([0.0, 0.05, rng.uniform(0, 0.6)]))
                server.kill()
                server.start(wait=rng.random() < 0.8)
            server.wait_ready()
            time.sleep(0.5)
        acknowledged = {key: value for writer in writers for key, value in writer.acknowledged.items()}
        assert [problem for writer in writers for problem in writer.problems] == []
        print(f"{len(acknowledged)} events acknowledged through {KILLS} kills")
        assert len(acknowledged) > 10 * KILLS
        stored = export_events(server)
    finally:
        server.kill()
    assert len(stored) == len({event["eventId"] for event in stored})
    kept = {event["eventId"]: (event["userId"], event["score"]) for event in stored}
    assert {key: kept.get(key) for key in acknowledged} == acknowledged
    check = laurels("verify", "--json", data_dir=tmp_path)
    assert check.returncode == 0, check.stdout + check.stderr
    assert json.loads(check.stdout)["differences"] == 0
    check_totals(tmp_path, stored)


def export_events(server: RunningServer) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    with server.client() as client:
        params: dict[str, Any] = {"limit": 1000}
        while True:
            page = client.get("/api/v1/leaderboards/default/events", params=params).json()
            events += page["events"]
            if page["nextCursor"] is None:
                return events
            params["cursor"] = page["nextCursor"]


def check_totals(data_dir: Path, stored: list[dict[str, Any]]) -> None:
    totals: dict[str, int] = {}
    for event in stored:
        totals[event["userId"]] = totals.get(event["userId"], 0) + event["score"]
    top = json.loads(laurels("top", "--limit", "1000", "--json", data_dir=data_dir).stdout)
    assert {entry["userId"]: entry["score"] for entry in top} == totals


@pytest.mark.timeout(300)
def test_graceful_stop_under_load_loses_no_events(tmp_path: Path) -> None:
    server = RunningServer(tmp_path)
    server.start()
    try:
        with writing(server.url, seed=1) as writers:
            for _ in range(3):
                time.sleep(0.5)
                assert server.terminate() == 0
                server.start()
        assert [problem for writer in writers for problem in writer.problems] == []
        stored = export_events(server)
    finally:
        server.kill()
    kept = {event["eventId"]: (event["userId"], event["score"]) for event in stored}
    for writer in writers:
        assert {key: kept.get(key) for key in writer.acknowledged} == writer.acknowledged
    check_totals(tmp_path, stored)
