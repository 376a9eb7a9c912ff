"""Player tokens: what they allow, how they end, and forged ones."""

import base64
import hashlib
import json
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import jwt
import pytest

from laurels.service.boards.player_tokens import PlayerToken, sign
from support.calls import problem
from support.running import RunningServer
from support.waiting import until

API = "/api/v1"


class Game:
    """A pod with two boards, one of which takes scores from players, and a key of its server."""

    def __init__(self, server: RunningServer, api: httpx.Client) -> None:
        self.pod = f"players-{uuid.uuid4()}"
        assert api.post(f"{API}/pods", json={"podId": self.pod, "name": "Players"}).status_code == 201
        self.made = api.post(f"{API}/pods/{self.pod}/keys", json={"role": "server"}).json()
        self.server = server
        self.client = server.client(self.made["key"])
        self.open = self.board(playersMayWrite=True, maxScore=100, playerWritesPerMinute=5)
        self.closed = self.board()
        self.tokens = f"{API}/pods/{self.pod}/tokens"

    def board(self, **fields: Any) -> str:
        made = self.client.post(f"{API}/leaderboards", json={"name": "A board", "rule": "increment", **fields})
        assert made.status_code == 201, made.text
        return f"{API}/leaderboards/{made.json()['UUID']}"

    def player(self, user: str, **fields: Any) -> httpx.Client:
        answer = self.client.post(self.tokens, json={"userId": user, **fields})
        assert answer.status_code == 201, answer.text
        return self.server.client(answer.json()["token"])


@pytest.fixture
def game(server: RunningServer, api: httpx.Client) -> Iterator[Game]:
    made = Game(server, api)
    yield made
    made.client.close()


def test_player_reads_rankings_and_own_data_only(game: Game) -> None:
    for user, score in (("ada", 5), ("bob", 9)):
        game.client.put(f"{game.closed}/users/{user}", json={"score": score, "metadata": {"car": user}})
    with game.player("ada") as ada:
        assert [entry["userId"] for entry in ada.get(f"{game.closed}/top").json()["users"]] == ["bob", "ada"]
        assert ada.get(f"{game.closed}/users/bob/rank").json()["rank"] == 1
        assert ada.get(f"{game.closed}/users/ada/history").json()["events"][0]["metadata"] == {"car": "ada"}
        assert ada.get(f"{API}/users/ada/scores").json()["scores"][0]["rank"] == 2
        for path in ("users/ada/results", "users/ada/rewards"):
            assert ada.get(f"{API}/{path}").status_code == 200
        for path in (f"{game.closed}/users/bob/history", *(f"{API}/users/bob{each}" for each in ("", "/scores"))):
            problem(ada.get(path), 403, "role_forbidden")
        problem(ada.get(f"{game.closed}/top", params={"viewer": "bob"}), 403, "role_forbidden")
        problem(ada.post(game.tokens, json={"userId": "bob"}), 403, "role_forbidden")
        problem(ada.get(f"{game.closed}/events"), 403, "role_forbidden")


def test_shadow_banned_player_notices_nothing(game: Game) -> None:
    for user, score in (("ada", 5), ("bob", 9)):
        game.client.put(f"{game.open}/users/{user}", json={"score": score})
    assert game.client.put(f"{game.open}/users/ada/hidden", json={"shadow": True}).status_code == 200
    with game.player("ada", mayWrite=True) as ada, game.player("bob") as bob:
        assert [entry["userId"] for entry in ada.get(f"{game.open}/top").json()["users"]] == ["bob", "ada"]
        assert [entry["userId"] for entry in bob.get(f"{game.open}/top").json()["users"]] == ["bob"]
        assert ada.get(f"{game.open}/users/ada/rank").json()["rank"] == 2
        assert ada.put(f"{game.open}/users/ada", json={"score": 1}).json()["rankState"] == "catching_up"
        assert "hidden" not in ada.get(f"{API}/users/ada").text


def test_player_submits_own_scores_within_the_bounds_of_the_board(game: Game) -> None:
    with game.player("ada", mayWrite=True) as ada, game.player("ada") as reader:
        path = f"{game.open}/users/ada"
        assert ada.put(path, json={"score": 7, "eventId": "e1"}).json()["score"] == 7
        assert ada.put(path, json={"score": 7, "eventId": "e1"}).json()["duplicate"] is True
        problem(reader.put(path, json={"score": 1}), 403, "scope_forbidden")
        problem(ada.put(f"{game.open}/users/bob", json={"score": 1}), 403, "role_forbidden")
        problem(ada.put(f"{game.closed}/users/ada", json={"score": 1}), 403, "players_may_not_write")
        problem(ada.put(path, json={"score": 101}), 422, "score_out_of_bounds", "score")
        sent = {"score": 1, "timestamp": "2026-01-01T00:00:00Z"}
        problem(ada.put(path, json=sent), 403, "role_forbidden", "timestamp")
        problem(ada.put(path, json={"score": 1, "region": "eu"}), 403, "role_forbidden", "region")
        problem(ada.post(f"{game.open}/scores", json={"scores": []}), 403, "role_forbidden")
        # The duplicate and the refused score count, too.
        assert [ada.put(path, json={"score": 1}).status_code for _ in range(3)] == [200, 200, 429]
        told = problem(ada.put(path, json={"score": 1}), 429, "too_many_scores")
        assert told["retryable"] is True
        with game.player("bob", mayWrite=True) as bob:
            assert bob.put(f"{game.open}/users/bob", json={"score": 1}).status_code == 200


