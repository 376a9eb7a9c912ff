"""Event schemas over HTTP: permissions, refused schemas and trials."""

import uuid
from typing import Any

import httpx
import pytest

from support.pods import EVENT
from support.running import RunningServer

SCHEMA: dict[str, Any] = {
    "fieldMappings": {"userId": "playerId", "score": "points", "timestamp": "gameTime", "UUID": "leaderboardUuid"},
    "timestampFormat": "ISO_8601",
    "scoreType": "integer",
    "state": "active",
}


@pytest.fixture
def pod(api: httpx.Client) -> str:
    pod_id = f"pod-{uuid.uuid4().hex[:8]}"
    assert api.post("/api/v1/pods", json={"podId": pod_id, "name": pod_id}).status_code == 201
    return pod_id


def key_of(api: httpx.Client, pod_id: str, role: str) -> dict[str, str]:
    made = api.post(f"/api/v1/pods/{pod_id}/keys", json={"role": role}).json()
    return {"Authorization": f"Bearer {made['key']}"}


def problem(response: httpx.Response) -> tuple[int, str, str | None]:
    body = response.json()
    return response.status_code, body["code"], body.get("field")


def test_schema_is_created_read_changed_and_deleted(api: httpx.Client, pod: str) -> None:
    path = f"/api/v1/pods/{pod}/schemas"
    made = api.put(f"{path}/1.0", json=SCHEMA | {"schemaVersion": "1.0", "state": "draft"})
    assert made.status_code == 200, made.text
    body = made.json()
    assert (body["podId"], body["schemaVersion"], body["state"]) == (pod, "1.0", "draft")
    assert body["fieldMappings"] == SCHEMA["fieldMappings"] | {"region": None, "subscore": None}
    assert api.get(f"{path}/1.0").json() == body
    second = api.put(
        f"{path}/2.0", json=SCHEMA | {"versionFrom": {"header": "v"}, "eventIdFrom": {"field": "id"}}
    ).json()
    assert (second["versionFrom"], second["eventIdFrom"]) == (
        {"field": None, "header": "v"},
        {"field": "id", "header": None},
    )
    assert [each["schemaVersion"] for each in api.get(path).json()["schemas"]] == ["2.0", "1.0"]
    # A PUT without a state keeps the state.
    kept = {name: value for name, value in SCHEMA.items() if name != "state"}
    assert api.put(f"{path}/2.0", json=kept).json()["state"] == "active"
    for state in ("active", "deprecated", "retired"):
        changed = api.patch(f"{path}/1.0", json={"state": state}).json()
        assert changed["state"] == state
        assert changed["createdAt"] == body["createdAt"]
    assert problem(api.delete(f"{path}/2.0")) == (409, "schema_in_use", "state")
    assert api.delete(f"{path}/1.0").json()["schemaVersion"] == "1.0"
    assert problem(api.get(f"{path}/1.0")) == (404, "schema_not_found", "schemaVersion")
    assert problem(api.patch(f"{path}/1.0", json={"state": "active"})) == (404, "schema_not_found", "schemaVersion")
    assert problem(api.delete(f"{path}/1.0")) == (404, "schema_not_found", "schemaVersion")


