"""The life cycle of a board: create, read, change, end, archive; and calls that clients can retry."""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import httpx

from support.both_stores import api, new_board, server
from support.calls import NewBoard, problem
from support.running import RunningServer

__all__ = ["api", "new_board", "server"]

HOUR = timedelta(hours=1)


def test_created_board_is_read_back_unchanged(api: httpx.Client) -> None:
    body = {
        "UUID": f"race-{uuid4()}",
        "podId": "default",
        "name": "Lap times 🏁",
        "rule": "best",
        "order": "asc",
        "ties": "shared",
        "capacity": 100,
        "windows": ["all"],
        "segments": ["global"],
        "startTime": "2026-01-01T00:00:00Z",
        "endTime": "2999-01-01T00:00:00.123456Z",
        "minScore": 10,
        "maxScore": 999.5,
        "public": True,
        "metadata": {"track": {"name": "Monza"}, "laps": [1, 2]},
    }
    made = api.post("/api/v1/leaderboards", json=body)
    assert made.status_code == 201
    board = made.json()
    assert body.items() <= board.items()
    assert (board["status"], board["totalUsers"]) == ("ACTIVE", 0)
    whole = {
        "window": "all",
        "period": "all",
        "status": "OPEN",
        "startTime": None,
        "endTime": body["endTime"],
        "nextReset": body["endTime"],
        "totalUsers": None,
    }
    assert board["periods"] == [whole]
    assert api.get(f"/api/v1/leaderboards/{board['UUID']}").json() == board
    assert api.get(f"/api/v1/leaderboards/{board['UUID']}/periods").json()["periods"] == [whole]
    assert api.post("/api/v1/leaderboards", json=body).json() == board
    problem(api.post("/api/v1/leaderboards", json=body | {"rule": "latest"}), 409, "board_exists", "UUID")


def test_idempotency_key_creates_a_board_without_uuid_only_once(api: httpx.Client) -> None:
    body, headers = {"podId": "default", "name": "Unnamed"}, {"Idempotency-Key": f"k-{uuid4()}"}
    once = api.post("/api/v1/leaderboards", json=body, headers=headers).json()["UUID"]
    assert api.post("/api/v1/leaderboards", json=body, headers=headers).json()["UUID"] == once
    assert api.post("/api/v1/leaderboards", json=body).json()["UUID"] != once
    problem(
        api.post("/api/v1/leaderboards", json=body | {"ties": "latest"}, headers=headers),
        409,
        "board_exists",
        "Idempotency-Key",
    )


def test_idempotency_key_creates_an_api_key_only_once(api: httpx.Client) -> None:
    headers = {"Idempotency-Key": f"k-{uuid4()}"}
    assert api.post("/api/v1/pods/default/keys", json={"role": "client"}, headers=headers).status_code == 201
    problem(api.post("/api/v1/pods/default/keys", json={"role": "client"}, headers=headers), 409, "key_exists")


def test_patch_changes_only_the_fields_that_are_sent(api: httpx.Client, new_board: NewBoard) -> None:
    board = f"/api/v1/leaderboards/{new_board(capacity=5, minScore=1, metadata={'a': 1})}"
    before = api.get(board).json()
    changed = api.patch(board, json={"name": "New", "minScore": None, "maxScore": 9, "public": True}).json()
    assert changed == before | {"name": "New", "minScore": None, "maxScore": 9, "public": True}
    assert api.patch(board, json={}).json() == changed
    assert api.get(board).json() == changed
    kept = {"rule": "best", "order": "desc", "ties": "earliest", "windows": ["all"], "segments": ["global"]}
    assert api.patch(board, json=kept).json() == changed
    for field, other in {
        "rule": "latest",
        "order": "asc",
        "ties": "shared",
        "windows": ["daily"],
    }.items():
        problem(api.patch(board, json={field: other}), 422, "immutable_field", field)
    problem(api.patch(board, json={"podId": "other"}), 422, "unknown_field", "podId")
    problem(api.patch(board, json={"maxScore": 0, "minScore": 1}), 422, "bounds_reversed", "maxScore")


def test_changed_capacity_changes_the_number_of_ranked_users(api: httpx.Client, new_board: NewBoard) -> None:
    board = f"/api/v1/leaderboards/{new_board(capacity=3)}"
    scores = [{"userId": f"u{number:03}", "score": number} for number in range(100)]
    results = api.post(board + "/scores", json={"scores": scores}).json()["results"]
    assert [result["rank"] for result in results] == [None] * 97 + [3, 2, 1]
    assert results[0]["rankState"] == "outside_capacity"
    assert api.get(board).json()["totalUsers"] == 3
    assert api.patch(board, json={"capacity": 50}).json()["totalUsers"] == 50
    users = api.get(board + "/top?limit=1000").json()["users"]
    assert [user["score"] for user in users] == list(range(99, 49, -1))
    assert api.patch(board, json={"capacity": None}).json()["totalUsers"] == 100
    assert api.patch(board, json={"capacity": 2}).json()["totalUsers"] == 2


def test_capacity_of_a_window_is_shown_and_changed(api: httpx.Client, new_board: NewBoard) -> None:
    windows = ["all", {"window": "weekly", "capacity": 2}]
    board = f"/api/v1/leaderboards/{new_board(capacity=3, windows=windows)}"
    assert api.get(board).json()["windows"] == windows
    scores = [{"userId": f"u{number}", "score": number} for number in range(5)]
    api.post(board + "/scores", json={"scores": scores})
    for sent, size in ((2, 2), (4, 4), (None, 3)):
        changed = api.patch(board, json={"windows": ["all", {"window": "weekly", "capacity": sent}]}).json()
        assert changed["windows"] == ["all", "weekly" if sent is None else {"window": "weekly", "capacity": sent}]
        assert api.get(f"{board}/top?window=weekly").json()["totalUsers"] == size
        assert changed["totalUsers"] == 3
    other = {"windows": ["all", {"window": "weekly", "startDay": "friday"}]}
    problem(api.patch(board, json=other), 422, "immutable_field", "windows")
    wrong = {"windows": ["all", {"window": "weekly", "capacity": 0}]}
    problem(api.patch(board, json=wrong), 422, "out_of_range", "windows[1].capacity")


