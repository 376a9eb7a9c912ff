"""Profiles, segments, moderation and erasure over HTTP: permissions and responses."""

import json
from typing import Any
from uuid import uuid4

import httpx
import pytest

from support.calls import NewBoard, problem
from support.running import RunningServer
from support.waiting import until

API = "/api/v1"
KINDS = ["global", "region", "circle"]


@pytest.fixture
def pod(api: httpx.Client) -> str:
    """Create a pod for one test, because users belong to a pod."""
    pod_id = f"pod-{uuid4()}"
    assert api.post(f"{API}/pods", json={"podId": pod_id, "name": pod_id}).status_code == 201
    return pod_id


@pytest.fixture
def board(new_board: NewBoard, pod: str) -> str:
    return f"{API}/leaderboards/" + new_board(podId=pod, segments=KINDS, rule="increment")


def client_of(server: RunningServer, api: httpx.Client, pod: str, role: str) -> httpx.Client:
    made = api.post(f"{API}/pods/{pod}/keys", json={"role": role})
    return server.client(key=made.json()["key"])


def users(answer: httpx.Response) -> list[str]:
    assert answer.status_code == 200, answer.text
    return [entry["userId"] for entry in answer.json()["users"]]


def test_profile_is_set_read_changed_and_shown_with_ranks(
    server: RunningServer, api: httpx.Client, pod: str, board: str
) -> None:
    with client_of(server, api, pod, "server") as game, client_of(server, api, pod, "client") as player:
        body = {
            "displayName": "Ada ♛",
            "avatarUrl": "https://example.com/ada.png",
            "region": "eu",
            "circles": ["red", "blue"],
            "attributes": {"class": "mage", "level": 7},
        }
        answer = game.put(f"{API}/users/ada", json=body)
        assert answer.status_code == 200, answer.text
        assert answer.json() == {"userId": "ada"} | body | {"circles": ["blue", "red"]}
        problem(player.get(f"{API}/users/ada"), 403, "player_token_required")
        assert game.get(f"{API}/users/ada").json() == answer.json() | {"hidden": []}
        problem(player.put(f"{API}/users/ada", json=body), 403, "role_forbidden")
        problem(game.get(f"{API}/users/nobody"), 404, "user_not_found", "userId")
        problem(api.get(f"{API}/users/ada"), 422, "missing_field", "podId")
        assert api.get(f"{API}/users/ada", params={"podId": pod}).json()["region"] == "eu"
        # The user does not exist in another pod.
        other = f"other-{uuid4()}"
        api.post("/api/v1/pods", json={"podId": other, "name": "Another pod"})
        problem(api.get(f"{API}/users/ada", params={"podId": other}), 404, "user_not_found", "userId")
        game.put(board + "/users/ada", json={"score": 3})
        game.put(board + "/users/bob", json={"score": 5, "region": "us"})
        top = game.get(board + "/top").json()["users"]
        assert [(entry["userId"], entry.get("displayName"), entry.get("avatarUrl")) for entry in top] == [
            ("bob", None, None),
            ("ada", "Ada ♛", "https://example.com/ada.png"),
        ]
        assert "displayName" not in top[0]
        assert users(game.get(board + "/top", params={"segment": "region:us"})) == ["bob"]
        rank = game.get(board + "/users/bob/rank", params={"segment": "region:us"}).json()
        assert (rank["segment"], rank["rank"], rank["totalUsers"]) == ("region:us", 1, 1)
        assert game.get(board + "/top").json()["segment"] == "global"
        assert users(game.get(board + "/top", params={"segment": "circle:red"})) == ["ada"]
        # A changed name shows at once, although the ranks stay the same.
        game.patch(f"{API}/users/ada", json={"displayName": "Countess"})
        assert game.get(board + "/top").json()["users"][1]["displayName"] == "Countess"
        assert game.get(f"{API}/users/ada").json()["circles"] == ["blue", "red"]
        around = game.get(board + "/users/bob/around").json()["users"]
        assert around[1]["displayName"] == "Countess"
        friends = game.post(board + "/ranks", json={"userIds": ["ada", "bob", "x"]}).json()
        assert [(each["displayName"], each["position"]) for each in friends["users"] if "displayName" in each] == [
            ("Countess", 2)
        ]
        assert game.delete(f"{API}/users/ada/circles/red").json()["circles"] == ["blue"]
        assert game.put(f"{API}/users/ada/circles/green").json()["circles"] == ["blue", "green"]
        assert users(game.get(board + "/top", params={"segment": "circle:red"})) == []
        assert users(game.get(board + "/top", params={"segment": "circle:green"})) == ["ada"]
        # PUT replaces the whole profile: fields that are not sent become empty.
        assert game.put(f"{API}/users/ada", json={}).json() == {
            "userId": "ada",
            "displayName": None,
            "avatarUrl": None,
            "region": None,
            "circles": [],
            "attributes": None,
        }
        assert users(game.get(board + "/top", params={"segment": "region:eu"})) == []


