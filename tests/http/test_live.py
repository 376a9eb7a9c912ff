"""Live updates of a board over a WebSocket and as server-sent events."""

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import httpx
import pytest
import websockets
from websockets.asyncio.client import connect

from laurels.http.live_answers import ChangesFrame, ProblemFrame, ResetFrame, SnapshotFrame
from support.calls import NewBoard, problem
from support.live import live_url, next_frame, seen, watching
from support.running import ADMIN_KEY, PLAIN, RunningServer
from support.waiting import until

API = "/api/v1/leaderboards/"


def put(api: httpx.Client, board: str, user: str, score: float) -> None:
    answer = api.put(f"{API}{board}/users/{user}", json={"score": score})
    assert answer.status_code == 200, answer.text


def play(story: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(story(), 60))


async def both_views(socket: Any, total_users: int) -> dict[str, ChangesFrame]:
    """Return the frames of the two views that show `total_users` users, in either order."""
    frames: dict[str, ChangesFrame] = {}
    while len(frames) < 2:
        frame = await next_frame(socket)
        assert isinstance(frame, ChangesFrame)
        if frame.total_users == total_users:
            frames[frame.view] = frame
    return frames


def test_subscriber_gets_a_snapshot_and_then_only_changes(
    api: httpx.Client, server: RunningServer, new_board: NewBoard
) -> None:
    board = new_board(public=True, rule="increment")
    for user, score in (("a", 50), ("b", 40), ("c", 30), ("d", 20), ("e", 10)):
        put(api, board, user, score)

    async def story() -> None:
        async with watching(server.url, board, limit=4, userId="e", above=1, below=1) as socket:
            top, around = await next_frame(socket), await next_frame(socket)
            assert isinstance(top, SnapshotFrame)
            assert isinstance(around, SnapshotFrame)
            assert (top.view, top.sequence, top.total_users) == ("top", 1, 5)
            assert seen(top.users) == (("a", 1, 50), ("b", 2, 40), ("c", 3, 30), ("d", 4, 20))
            assert (around.view, seen(around.users)) == ("around", (("d", 4, 20), ("e", 5, 10)))
            assert (top.board.status, top.board.window, top.board.segment) == ("ACTIVE", "all", "global")

            # Only the entry of c changed: the frame has one row.
            put(api, board, "c", 5)
            changes = await next_frame(socket)
            assert isinstance(changes, ChangesFrame)
            assert (changes.view, changes.sequence, changes.length) == ("top", 2, 4)
            assert [(row.position, row.user_id, row.rank, row.score) for row in changes.rows] == [(2, "c", 3, 35)]

            # e overtakes d: the last row of one view, all rows of the other.
            put(api, board, "e", 15)
            frames = {frame.view: frame for frame in (await next_frame(socket), await next_frame(socket))}
            assert [(row.position, row.user_id) for row in frames["top"].rows] == [(3, "e")]
            assert [(row.position, row.user_id) for row in frames["around"].rows] == [(0, "c"), (1, "e"), (2, "d")]

            # A removal makes the list shorter.
            assert api.delete(f"{API}{board}/users/a").status_code == 200
            frames = await both_views(socket, 4)
            assert [row.user_id for row in frames["top"].rows] == ["b", "c", "e", "d"]
            assert api.delete(f"{API}{board}/users/d").status_code == 200
            frames = await both_views(socket, 3)
            assert (frames["top"].rows, frames["top"].length) == ([], 3)

    play(story)