def test_user_outside_capacity_keeps_the_full_score(api: httpx.Client, new_board: NewBoard) -> None:
    board = f"/api/v1/leaderboards/{new_board(capacity=1, rule='increment')}"
    api.post(board + "/scores", json={"scores": [{"userId": f"u{n}", "score": 10 + n} for n in range(60)]})
    back = api.put(board + "/users/u0", json={"score": 100}).json()
    assert (back["score"], back["previousScore"], back["rank"], back["previousRank"]) == (110, 10, 1, None)


def test_board_status_only_moves_forward(api: httpx.Client, new_board: NewBoard) -> None:
    now = datetime.now(UTC)
    board = f"/api/v1/leaderboards/{new_board(startTime=(now + HOUR).isoformat())}"
    assert api.get(board).json()["status"] == "SCHEDULED"
    assert api.patch(board, json={"status": "SCHEDULED"}).json()["status"] == "SCHEDULED"
    assert api.patch(board, json={"status": "ACTIVE"}).json()["status"] == "ACTIVE"
    assert api.put(board + "/users/ada", json={"score": 1}).status_code == 200
    problem(api.patch(board, json={"startTime": (now + HOUR).isoformat()}), 409, "status_backwards")
    problem(api.patch(board, json={"status": "SCHEDULED"}), 409, "status_backwards")
    ended = api.patch(board, json={"status": "ENDED"}).json()
    assert (ended["status"], ended["endTime"] is not None) == ("ENDED", True)
    problem(api.put(board + "/users/ada", json={"score": 1}), 409, "board_ended")
    problem(api.patch(board, json={"status": "ACTIVE"}), 409, "status_backwards")
    problem(api.patch(board, json={"endTime": None}), 409, "status_backwards")
    assert api.delete(board).json()["status"] == "ARCHIVED"
    assert api.delete(board).json()["status"] == "ARCHIVED"
    problem(api.patch(board, json={"name": "Again"}), 409, "board_archived")
    problem(api.delete(board + "/users/ada"), 409, "board_archived")
    assert api.get(board + "/top").json()["totalUsers"] == 1


def test_board_ended_before_its_start_can_be_changed_and_archived(api: httpx.Client, new_board: NewBoard) -> None:
    board = f"/api/v1/leaderboards/{new_board(startTime='2999-01-01T00:00:00Z')}"
    assert api.patch(board, json={"status": "ENDED"}).json()["status"] == "ENDED"
    assert api.patch(board, json={"name": "Never mind"}).json()["name"] == "Never mind"
    assert api.delete(board).json()["status"] == "ARCHIVED"


def test_concurrent_requests_create_the_same_board_once(server: RunningServer) -> None:
    body = {"UUID": f"board-{uuid4()}", "podId": "default", "name": "A board"}

    def create() -> tuple[int, str]:
        with server.client() as client:
            response = client.post("/api/v1/leaderboards", json=body)
            return response.status_code, response.json()["createdAt"]

    with ThreadPoolExecutor(8) as pool:
        answers = {future.result() for future in [pool.submit(create) for _ in range(16)]}
    assert len(answers) == 1
    assert answers.pop()[0] == 201


def test_archived_boards_are_listed_only_on_request(api: httpx.Client, new_board: NewBoard) -> None:
    board = new_board()
    api.delete(f"/api/v1/leaderboards/{board}")

    def listed(query: str) -> set[str]:
        page = api.get(f"/api/v1/leaderboards?limit=1000{query}").json()
        return {each["UUID"] for each in page["leaderboards"]}

    assert board not in listed("")
    assert board in listed("&status=ARCHIVED")
    assert board not in listed("&status=ACTIVE")


def test_only_an_administrator_deletes_a_board_for_good(
    server: RunningServer, api: httpx.Client, new_board: NewBoard
) -> None:
    uuid = new_board(rule="increment")
    url = f"/api/v1/leaderboards/{uuid}"
    api.put(f"{url}/users/ada", json={"score": 5})
    key = api.post("/api/v1/pods/default/keys", json={"role": "server"}).json()["key"]
    with server.client(key) as game:
        problem(game.post(f"{url}/deletion", json={"confirm": uuid}), 403, "role_forbidden")
    problem(api.post(f"{url}/deletion", json={"confirm": "default"}), 422, "not_confirmed", "confirm")
    assert api.get(url).status_code == 200
    gone = api.post(f"{url}/deletion", json={"confirm": uuid})
    assert (gone.status_code, gone.json()["UUID"]) == (202, uuid)
    problem(api.get(url), 404, "board_not_found", "UUID")
    problem(api.put(f"{url}/users/ada", json={"score": 5}), 404, "board_not_found", "UUID")
    entry = api.get("/api/v1/audit", params={"UUID": uuid, "limit": 1}).json()["entries"][0]
    assert (entry["UUID"], entry["status"]) == (uuid, 202)
    assert entry["before"]["rule"] == "increment"
    made = api.post("/api/v1/leaderboards", json={"UUID": uuid, "podId": "default", "name": "Again"})
    assert made.status_code == 201
    assert made.json()["totalUsers"] == 0