def test_entries_include_attributes_and_metadata_on_request(
    server: RunningServer, api: httpx.Client, pod: str, board: str
) -> None:
    with client_of(server, api, pod, "server") as game, client_of(server, api, pod, "client") as player:
        game.patch(f"{API}/users/ada", json={"attributes": {"class": "mage"}})
        game.put(board + "/users/ada", json={"score": 3, "metadata": {"car": "red"}, "eventId": "e1"})
        game.put(board + "/users/bob", json={"score": 2})
        both = {"include": "metadata,attributes"}
        expected = [({"car": "red"}, {"class": "mage"}), (None, None)]
        for path in ("/top", "/users/bob/around", "/range"):
            found = game.get(board + path, params=both).json()["users"]
            assert [(each["metadata"], each["attributes"]) for each in found] == expected, path
        friends = game.post(board + "/ranks", json={"userIds": ["bob", "ada"]}, params={"include": "metadata"}).json()
        assert [(each["metadata"], "attributes" in each) for each in friends["users"]] == [
            (expected[0][0], False),
            (None, False),
        ]
        assert game.get(board + "/search", params={"q": "ada"} | both).json()["users"][0]["attributes"] == {
            "class": "mage"
        }
        # No cache on the way may show it to others.
        assert game.get(board + "/top", params=both).headers["Cache-Control"] == "no-store"
        # The cached page follows the profile.
        game.patch(f"{API}/users/ada", json={"attributes": {"class": "thief"}})
        assert game.get(board + "/top", params=both).json()["users"][0]["attributes"] == {"class": "thief"}
        assert "metadata" not in game.get(board + "/top").json()["users"][0]
        # As for circles, strangers need a key.
        game.patch(board, json={"public": True})
        with server.client(None) as stranger:
            problem(stranger.get(board + "/top", params=both), 401, "key_required")
        # Keys that ship inside games see only what the board publishes.
        problem(player.get(board + "/top", params=both), 403, "role_forbidden", "include")
        problem(player.get(board + "/users/ada/around", params=both), 403, "role_forbidden", "include")
        game.patch(board, json={"publicFields": ["metadata"]})
        problem(player.get(board + "/top", params={"include": "metadata"}), 403, "role_forbidden", "include")
        game.patch(board, json={"publicFields": ["scoreMetadata"]})
        assert player.get(board + "/top", params={"include": "metadata"}).json()["users"][0]["metadata"] == {
            "car": "red"
        }
        problem(player.get(board + "/top", params={"include": "attributes"}), 403, "role_forbidden", "include")
        problem(game.get(board + "/top", params={"include": "rank"}), 422, "wrong_format", "include")
        too_large = {"attributes": {"a": "x" * 1100}}
        problem(game.patch(f"{API}/users/ada", json=too_large), 422, "metadata_too_large", "attributes")
        assert game.patch(f"{API}/users/ada", json={"attributes": None}).json()["attributes"] is None