@pytest.mark.parametrize(
    ("change", "code", "field"),
    [
        ({"fieldMappings": {"userId": "u", "score": "s"}}, "missing_field", "fieldMappings.UUID"),
        ({"fieldMappings": {"userId": "u", "score": "s", "UUID": "b..c"}}, "wrong_format", "fieldMappings.UUID"),
        ({"fieldMappings": {"userId": "u", "score": "u.s", "UUID": "b"}}, "invalid_schema", "fieldMappings.score"),
        (
            {"fieldMappings": {"userId": ".".join("abcdefghi"), "score": "s", "UUID": "b"}},
            "invalid_schema",
            "fieldMappings.userId",
        ),
        ({"timestampFormat": "EPOCH"}, "not_a_choice", "timestampFormat"),
        ({"scoreType": "text"}, "not_a_choice", "scoreType"),
        ({"state": "gone"}, "not_a_choice", "state"),
        ({"eventIdFrom": {}}, "invalid_schema", "eventIdFrom"),
        ({"eventIdFrom": {"header": "laurels-code"}}, "invalid_schema", "eventIdFrom"),
        ({"versionFrom": {"field": "a", "header": "b"}}, "invalid_schema", "versionFrom"),
        ({"schemaVersion": "3"}, "wrong_format", "schemaVersion"),
        ({"extra": 1}, "unknown_field", "extra"),
    ],
)
def test_invalid_schema_is_refused_with_code_and_field(
    api: httpx.Client, pod: str, change: dict[str, Any], code: str, field: str
) -> None:
    answer = api.put(f"/api/v1/pods/{pod}/schemas/1.0", json=SCHEMA | change)
    assert problem(answer) == (422, code, field)
    assert api.get(f"/api/v1/pods/{pod}/schemas").json() == {"schemas": []}


def test_schemas_are_accessible_only_within_their_pod(server: RunningServer, api: httpx.Client, pod: str) -> None:
    path = f"/api/v1/pods/{pod}/schemas"
    with httpx.Client(base_url=server.url) as stranger:
        own, reader = key_of(api, pod, "server"), key_of(api, pod, "client")
        other = key_of(api, "default", "server")
        assert stranger.put(f"{path}/1.0", json=SCHEMA, headers=own).status_code == 200
        assert len(stranger.get(path, headers=own).json()["schemas"]) == 1
        assert problem(stranger.get(path)) == (401, "key_required", None)
        assert problem(stranger.get(path, headers=reader)) == (403, "role_forbidden", None)
        for call in ("schemas", "schemas/1.0", "dead-letters", "dead-letters/0-1"):
            assert problem(stranger.get(f"/api/v1/pods/{pod}/{call}", headers=other)) == (404, "pod_not_found", "podId")
        assert problem(api.get("/api/v1/pods/nobody/schemas")) == (404, "pod_not_found", "podId")


def test_schema_trial_maps_an_event_without_storing_it(api: httpx.Client, pod: str) -> None:
    trials = f"/api/v1/pods/{pod}/schema-trials"
    assert problem(api.post(trials, json={"event": EVENT})) == (404, "schema_not_found", "podId")
    api.put(f"/api/v1/pods/{pod}/schemas/1.0", json=SCHEMA | {"state": "draft"})
    assert problem(api.post(trials, json={"event": EVENT})) == (404, "schema_not_found", "podId")
    tried = api.post(trials, json={"event": EVENT, "schemaVersion": "1.0"}).json()
    assert tried["schemaVersion"] == "1.0"
    assert tried["event"] == {
        "eventId": tried["event"]["eventId"],
        "eventType": "SCORE_UPDATE",
        "podId": pod,
        "UUID": "lb-uuid-123",
        "userId": "player-789",
        "score": 2500.0,
        "timestamp": "2024-01-15T10:30:00.000Z",
        "metadata": {"matchId": "match-abc-123", "gameMode": "ranked"},
    }
    assert tried["event"]["eventId"].startswith(f"pod-{pod}-score-updates/0/0@")
    assert tried["problem"]["code"] == "board_not_found"
    board = f"lb-{pod}"
    assert api.post("/api/v1/leaderboards", json={"UUID": board, "podId": pod, "name": "B"}).status_code == 201
    api.patch(f"/api/v1/pods/{pod}/schemas/1.0", json={"state": "active"})
    fine = api.post(trials, json={"event": EVENT | {"leaderboardUuid": board}}).json()
    assert fine["problem"] is None
    ahead = EVENT | {"leaderboardUuid": board, "gameTime": "2999-01-01T00:00:00Z"}
    assert api.post(trials, json={"event": ahead}).json()["problem"]["code"] == "timestamp_out_of_range"
    # For a key of this pod, boards of other pods do not exist.
    other = api.post(trials, json={"event": EVENT | {"leaderboardUuid": "default"}}, headers=key_of(api, pod, "server"))
    assert other.json()["problem"]["code"] == "board_not_found"
    bad = api.post(trials, json={"event": EVENT | {"points": "many"}})
    assert problem(bad) == (422, "invalid_score", "points")
    assert "points (score) must be a whole number" in bad.json()["detail"]
    assert api.get(f"/api/v1/leaderboards/{board}/top").json()["users"] == []