def test_reconnecting_subscriber_gets_the_missed_changes(
    api: httpx.Client, server: RunningServer, new_board: NewBoard
) -> None:
    board = new_board(public=True)
    for number in range(20):
        put(api, board, f"u{number:02}", 100 - number)

    async def story() -> None:
        async with watching(server.url, board, limit=20) as socket:
            snapshot = await next_frame(socket)
        put(api, board, "u07", 93.5)
        async with watching(server.url, board, limit=20, after=snapshot.id) as socket:
            missed = await next_frame(socket)
            assert isinstance(missed, ChangesFrame)
            assert (missed.sequence, [row.user_id for row in missed.rows]) == (2, ["u07"])
        # Nothing was missed, so the server sends nothing until the next change.
        async with watching(server.url, board, limit=20, after=missed.id) as socket:
            put(api, board, "u08", 92.5)
            assert (await next_frame(socket)).sequence == 3
        # Ids that were never sent, are from another server or are invalid lead to a snapshot.
        for after in (f"{snapshot.id[:-1]}99", "0123456789-1", "nonsense", "-,-"):
            async with watching(server.url, board, limit=20, after=after) as socket:
                assert isinstance(await next_frame(socket), SnapshotFrame)

    play(story)


def test_event_stream_resumes_after_the_last_event_id(api: httpx.Client, new_board: NewBoard) -> None:
    board = new_board(public=True)
    put(api, board, "ada", 1)
    put(api, board, "bob", 2)

    def first_event(last: str | None, then: Callable[[], None] = lambda: None) -> dict[str, str]:
        headers = {} if last is None else {"Last-Event-ID": last}
        query = {"userId": "ada", "limit": "5"}
        event: dict[str, str] = {}
        with api.stream("GET", f"{API}{board}/stream", params=query, headers=headers) as response:
            assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
            then()
            for line in response.iter_lines():
                if not line and event.get("event") == "heartbeat":
                    event.clear()
                if not line and "data" in event:
                    return event
                name, _, value = line.partition(": ")
                event[name] = value
        raise AssertionError("the stream ended")

    event = first_event(None)
    assert event["retry"] == "1000"
    assert event["event"] == "snapshot"
    # Disconnected after the first of two frames: the event id covers only one view.
    assert event["id"] == json.loads(event["data"])["id"]
    following = first_event(event["id"])
    assert json.loads(following["data"])["view"] == "around"
    changed = first_event(following["id"], lambda: put(api, board, "ada", 9))
    assert (changed["event"], json.loads(changed["data"])["sequence"]) == ("changes", 2)
    assert api.head(f"{API}{board}/stream").status_code == 200


def test_period_resets_and_board_changes_are_sent_as_frames(
    api: httpx.Client, server: RunningServer, new_board: NewBoard
) -> None:
    windows = [{"window": "season", "cron": "0 0 1 1 *"}]
    board = new_board(public=True, windows=windows, graceSeconds=0, segments=["global", "region"])
    put(api, board, "ada", 5)

    async def story() -> None:
        async with watching(server.url, board) as socket:
            snapshot = await next_frame(socket)
            season = snapshot.board.period
            assert api.patch(f"{API}{board}", json={"name": "Winter"}).status_code == 200
            changes = await next_frame(socket)
            assert (changes.board.name, changes.rows, changes.length) == ("Winter", [], 1)
            # Closing moves the end of the period; at that time the next period begins.
            assert api.post(f"{API}{board}/periods/{season}/close").status_code == 200
            frame = await next_frame(socket)
            while isinstance(frame, ChangesFrame):
                frame = await next_frame(socket)
            assert isinstance(frame, ResetFrame)
            assert (frame.previous_period, frame.users, frame.total_users) == (season, [], 0)
            assert frame.board.period != season
            put(api, board, "bob", 7)
            assert [row.user_id for row in (await next_frame(socket)).rows] == ["bob"]
            # A past period no longer changes.
            async with watching(server.url, board, period=season) as past:
                assert seen((await next_frame(past)).users) == (("ada", 1, 5),)
            assert api.delete(f"{API}{board}").status_code == 200
            assert (await next_frame(socket)).board.status == "ARCHIVED"

    play(story)