@pytest.mark.parametrize(
    "name",
    [
        "Ada\u200b",
        "\u200dAda",
        "A\u200dda",
        "Ada\u202egnp.exe",
        "\u2066Ada",
        "Ada\ufeff",
        "A\u00adda",
        "Ada\n",
        "\u2028",
        "\u3164",
        "Ada\u2800",
        "\u00e9\u200d\u200d\u00e9",
    ],
)
def test_name_with_invisible_or_bidirectional_characters_is_refused(api: httpx.Client, pod: str, name: str) -> None:
    answer = api.put(f"{API}/users/ada", params={"podId": pod}, json={"displayName": name})
    problem(answer, 422, "wrong_format", "displayName")
    assert "invisible" in answer.json()["detail"]


@pytest.mark.parametrize(
    "name", ["Ada ♛", "👩\u200d🚀", "\u0645\u06cc\u200c\u062e", "क्\u200dष", "Zoë", "한국", "O'Neil"]
)
def test_name_in_any_script_or_with_joined_emoji_is_accepted(api: httpx.Client, pod: str, name: str) -> None:
    answer = api.put(f"{API}/users/ada", params={"podId": pod}, json={"displayName": name})
    assert (answer.status_code, answer.json()["displayName"]) == (200, name)


def test_batch_of_profiles_is_applied_completely_or_not_at_all(api: httpx.Client, pod: str) -> None:
    params = {"podId": pod}
    many = [{"userId": f"user-{number:04}", "displayName": f"#{number}", "region": "eu"} for number in range(1000)]
    assert api.post(f"{API}/users", params=params, json={"users": many}).json() == {"changed": 1000}
    twice = {"users": [{"userId": "new"}, {"userId": "new", "region": "us"}]}
    problem(api.post(f"{API}/users", params=params, json=twice), 422, "duplicate_user", "users")
    wrong = {"users": [{"userId": "new"}, {"userId": "newer", "region": "not a slug"}]}
    problem(api.post(f"{API}/users", params=params, json=wrong), 422, "wrong_format", "users[1].region")
    problem(
        api.post(f"{API}/users", params=params, json={"users": [*many, {"userId": "x"}]}), 422, "wrong_length", "users"
    )
    problem(api.get(f"{API}/users/new", params=params), 404, "user_not_found", "userId")
    circles = [f"c{number}" for number in range(51)]
    problem(api.put(f"{API}/users/x", params=params, json={"circles": circles}), 422, "wrong_length", "circles")
    assert api.put(f"{API}/users/x", params=params, json={"circles": circles[:50]}).status_code == 200
    problem(api.put(f"{API}/users/x/circles/c50", params=params), 409, "too_many_circles", "circles")
    problem(api.put(f"{API}/users/x/circles/a%20b", params=params), 422, "wrong_format", "circle")
    listed: list[str] = []
    query: dict[str, Any] = {**params, "limit": 400}
    while True:
        page = api.get(f"{API}/users", params=query).json()
        listed += [user["userId"] for user in page["users"]]
        if page["nextCursor"] is None:
            break
        query["cursor"] = page["nextCursor"]
    assert listed == [user["userId"] for user in many] + ["x"]