def test_schema_version_is_chosen_by_the_event_or_by_state(api: httpx.Client, pod: str) -> None:
    path, trials = f"/api/v1/pods/{pod}/schemas", f"/api/v1/pods/{pod}/schema-trials"

    def chosen(event: dict[str, Any], **headers: str) -> str:
        answer = api.post(trials, json={"event": event, "headers": headers}).json()
        return str(answer.get("schemaVersion") or answer["code"])

    api.put(f"{path}/1.0", json=SCHEMA)
    api.put(f"{path}/1.1", json=SCHEMA)
    api.put(f"{path}/2.0", json=SCHEMA | {"versionFrom": {"field": "meta.v"}})
    api.put(f"{path}/3", json=SCHEMA | {"versionFrom": {"header": "v"}})
    # The newest schema that needs no version in the event.
    assert chosen(EVENT) == "1.1"
    assert chosen(EVENT | {"meta": {"v": "2.0"}}) == "2.0"
    assert chosen(EVENT, v="3") == "3"
    assert chosen(EVENT | {"meta": {"v": "9"}}) == "schema_not_found"
    assert chosen(EVENT | {"meta": {"v": {"x": 1}}}) == "1.1"
    # An event may still name the version of this schema.
    assert chosen(EVENT | {"meta": {"v": "1.0"}}) == "1.0"
    # A draft does not affect the choice.
    api.put(f"{path}/4", json=SCHEMA | {"versionFrom": {"field": "gameMode"}, "state": "draft"})
    assert chosen(EVENT) == "1.1"
    assert chosen(EVENT | {"gameMode": "4"}) == "schema_not_found"
    api.patch(f"{path}/1.1", json={"state": "deprecated"})
    assert chosen(EVENT) == "1.0"
    api.patch(f"{path}/2.0", json={"state": "deprecated"})
    assert chosen(EVENT | {"meta": {"v": "2.0"}}) == "2.0"
    api.patch(f"{path}/2.0", json={"state": "retired"})
    assert chosen(EVENT | {"meta": {"v": "2.0"}}) == "schema_not_found"
    # A deprecated schema is used if there is no active one.
    api.patch(f"{path}/1.0", json={"state": "retired"})
    assert chosen(EVENT) == "1.1"
    for version in ("1.0", "1.1"):
        api.patch(f"{path}/{version}", json={"state": "retired"})
    assert chosen(EVENT) == "schema_mismatch"


def test_number_of_schemas_per_pod_is_limited(api: httpx.Client, pod: str) -> None:
    for number in range(100):
        assert api.put(f"/api/v1/pods/{pod}/schemas/{number}", json=SCHEMA).status_code == 200
    assert problem(api.put(f"/api/v1/pods/{pod}/schemas/100", json=SCHEMA)) == (409, "too_many_schemas", None)
    assert api.put(f"/api/v1/pods/{pod}/schemas/7", json=SCHEMA).status_code == 200


def test_dead_letter_calls_are_refused_without_kafka(api: httpx.Client, pod: str) -> None:
    path = f"/api/v1/pods/{pod}/dead-letters"
    assert problem(api.get(path)) == (409, "kafka_off", None)
    assert problem(api.get(f"{path}/0-1")) == (409, "kafka_off", None)
    assert problem(api.post(f"/api/v1/pods/{pod}/replays", json={"ids": ["0-1"]})) == (409, "kafka_off", None)
    assert problem(api.post(f"/api/v1/pods/{pod}/replays", json={"ids": ["x"]})) == (422, "wrong_format", "ids[0]")
