"""The Python client against a real server."""

import asyncio
import threading
from pathlib import Path
from uuid import uuid4

import httpx
import pytest

from laurels.client import AsyncClient, Client, Score
from laurels.client.endpoints import Request
from laurels.client.retry import pause_before
from laurels.core.reviews import ReviewState
from laurels.errors import Conflict, Invalid, NotFound, Unauthenticated, Unavailable
from laurels.http.answers import Percentile
from support.calls import NewBoard
from support.live import seen
from support.running import ADMIN_KEY, RunningServer, free_port


@pytest.fixture
def board(new_board: NewBoard) -> str:
    return new_board(rule="increment", public=True)


class Forgetful(httpx.HTTPTransport):
    """A transport that loses the first `times` responses, after the server has handled the request."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times
        self.lost = 0

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        response = super().handle_request(request)
        if self.lost < self.times:
            response.read()
            self.lost += 1
            raise httpx.ReadTimeout("lost", request=request)
        return response


def test_retry_after_a_lost_response_counts_once(server: RunningServer, board: str) -> None:
    transport = Forgetful(2)
    with Client(server.url, ADMIN_KEY, transport=transport) as client:
        answer = client.submit(board, "ada", 5)
        assert (transport.lost, answer.score, answer.duplicate) == (2, 5, True)
        transport.lost = 0
        results = client.submit_many(board, [Score("ada", 2), Score("bob", 3, metadata={"map": 1})])
        assert [(result.user_id, result.score, result.status) for result in results] == [
            ("ada", 7, "duplicate"),
            ("bob", 3, "duplicate"),
        ]
        transport.lost = 0
        made = client.create_board("Lost and found", podId="default")
        assert (transport.lost, client.board(made.uuid).name) == (2, "Lost and found")
        assert [event.score for event in client.each_event(board, "ada")] == [2, 5]


def test_client_retries_until_the_server_is_back(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as server, Client(server.url, ADMIN_KEY, tries=12) as client:
        assert client.submit("default", "ada", 1).score == 1
        server.kill()
        starting = threading.Timer(0.5, server.start)
        starting.start()
        assert client.submit("default", "ada", 1).score == 2
        starting.join()
    with Client(f"http://127.0.0.1:{free_port()}", tries=2) as nobody, pytest.raises(Unavailable) as error:
        nobody.top("default")
    assert error.value.code == "unreachable"


def test_refused_call_raises_the_matching_exception(server: RunningServer, board: str) -> None:
    with Client(server.url, ADMIN_KEY) as client, Client(server.url) as stranger:
        with pytest.raises(NotFound) as error:
            client.rank(board, "nobody")
        assert (error.value.code, error.value.field) == ("user_not_found", "userId")
        with pytest.raises(Invalid):
            client.top(board, limit=5000)
        client.submit(board, "ada", 5, event_id="one")
        with pytest.raises(Conflict) as conflict:
            client.submit(board, "ada", 6, event_id="one")
        assert (type(conflict.value), conflict.value.code) == (Conflict, "event_conflict")
        with pytest.raises(Unauthenticated):
            stranger.submit(board, "ada", 1)
        assert stranger.rank(board, "ada").rank == 1


def test_game_server_issues_and_revokes_tokens_for_players(server: RunningServer) -> None:
    player = f"player/{uuid4()}"
    with Client(server.url, ADMIN_KEY) as game:
        board = game.create_board("Laps", podId="default", playersMayWrite=True).uuid
        token = game.create_token("default", player, expires_in_s=600, may_write=True)
        assert (token.user_id, token.may_write) == (player, True)
        with Client(server.url, token.token) as phone:
            assert phone.submit(board, player, 7).rank == 1
            assert [score.score for score in phone.user_scores(player).scores] == [7]
            assert game.usage("default").events_today.used >= 1
            assert game.revoke_tokens("default", player).user_id == player
            with pytest.raises(Unauthenticated, match="revoked"):
                phone.rank(board, player)


def test_game_server_uses_templates_reviews_and_subscores(server: RunningServer) -> None:
    prefix = f"match-{uuid4()}-"
    rules = [{"name": "high", "scores": {"atLeast": 100}}]
    definition = {"name": "Match", "rule": "best", "subscore": "asc", "operations": ["set"], "review": rules}
    with Client(server.url, ADMIN_KEY) as game:
        assert game.set_template("default", "match", definition, prefix=prefix).prefix == prefix
        board = f"{prefix}1"
        assert game.submit(board, "ada", 7, subscore=3).subscore == 3
        game.submit_many(board, [Score("bob", 7, subscore=2), Score("ada", 5, subscore=1, operation="set")])
        assert [(each.user_id, each.subscore) for each in game.top(board).users] == [("bob", 2), ("ada", 1)]
        for score in (500, 600):
            assert game.submit(board, "eve", score).rank_state == "in_review"
        later, first = game.reviews(board, status=ReviewState.PENDING).reviews
        assert (first.score, later.score) == (500, 600)
        assert game.accept_review(board, first.review_id, reason="seen").kind == "restore"
        assert game.reject_review(board, later.review_id).kind == "reject"
        assert game.rank(board, "eve").score == 500
        assert game.delete_board(board).uuid == board
        with pytest.raises(NotFound):
            game.top(board)


def test_client_reads_return_typed_results(server: RunningServer, board: str) -> None:
    user = f"eve/{board}"
    with Client(server.url, ADMIN_KEY) as client:
        scores = [Score(f"u{number:04}", number) for number in range(1500)] + [Score(user, 2000, region="kr")]
        assert {result.status for result in client.submit_many(board, scores)} == {"accepted"}
        assert len(list(client.each_entry(board))) == 1501
        assert client.top(board, 1).users[0].user_id == user
        assert [entry.rank for entry in client.around(board, "u0007", above=1, below=0).users] == [1493, 1494]
        assert [entry.rank for entry in client.around(board, user, above=1, below=1, fill=True).users] == [1, 2, 3]
        assert [entry.user_id for entry in client.top(board, 2, 1, order="reverse").users] == ["u0001", "u0002"]
        assert client.top(board, 1000, percent=0.1).users[-1].rank == 2
        found = client.score_range(board, 10, 20, limit=1)
        assert (found.count, found.users[0].user_id) == (11, "u0020")
        place = client.score_rank(board, 1999.5, above=1, below=1)
        assert (place.rank, [entry.rank for entry in place.users]) == (2, [1, 2])
        spread = client.distribution(board, 1, percentiles=[0, 50, 99.95], sum=True)
        assert spread.percentiles == [Percentile(percentile=p, score=s) for p, s in ((0, 0), (50, 750), (99.95, 2000))]
        assert (spread.sum, spread.mean) == (1_126_250, 1_126_250 / 1501)
        friends = client.ranks(board, [user, "u0001", "nobody"])
        assert ([friend.position for friend in friends.users], friends.missing) == ([1, 2], ["nobody"])
        assert sum(bucket.count for bucket in client.distribution(board, 7).buckets) == 1501
        assert client.set_profiles([{"userId": user, "displayName": "Eve"}], pod_id="default").changed == 1
        assert client.profile(user, pod_id="default").display_name == "Eve"
        assert [score.score for score in client.user_scores(user, pod_id="default").scores] == [2000]
        assert [each.uuid for each in client.user_scores(user, pod_id="default", boards=[board]).scores] == [board]
        both = client.submit_to_boards([board], user, 100, pod_id="default", metadata={"map": "x"})
        assert [(each.uuid, each.score) for each in both.results] == [(board, 2100)]
        (again,) = client.submit_many(board, [Score(user, 2500)], previous=True)
        assert (again.rank, again.previous_rank, again.previous_score) == (1, 1, 2100)
        assert client.user_results(user, pod_id="default").results == []
        assert client.change_board(board, name="Renamed").name == "Renamed"
        assert [period.window for period in client.each_period(board)] == ["all"]
        assert board in {each.uuid for each in client.each_board(pod_id="default", limit=2)}
        assert client.call(Request("GET", "/healthz", dict)) == {"status": "ok"}


def test_live_iterator_yields_changes_of_a_board(server: RunningServer, board: str) -> None:
    with Client(server.url, ADMIN_KEY) as client:
        client.submit(board, "ada", 5)
        live = client.live(board, 3, user_id="bob")
        view = next(live)
        assert (seen(view.users), view.around) == ((("ada", 1, 5),), [])
        view = next(live)
        client.submit(board, "bob", 9)
        # The two views send separate frames, in either order.
        for view in live:
            if view.around and len(view.users) > 1:
                break
        assert seen(view.users) == seen(view.around) == (("bob", 1, 9), ("ada", 2, 5))
        with pytest.raises(NotFound):
            next(client.live("nowhere"))


def test_live_stream_handles_user_ids_with_line_separators(server: RunningServer, board: str) -> None:
    with Client(server.url, ADMIN_KEY) as client:
        for odd in ("a\u2028b", "c\u2029d", "e:data: {}"):
            client.submit(board, odd, 1)
        view = next(client.live(board))
        assert {entry.user_id for entry in view.users} == {"a\u2028b", "c\u2029d", "e:data: {}"}


def test_retry_pauses_grow_up_to_a_limit() -> None:
    pauses = [pause_before(number) for number in (1, 3, 8, 5000)]
    assert 0 < pauses[0] < 0.2 < pauses[1] < pauses[2] <= 6
    assert pauses[-1] <= 6


def test_async_client_submits_reads_and_follows_a_board(server: RunningServer, board: str) -> None:
    async def story() -> None:
        async with AsyncClient(server.url, ADMIN_KEY) as client:
            answers = await asyncio.gather(*(client.submit(board, "ada", 1) for _ in range(50)))
            assert max(answer.score or 0 for answer in answers) == 50
            assert [entry.user_id async for entry in client.each_entry(board)] == ["ada"]
            async for view in client.live(board):
                assert (view.total_users, view.board is not None and view.board.name) == (1, "A board")
                break

    asyncio.run(story())


def test_async_live_iterators_leave_connections_for_other_calls(server: RunningServer, board: str) -> None:
    async def run() -> None:
        async with AsyncClient(server.url, ADMIN_KEY, tries=1, timeout_s=20) as client:
            streams = [client.live(board, 1 + number % 3) for number in range(120)]
            views = await asyncio.gather(*(anext(stream) for stream in streams))
            assert {view.total_users for view in views} == {0}
            assert (await client.submit(board, "ada", 5)).score == 5
            views = await asyncio.gather(*(anext(stream) for stream in streams))
            assert {view.total_users for view in views} == {1}
            for stream in streams:
                await stream.aclose()  # type: ignore[attr-defined]

    asyncio.run(run())


def test_sync_live_iterators_leave_connections_for_other_calls(server: RunningServer, board: str) -> None:
    with Client(server.url, ADMIN_KEY, tries=1, timeout_s=20) as client:
        streams = [client.live(board, 1 + number % 3) for number in range(110)]
        assert {next(stream).total_users for stream in streams} == {0}
        assert client.submit(board, "ada", 5).score == 5
        for stream in streams:
            stream.close()  # type: ignore[attr-defined]