def test_live_view_of_a_segment_includes_display_names(
    api: httpx.Client, server: RunningServer, new_board: NewBoard
) -> None:
    board = new_board(public=True, segments=["global", "region"])
    mia, leo = f"mia-{board}", f"leo-{board}"
    api.put(f"/api/v1/users/{mia}", params={"podId": "default"}, json={"region": "kr", "displayName": "미아"})
    put(api, board, mia, 5)
    put(api, board, leo, 9)

    async def story() -> None:
        async with watching(server.url, board, segment="region:kr", ranking="dense") as socket:
            snapshot = await next_frame(socket)
            assert [(entry.user_id, entry.display_name) for entry in snapshot.users] == [(mia, "미아")]
            api.patch(f"/api/v1/users/{mia}", params={"podId": "default"}, json={"displayName": "Mia"})
            changes = await next_frame(socket)
            assert [(row.position, row.display_name) for row in changes.rows] == [(0, "Mia")]
            api.patch(f"/api/v1/users/{leo}", params={"podId": "default"}, json={"region": "kr"})
            assert [row.user_id for row in (await next_frame(socket)).rows] == [leo, mia]

    play(story)


@pytest.mark.parametrize(
    ("path", "code", "reason"),
    [
        ("nobody/live", 4401, "key_required"),
        ("default/live?limit=0", 4422, "out_of_range"),
        ("default/live?segment=team:red", 4422, "segment_not_available"),
        ("default/live?window=daily", 4422, "window_not_available"),
        ("default/live?colour=red", 4422, "unknown_field"),
        ("default/top", 4404, "no_such_address"),
        ("default/elsewhere", 4404, "no_such_address"),
    ],
)
def test_close_reason_is_in_the_problem_frame_and_the_close_code(
    server: RunningServer, path: str, code: int, reason: str
) -> None:
    async def story() -> None:
        async with connect(f"{server.url.replace('http', 'ws')}{API}{path}") as socket:
            frame = await next_frame(socket)
            assert isinstance(frame, ProblemFrame)
            assert (frame.problem.code, frame.problem.retryable) == (reason, False)
            with pytest.raises(websockets.ConnectionClosed) as closed:
                await socket.recv()
            assert closed.value.rcvd is not None
            assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (code, reason)

    play(story)


def test_invalid_live_requests_over_plain_http_are_refused(api: httpx.Client) -> None:
    problem(api.get(f"{API}default/live"), 426, "upgrade_required")
    problem(api.get(f"{API}nobody/stream"), 404, "board_not_found", "UUID")
    problem(api.get(f"{API}default/stream", params={"above": "501"}), 422, "out_of_range", "above")


def test_key_is_accepted_as_a_websocket_subprotocol(
    api: httpx.Client, server: RunningServer, new_board: NewBoard
) -> None:
    board = new_board()
    made = api.post("/api/v1/pods/default/keys", json={"role": "client"}).json()

    async def story() -> None:
        url = live_url(server.url, board)
        async with connect(url, subprotocols=["laurels.v1", f"laurels.key.{made['key']}"]) as socket:  # type: ignore[list-item]
            assert socket.subprotocol == "laurels.v1"
            assert isinstance(await next_frame(socket), SnapshotFrame)
            # A subscriber whose key is revoked gets a problem frame.
            assert api.delete(f"/api/v1/pods/default/keys/{made['keyId']}").status_code == 200
            assert (await next_frame(socket)).problem.code == "key_unknown"
            with pytest.raises(websockets.ConnectionClosed) as closed:
                await socket.recv()
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 4401

    play(story)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[RunningServer]:
    with RunningServer(tmp_path, max_live="3", max_live_per_key="2") as running:
        yield running