def test_hiding_a_user_is_audited_and_can_be_undone(
    server: RunningServer, api: httpx.Client, pod: str, board: str
) -> None:
    with client_of(server, api, pod, "server") as game, client_of(server, api, pod, "client") as player:
        for user, score in (("ada", 5), ("bob", 3), ("cyd", 1)):
            game.put(f"{board}/users/{user}", json={"score": score, "region": "eu"})
        problem(player.put(board + "/users/ada/hidden", json={}), 403, "role_forbidden")
        answer = game.put(board + "/users/ada/hidden", json={"shadow": True, "reason": "a bot"})
        assert answer.status_code == 200, answer.text
        act = answer.json()
        assert (act["kind"], act["userId"], act["reason"], act["detail"]) == (
            "hide",
            "ada",
            "a bot",
            {"hidden": "shadow"},
        )
        assert act["UUID"] == board.rpartition("/")[2]
        assert users(player.get(board + "/top")) == ["bob", "cyd"]
        assert users(game.get(board + "/top", params={"viewer": "bob"})) == ["bob", "cyd"]
        assert users(game.get(board + "/top", params={"viewer": "ada"})) == ["ada", "bob", "cyd"]
        # A client key can't find out who is shadow-banned.
        problem(player.get(board + "/top", params={"viewer": "ada"}), 403, "player_token_required")
        # The page for the shadow viewer was not cached for others.
        assert users(player.get(board + "/top")) == ["bob", "cyd"]
        assert game.get(board + "/users/ada/rank", params={"viewer": "ada"}).json()["rank"] == 1
        problem(player.get(board + "/users/ada/rank"), 404, "user_not_found", "userId")
        written = game.put(board + "/users/ada", json={"score": 1}).json()
        assert (written["score"], written["rank"], written["rankState"]) == (6, None, "hidden")
        everywhere = game.put(f"{API}/users/bob/hidden", json={}).json()
        assert (everywhere["UUID"], everywhere["reason"]) == (None, None)
        assert users(player.get(board + "/top")) == ["cyd"]
        assert game.get(f"{API}/users/bob").json()["hidden"] == [{"UUID": None, "shadow": False}]
        listed = game.get(f"{API}/users").json()["users"]
        assert {user["userId"]: user["hidden"] for user in listed if user["hidden"]} == {
            "ada": [{"UUID": act["UUID"], "shadow": True}],
            "bob": [{"UUID": None, "shadow": False}],
        }
        assert game.post(f"{API}/acts/{act['actId']}/restore", json={"reason": "a person"}).status_code == 200
        assert users(player.get(board + "/top")) == ["ada", "cyd"]
        assert game.delete(f"{API}/users/bob/hidden", params={"reason": "enough"}).status_code == 200
        assert users(player.get(board + "/top")) == ["ada", "bob", "cyd"]
        acts = game.get(f"{API}/acts").json()["acts"]
        assert [each["kind"] for each in acts] == ["show", "show", "hide", "hide"]
        assert acts[3]["undoneBy"] == acts[1]["actId"]
        one = game.get(f"{API}/acts", params={"limit": 1, "UUID": act["UUID"]}).json()
        assert [each["actId"] for each in one["acts"]] == [acts[0]["actId"]]
        rest = game.get(f"{API}/acts", params={"limit": 9, "cursor": one["nextCursor"]}).json()
        assert rest["acts"] == acts[1:]
        problem(game.get(f"{API}/acts/999999999"), 404, "act_not_found", "actId")
        problem(game.get(f"{API}/acts/nonsense"), 404, "act_not_found", "actId")
        problem(api.get(f"{API}/acts/{act['actId']}", params={"podId": "default"}), 404, "act_not_found", "actId")
        problem(player.get(f"{API}/acts"), 403, "role_forbidden")


