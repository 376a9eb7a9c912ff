"""Checks after faults: each acknowledged event is stored once, and the ranks follow from the events."""

import json
import time
from datetime import datetime
from typing import Any

from laurels.core.instants import to_us
from support.model import ModelBoard
from support.running import ADMIN_KEY, RunningServer, laurels
from support.shared import Deployment
from support.traffic import SEGMENTS, Traffic, subscore_of
from support.waiting import Patience

HEALED_WITHIN_S = 10


def check_healed(deployment: Deployment, boards: list[str]) -> None:
    """Check that soon after the last fault spools are empty, `verify` finds nothing and the index serves reads."""
    patience = Patience(HEALED_WITHIN_S)
    waiting = 1.0
    while waiting and not patience.is_over:
        waiting = sum(metric(server, "laurels_spool_events") for server in deployment.servers)
        time.sleep(0.05)
    assert waiting == 0
    found = ""
    while not patience.is_over:
        server = deployment.servers[0]
        check = laurels("verify", "--json", data_dir=deployment.folder, url=server.url, key=ADMIN_KEY)
        found = check.stdout + check.stderr
        # The first read of a ranking may be the one that detects that its Redis node was down.
        degraded = [uuid for uuid in boards if is_degraded(server, uuid)]
        if check.returncode == 0 and not degraded:
            assert json.loads(check.stdout.splitlines()[-1])["differences"] == 0
            return
        found += f" {degraded}"
        time.sleep(0.2)
    raise AssertionError(found)


def is_degraded(server: RunningServer, uuid: str) -> bool:
    with server.client() as client:
        return "Laurels-Degraded" in client.get(f"/api/v1/leaderboards/{uuid}/top").headers


def metric(server: RunningServer, name: str) -> float:
    with server.client() as client:
        lines = client.get("/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name + " "))


def check_events(server: RunningServer, traffic: Traffic) -> None:
    for board in traffic.boards:
        void = set().union(*traffic.moderator.voided.values()) if board.judged else set()
        hidden = traffic.moderator.hidden if board.judged else set()
        every = export_events(server, board.uuid)
        assert {event["eventId"] for event in every if event["voided"]} == void
        stored = every
        assert len({event["eventId"] for event in stored}) == len(stored)
        kept = {event["eventId"]: (event["userId"], event["score"]) for event in stored}
        acknowledged = {
            key: (user, score) for key, (uuid, user, score, _) in traffic.acknowledged.items() if uuid == board.uuid
        }
        assert {key: kept.get(key) for key in acknowledged} == acknowledged
        model = ModelBoard(board.rule, board.order, board.ties, board.capacity, sub_order=board.subscore)
        for event in stored:
            if event["eventId"] in void or event["userId"] in hidden:
                continue
            at = to_us(datetime.fromisoformat(event["timestamp"]))
            if board.subscore is not None:
                assert event["subscore"] == subscore_of(event["eventId"])
                model.subscores[event["eventId"]] = event["subscore"]
            model.submit(event["eventId"], event["userId"], event["score"], at)
        people = read_people(server)
        for user, person in people.items():
            # Others than the players of the traffic are in no circle.
            assert set(person["circles"]) == traffic.moderator.circles.get(user, set())
        for segment in ["global", *SEGMENTS] if board.segmented else ["global"]:
            with server.client() as client:
                path = f"/api/v1/leaderboards/{board.uuid}/top?limit=1000&segment={segment}"
                answer = client.get(path)
            assert "Laurels-Degraded" not in answer.headers
            shown = {entry["userId"]: (entry["score"], entry.get("subscore", 0)) for entry in answer.json()["users"]}
            inside = [player for player in model.ranked() if is_in(people.get(player.user), segment)]
            assert shown == {player.user: (player.score, player.subscore) for player in inside}


def read_people(server: RunningServer) -> dict[str, dict[str, Any]]:
    with server.client() as client:
        page = client.get("/api/v1/users?podId=default&limit=1000").json()
    return {user["userId"]: user for user in page["users"]}


def is_in(person: dict[str, Any] | None, segment: str) -> bool:
    kind, _, name = segment.partition(":")
    if kind == "global":
        return True
    return person is not None and (person["region"] == name if kind == "region" else name in person["circles"])


def export_events(server: RunningServer, board: str) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    with server.client() as client:
        params: dict[str, Any] = {"limit": 1000, "voided": True}
        while True:
            page = client.get(f"/api/v1/leaderboards/{board}/events", params=params).json()
            events += page["events"]
            if page["nextCursor"] is None:
                return events
            params["cursor"] = page["nextCursor"]
