"""Scheduled and manual resets on several servers, under concurrent writes and reads."""

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Self

import httpx
import pytest

from laurels.core.instants import to_us
from support.shared import Deployment, deployed
from support.traffic import await_boards

SERVERS = 3
WRITERS = 6
READERS = 3
GRACE_S = 3
BOARD = "/api/v1/leaderboards/rush"
AFTER_THE_MINUTE_S = 6


@pytest.fixture(scope="module")
def deployment() -> Iterator[Deployment]:
    with deployed(SERVERS, jobs_interval_ms="100") as deployment:
        yield deployment


class Crowd:
    """Concurrent writers and readers.

    User ids contain the minute of the event, so that a mixture of periods is visible.
    """

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        self.stopping = threading.Event()
        self.lock = threading.Lock()
        # event id → windows for which the event was too late
        self.acknowledged: dict[str, list[str]] = {}
        self.problems: list[str] = []
        self.reads = 0
        works = [self.write] * WRITERS + [self.read] * READERS
        self.threads = [threading.Thread(target=self.watched, args=(work, number)) for number, work in enumerate(works)]

    def watched(self, work: Any, number: int) -> None:
        try:
            with self.deployment.servers[number % SERVERS].client() as client:
                work(client, random.Random(number), number)
        except (AssertionError, httpx.HTTPError, ValueError, KeyError) as error:
            self.problems.append(f"{work.__name__}: {error!r}")

    def write(self, client: httpx.Client, rng: random.Random, number: int) -> None:
        count = 0
        while not self.stopping.is_set():
            items: list[dict[str, Any]] = []
            for _ in range(rng.choice([1, 1, 20])):
                count += 1
                at = datetime.now(UTC) - timedelta(seconds=rng.choice([0, 0, 0.5, 1]))
                minute = int(at.timestamp()) // 60
                item = {"eventId": f"e-{number}-{count}", "score": rng.randrange(1, 5)}
                if rng.random() < 0.7:
                    items.append(item | {"userId": f"m{minute}-{rng.randrange(30)}", "timestamp": at.isoformat()})
                else:
                    items.append(item | {"userId": f"now-{rng.randrange(30)}"})
            answer = client.post(BOARD + "/scores", json={"scores": items})
            assert answer.status_code == 200, answer.text
            with self.lock:
                for result in answer.json()["results"]:
                    assert result["status"] == "accepted", result
                    self.acknowledged[result["eventId"]] = result["lateWindows"]

    def read(self, client: httpx.Client, rng: random.Random, number: int) -> None:
        """Read continuously: the old period, then the new one, never a mixture."""
        del rng, number
        last = 0
        while not self.stopping.is_set():
            answer = client.get(BOARD + "/top", params={"window": "minute", "limit": 1000})
            assert answer.status_code == 200, answer.text
            minutes = {
                int(user["userId"][1:].split("-")[0]) for user in answer.json()["users"] if user["userId"][0] == "m"
            }
            self.reads += 1
            if len(minutes) > 1:
                self.problems.append(f"a mixture: {minutes}")
            for minute in minutes:
                if minute < last:
                    self.problems.append(f"back from {last} to {minute}")
                last = minute

    def __enter__(self) -> Self:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        for thread in self.threads:
            thread.join()


def test_each_event_counts_in_exactly_the_period_of_its_timestamp(deployment: Deployment) -> None:
    with deployment.servers[0].client() as client:
        body = {
            "UUID": "rush",
            "podId": "default",
            "name": "Rush",
            "rule": "increment",
            "graceSeconds": GRACE_S,
            "windows": [
                {"window": "minute", "cron": "* * * * *", "timeZone": "Asia/Kathmandu"},
                {"window": "hand", "cron": "0 0 1 1 *"},
                "all",
            ],
        }
        assert client.post("/api/v1/leaderboards", json=body).status_code == 201
        await_boards(deployment.servers, ["rush"])
        with Crowd(deployment) as crowd:
            closed = close_by_hand_until_a_minute_is_over(client)
        assert crowd.problems == []
        assert (closed > 1, crowd.reads > 100, len(crowd.acknowledged) > 1000) == (True, True, True)
        time.sleep(GRACE_S + 2)
        check(client, crowd)


def close_by_hand_until_a_minute_is_over(client: httpx.Client) -> int:
    """Close the period every few seconds until some seconds after a scheduled reset; return the number of closes."""
    end = (int(time.time() + 6) // 60 + 1) * 60 + AFTER_THE_MINUTE_S
    closed = 0
    while time.time() < end:
        time.sleep(2.5)
        periods = client.get(BOARD).json()["periods"]
        (current,) = [period["period"] for period in periods if period["window"] == "hand"]
        answer = client.post(f"{BOARD}/periods/{current}/close")
        assert answer.status_code in {200, 409}, answer.text
        closed += answer.status_code == 200
    return closed


def check(client: httpx.Client, crowd: Crowd) -> None:
    events: dict[str, dict[str, Any]] = {}
    asked: dict[str, Any] = {"limit": 1000}
    while True:
        page = client.get(BOARD + "/events", params=asked).json()
        for event in page["events"]:
            assert event["eventId"] not in events
            events[event["eventId"]] = event
        if page["nextCursor"] is None:
            break
        asked["cursor"] = page["nextCursor"]
    assert set(events) == set(crowd.acknowledged)
    for window in ("minute", "hand", "all"):
        periods = client.get(BOARD + "/periods", params={"window": window, "limit": 1000}).json()["periods"]
        counted: Counter[str] = Counter()
        for period in periods:
            start, end = period["startTime"], period["endTime"]
            mine = [
                event
                for event in events.values()
                if (start is None or instant(event["timestamp"]) >= instant(start))
                and (end is None or instant(event["timestamp"]) < instant(end))
                and window not in crowd.acknowledged[event["eventId"]]
            ]
            counted.update(event["eventId"] for event in mine)
            expected: Counter[str] = Counter()
            for event in mine:
                expected[event["userId"]] += event["score"]
            answer = client.get(BOARD + "/top", params={"period": period["period"], "limit": 1000}).json()
            assert {user["userId"]: user["score"] for user in answer["users"]} == expected, period
        late = [event_id for event_id, windows in crowd.acknowledged.items() if window in windows]
        # No event is lost, and none is in two periods.
        assert set(counted.values()) <= {1}
        assert set(counted) | set(late) == set(events)
        assert len(late) < len(events) / 10
        if window != "all":
            assert sum(period["status"] == "FINAL" for period in periods) >= 1
    lines = client.get("/api/v1/verify").text.splitlines()
    assert '"differences":0' in lines[-1].replace(" ", ""), lines


def instant(text: str) -> int:
    return to_us(datetime.fromisoformat(text))