def test_events_are_voided_by_id_and_by_match_and_restored(api: httpx.Client, pod: str, board: str) -> None:
    for number in range(6):
        metadata = {"source": "bot" if number % 2 else "web", "match": number // 3}
        body = {"score": 1 + number, "eventId": f"e{number}", "metadata": metadata}
        assert api.put(board + "/users/ada", json=body).status_code == 200

    def score() -> float | None:
        answer = api.get(board + "/users/ada/rank")
        return answer.json()["score"] if answer.status_code == 200 else None

    assert score() == 21
    void = api.post(board + "/void", json={"eventIds": ["e0", "nothing"], "reason": "wrong"})
    assert (void.status_code, void.json()["events"]) == (200, 1)
    assert score() == 20
    bots = api.post(board + "/void", json={"match": {"source": "bot", "match": 0}}, headers={"Idempotency-Key": "k"})
    assert (bots.json()["events"], score()) == (1, 18)
    again = api.post(board + "/void", json={"match": {"source": "bot", "match": 0}}, headers={"Idempotency-Key": "k"})
    assert again.json() == bots.json()
    assert [event["voided"] for event in api.get(board + "/users/ada/history").json()["events"]] == [
        False, False, False, False, True, True,
    ]  # fmt: skip
    wrong: list[dict[str, Any]] = [{}, {"eventIds": ["e1"], "match": {"source": "bot"}}]
    problem(api.post(board + "/void", json={"eventIds": ["e1"], "userId": "bob"}), 422, "nothing_chosen", "userId")
    many = {f"f{number}": 1 for number in range(9)}
    problem(api.post(board + "/void", json={"match": many}), 422, "wrong_length", "match")
    for body in wrong:
        problem(api.post(board + "/void", json=body), 422, "nothing_chosen", "eventIds")
    problem(api.post(board + "/void", json={"match": {"deep": {"a": 1}}}), 422, "wrong_type", "match[...]")
    # The body is optional.
    restored = api.post(f"{API}/acts/{bots.json()['actId']}/restore", params={"podId": pod})
    assert (restored.status_code, restored.json()["kind"], restored.json()["events"], score()) == (
        200,
        "restore",
        1,
        20,
    )
    every = api.post(board + "/void", json={"match": {"match": 0}, "userId": "ada"}).json()
    assert (every["events"], score()) == (2, 15)
    assert api.post(board + "/void", json={"match": {"match": 1}, "userId": "bob"}).json()["events"] == 0


def test_refreeze_keeps_the_previous_final_ranks(api: httpx.Client, new_board: NewBoard) -> None:
    uuid = new_board(rule="increment", windows=["daily", "all"], graceSeconds=0)
    board = f"{API}/leaderboards/{uuid}"
    api.put(board + "/users/cheat", json={"score": 9, "metadata": {"source": "bot"}})
    api.put(board + "/users/ada", json={"score": 5})
    problem(api.post(board + "/periods/current/refreeze", json={}), 409, "period_not_final")
    closed = api.post(board + "/periods/current/close").json()["period"]
    until(lambda: final(api, board, closed), "the final ranks")
    api.post(board + "/void", json={"match": {"source": "bot"}})
    assert users(api.get(board + "/top", params={"period": closed})) == ["cheat", "ada"]
    begun = api.post(f"{board}/periods/{closed}/refreeze", json={"reason": "a bot"})
    assert begun.status_code == 202, begun.text
    act = f"{API}/acts/{begun.json()['actId']}"
    until(lambda: api.get(act, params={"podId": "default"}).json()["doneAt"], "the refreeze")
    assert users(api.get(board + "/top", params={"period": closed})) == ["ada"]
    assert users(api.get(board + "/top", params={"period": f"{closed}@1"})) == ["cheat", "ada"]
    statuses = {period["period"]: period["status"] for period in api.get(board + "/periods").json()["periods"]}
    assert (statuses[closed], statuses[f"{closed}@1"]) == ("FINAL", "SUPERSEDED")


def final(api: httpx.Client, board: str, name: str) -> bool:
    periods = api.get(board + "/periods").json()["periods"]
    return any(period["period"] == name and period["status"] == "FINAL" for period in periods)


def test_user_data_can_be_exported_and_erased(server: RunningServer, api: httpx.Client, pod: str, board: str) -> None:
    with client_of(server, api, pod, "server") as game, client_of(server, api, pod, "client") as player:
        game.put(f"{API}/users/ada", json={"displayName": "Ada", "region": "eu"})
        game.put(board + "/users/ada", json={"score": 5, "eventId": "e1", "metadata": {"ip": "192.0.2.1"}})
        game.put(board + "/users/bob", json={"score": 3})
        problem(player.get(f"{API}/users/ada/export"), 403, "role_forbidden")
        answer = game.get(f"{API}/users/ada/export")
        assert answer.headers["Content-Type"] == "application/x-ndjson"
        lines = [json.loads(line) for line in answer.text.splitlines()]
        assert [line["kind"] for line in lines] == ["profile", "score", "event"]
        assert lines[2]["metadata"] == {"ip": "192.0.2.1"}
        problem(player.delete(f"{API}/users/ada"), 403, "role_forbidden")
        erased = game.delete(f"{API}/users/ada", params={"reason": "asked for it"})
        assert (erased.status_code, erased.json()["kind"], erased.json()["events"]) == (200, "erase", 1)
        assert '"ada"' not in erased.text
        assert game.get(f"{API}/users/ada/export").text == ""
        assert users(game.get(board + "/top")) == ["bob"]
        problem(game.get(f"{API}/users/ada"), 404, "user_not_found", "userId")
        late = {"score": 9, "timestamp": "2020-01-01T00:00:00Z", "eventId": "e9"}
        problem(game.put(board + "/users/ada", json=late), 409, "user_erased", "userId")
        assert '"ada"' not in game.get(board + "/events", params={"voided": True}).text
        assert game.put(board + "/users/ada", json={"score": 1}).json()["score"] == 1


def test_users_of_a_board_are_found_by_name(
    server: RunningServer, api: httpx.Client, pod: str, new_board: NewBoard
) -> None:
    board = new_board(public=True, segments=["global", "region"])
    names = {
        f"s1-{board}": f"Sooni {board}",
        f"s2-{board}": f"sooni {board} the second",
        f"s3-{board}": f"Sooni {board} 3",
    }
    users = [{"userId": user, "displayName": name, "region": "kr"} for user, name in names.items()]
    assert api.post(f"{API}/users", params={"podId": "default"}, json={"users": users}).status_code == 200
    scores = [{"userId": f"s{number}-{board}", "score": number} for number in (1, 2)]
    assert api.post(f"{API}/leaderboards/{board}/scores", json={"scores": scores}).status_code == 200
    search = f"{API}/leaderboards/{board}/search"

    def found(**query: str) -> list[tuple[str, int]]:
        answer = httpx.get(f"{api.base_url}{search}", params=query)
        assert answer.status_code == 200, answer.text
        return [(entry["userId"], entry["rank"]) for entry in answer.json()["users"]]

    regions = httpx.get(f"{api.base_url}{API}/leaderboards/{board}/regions").json()
    assert (regions["window"], regions["regions"]) == ("all", [{"segment": "region:kr", "totalUsers": 2}])
    # Circles list their members, so that strangers may not see them.
    circles = f"{API}/leaderboards/{board}/regions?kind=circle"
    problem(httpx.get(f"{api.base_url}{circles}"), 401, "key_required")
    assert api.get(circles).json()["regions"] == []
    # The third user has no score, so is not found.
    assert found(q=f"SOONI {board}") == [(f"s2-{board}", 1), (f"s1-{board}", 2)]
    problem(httpx.get(f"{api.base_url}{search}", params={"q": "x", "viewer": "x"}), 401, "key_required")
    # The board is public, but other pods must not learn which users are hidden on it.
    with client_of(server, api, pod, "client") as stranger:
        problem(stranger.get(search, params={"q": "x", "viewer": "x"}), 403, "role_forbidden")
        assert stranger.get(search, params={"q": "x"}).status_code == 200
    assert found(q=f"s1-{board}") == [(f"s1-{board}", 2)]
    assert found(q=f"sooni {board}", segment="region:kr", limit="1") == [(f"s2-{board}", 1)]
    assert found(q=f"sooni {board}", segment="region:eu") == []
    assert api.put(f"{API}/leaderboards/{board}/users/s2-{board}/hidden", json={}).status_code == 200
    assert found(q=f"sooni {board}") == [(f"s1-{board}", 1)]
    problem(api.get(search), 422, "missing_field", "q")
    problem(api.get(search, params={"q": "a\0"}), 422, "wrong_format", "q")
    problem(api.get(search, params={"q": "x", "limit": "51"}), 422, "out_of_range", "limit")