def test_subscriptions_are_limited_per_key_and_per_server(small: RunningServer) -> None:
    async def refused(**query: Any) -> str:
        async with watching(small.url, "default", **query) as socket:
            frame = await next_frame(socket)
            assert isinstance(frame, ProblemFrame)
            assert frame.problem.retryable
            return frame.problem.detail

    async def story() -> None:
        key = small.client().headers["Authorization"].removeprefix("Bearer ")
        async with watching(small.url, "default") as first, watching(small.url, "default") as second:
            assert (await next_frame(first)).id == (await next_frame(second)).id
            assert "without a key" in await refused()
            async with watching(small.url, "default", key=key) as third:
                await next_frame(third)
                assert "This server" in await refused(key=key)
        # A closed connection makes room for another.
        end = time.monotonic() + 10
        while True:
            async with watching(small.url, "default") as again:
                if isinstance(await next_frame(again), SnapshotFrame):
                    break
            assert time.monotonic() < end

    play(story)


def test_stuck_subscriber_is_disconnected_and_delays_no_others(small: RunningServer) -> None:
    """Takes about ten seconds, the time limit for sending one frame."""
    with small.client() as api:
        users = [f"{'x' * 200}-{number}" for number in range(1000)]

        def shuffle(turn: int) -> None:
            scores = [{"userId": user, "score": (number * 7 + turn * 13) % 1009} for number, user in enumerate(users)]
            assert api.post(f"{API}default/scores", json={"scores": scores}).status_code == 200

        shuffle(0)
        address = urlparse(small.url)
        stuck = socket.socket()
        stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stuck.connect((address.hostname, address.port))
        key = f"X-API-Key: {ADMIN_KEY}"
        stuck.sendall(f"GET {API}default/stream?limit=1000 HTTP/1.1\r\nHost: laurels\r\n{key}\r\n\r\n".encode())

        def cut_off() -> float:
            line = next(
                each for each in api.get("/metrics").text.splitlines() if each.startswith("laurels_live_cut_off_total")
            )
            return float(line.split()[-1])

        async def story() -> None:
            async with connect(live_url(small.url, "default", limit=1), max_queue=None) as socket:
                before = (await next_frame(socket)).sequence
                turn = 0
                end = time.monotonic() + 90
                while not cut_off():
                    assert time.monotonic() < end
                    turn += 1
                    await asyncio.to_thread(shuffle, turn)
                    assert (await next_frame(socket)).sequence == before + 1
                    before += 1

        play(story)
        stuck.close()


@pytest.mark.parametrize("loaded", [True, False])
def test_event_stream_that_cannot_start_yet_lets_a_browser_reconnect(tmp_path: Path, loaded: bool) -> None:
    """An EventSource reconnects after a stream ends, but never after a status other than 200."""
    settings = {} if loaded else {"ledger": "postgresql://nobody@127.0.0.1:1/none", "index": "redis://127.0.0.1:1"}
    server = RunningServer(tmp_path, max_live="1", **settings)
    server.start(wait=loaded)
    try:
        path = f"{server.url}{API}default/stream"
        until(lambda: is_listening(server), "the listening socket")
        with contextlib.ExitStack() as stack:
            if loaded:
                # The only subscription that the server allows.
                first = stack.enter_context(httpx.stream("GET", path)).iter_bytes()
                assert next(first).startswith(b"retry: 1000")
            refused = httpx.get(path)
            assert (refused.status_code, refused.json()["retryable"]) == (429 if loaded else 503, True)
            browser = httpx.get(path, headers={"Accept": "text/event-stream"})
        assert (browser.status_code, browser.headers["Content-Type"]) == (200, "text/event-stream; charset=utf-8")
        retry, problem_event, _ = browser.text.split("\n\n")
        assert retry == "retry: 1000"
        name, data = problem_event.split("\n")
        assert name == "event: problem"
        assert json.loads(data.removeprefix("data: "))["problem"]["code"] == refused.json()["code"]
    finally:
        server.kill()


def is_listening(server: RunningServer) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(server.url + "/healthz", verify=PLAIN).status_code == 200
    return False


def test_event_stream_error_that_is_not_retryable_keeps_its_status(server: RunningServer) -> None:
    answer = httpx.get(f"{server.url}{API}nowhere/stream", headers={"Accept": "text/event-stream"})
    assert answer.status_code == 401