def test_players_cannot_take_the_event_ids_of_others(game: Game) -> None:
    """Otherwise a player who guesses the id of a coming event could make it a duplicate."""
    with game.player("ada", mayWrite=True) as ada, game.player("bob", mayWrite=True) as bob:
        taken = ada.put(f"{game.open}/users/ada", json={"score": 7, "eventId": "match-1"}).json()["eventId"]
        assert taken != "match-1"
        assert bob.put(f"{game.open}/users/bob", json={"score": 7, "eventId": taken}).json()["duplicate"] is False
        by_server = game.client.put(f"{game.open}/users/ada", json={"score": 5, "eventId": "match-1"}).json()
        assert (by_server["duplicate"], by_server["score"]) == (False, 12)
        # The id of the answer identifies the same event.
        assert ada.put(f"{game.open}/users/ada", json={"score": 7, "eventId": taken}).json()["duplicate"] is True


def test_token_allows_no_more_than_its_key(game: Game, api: httpx.Client) -> None:
    made = api.post(f"{API}/pods/{game.pod}/keys", json={"role": "server", "scopes": ["scores:write"]}).json()
    with game.server.client(made["key"]) as writer:
        problem(writer.post(game.tokens, json={"userId": "ada"}), 403, "scope_forbidden")
    # Whoever has the key can sign a token without asking the server.
    now = time.time_ns() // 1000
    token = PlayerToken(game.pod, "ada", now, now + 60 * 10**6, True)
    signed = sign(token, made["keyId"], hashlib.sha256(made["key"].encode()).digest())
    with game.server.client(signed) as ada:
        problem(ada.get(f"{game.closed}/top"), 403, "scope_forbidden")
        assert ada.put(f"{game.open}/users/ada", json={"score": 1}).status_code == 200


def test_answers_to_players_are_not_cached(game: Game) -> None:
    with game.player("ada") as ada:
        assert ada.get(f"{game.closed}/top").headers["cache-control"] == "no-store"


def test_token_ends_when_it_expires(game: Game) -> None:
    with game.player("ada", expiresInSeconds=1) as ada:
        assert ada.get(f"{game.closed}/top").status_code == 200
        until(lambda: ada.get(f"{game.closed}/top").status_code == 401, "the token expires")
        problem(ada.get(f"{game.closed}/top"), 401, "token_expired")
    body = {"userId": "a", "expiresInSeconds": 86401}
    problem(game.client.post(game.tokens, json=body), 422, "out_of_range", "expiresInSeconds")


def test_tokens_are_revoked_by_player_and_by_key(game: Game, api: httpx.Client) -> None:
    with game.player("ada") as ada, game.player("bob") as bob:
        assert game.client.delete(f"{game.tokens}/ada").status_code == 200
        problem(ada.get(f"{game.closed}/top"), 401, "token_invalid")
        assert bob.get(f"{game.closed}/top").status_code == 200
        with game.player("ada") as again:
            assert again.get(f"{game.closed}/top").status_code == 200
        assert api.delete(f"{API}/pods/{game.pod}/keys/{game.made['keyId']}").status_code == 200
        problem(bob.get(f"{game.closed}/top"), 401, "key_unknown")


def part(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


FORGERIES: dict[str, Callable[[str, Game], str]] = {
    "no signature": lambda token, _: f"{part({'alg': 'none', 'typ': 'JWT'})}.{token.split('.')[1]}.",
    "other player": lambda token, _: (
        f"{token.split('.')[0]}.{part(claims(token) | {'sub': 'bob'})}.{token.split('.')[2]}"
    ),
    "no claims": lambda token, _: f"{token.split('.')[0]}.{part({})}.{token.split('.')[2]}",
    "key as secret": lambda token, game: jwt.encode(claims(token), game.made["key"], "HS256", jwt_header(token)),
    "empty secret": lambda token, _: jwt.encode(claims(token), b"\0" * 32, "HS256", jwt_header(token)),
    "other algorithm": lambda token, game: jwt.encode(claims(token), digest_of(game) * 2, "HS512", jwt_header(token)),
    "unknown key": lambda token, game: jwt.encode(claims(token), digest_of(game), "HS256", {"kid": "0" * 12}),
    "too long": lambda _, game: issue(game, game.pod, 3 * 86_400),
    "other pod": lambda _, game: issue(game, "default", 60),
    "not a token": lambda *_: "ey..",
    "huge": lambda *_: "ey" + "a" * 20_000 + ".b.c",
}


def jwt_header(token: str) -> dict[str, Any]:
    return dict(jwt.get_unverified_header(token))


def claims(token: str) -> dict[str, Any]:
    return dict(jwt.decode(token, options={"verify_signature": False}))


def digest_of(game: Game) -> bytes:
    return hashlib.sha256(game.made["key"].encode()).digest()


def issue(game: Game, pod: str, seconds: int) -> str:
    """Sign a token as the server would, with the key of the game."""
    now = time.time_ns() // 1000
    token = PlayerToken(pod, "ada", now, now + seconds * 10**6, True)
    return sign(token, game.made["keyId"], digest_of(game))


@pytest.mark.parametrize("forgery", FORGERIES)
def test_forged_token_is_refused(game: Game, forgery: str) -> None:
    token = game.client.post(game.tokens, json={"userId": "ada"}).json()["token"]
    with game.server.client(issue(game, game.pod, 60)) as genuine:
        assert genuine.get(f"{game.closed}/top").status_code == 200
    with game.server.client(FORGERIES[forgery](token, game)) as forged:
        answer = forged.get(f"{game.closed}/top")
        assert answer.status_code == 401, answer.text
        assert answer.json()["code"] in {"token_invalid", "key_unknown"}
