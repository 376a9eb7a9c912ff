"""Rate limits per address, key, player and pod, wrong keys, and trusted proxies."""

import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.calls import problem
from support.running import ADMIN_KEY, PLAIN, RunningServer, laurels

API = "/api/v1"
TOP = f"{API}/leaderboards/default/top"


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Run a server behind a proxy at 127.0.0.1, with low limits."""
    settings = {
        "trusted_proxies": "127.0.0.1, 10.0.0.0/8",
        "rate_per_address": "4",
        "rate_per_key": "8",
        "rate_per_player": "2",
        "rate_per_pod": "20",
        "wrong_keys_per_minute": "3",
    }
    with RunningServer(tmp_path_factory.mktemp("limited"), **settings) as server:
        yield server


@pytest.fixture
def pod(limited: RunningServer) -> str:
    """Return a new pod with a public board of the same name."""
    name = f"p-{uuid.uuid4()}"
    with limited.client() as api:
        assert api.post(f"{API}/pods", json={"podId": name, "name": "P"}).status_code == 201
        body = {"UUID": name, "podId": name, "name": "A board", "public": True, "playersMayWrite": True}
        assert api.post(f"{API}/leaderboards", json=body).status_code == 201
    return name


def key_of(server: RunningServer, pod: str, role: str = "server") -> str:
    with server.client() as api:
        return str(api.post(f"{API}/pods/{pod}/keys", json={"role": role}).json()["key"])


def send(server: RunningServer, path: str, count: int, **headers: str) -> list[httpx.Response]:
    with httpx.Client(base_url=server.url, headers=headers, verify=PLAIN) as client:
        return [client.get(path) for _ in range(count)]


def statuses(answers: list[httpx.Response]) -> Counter[int]:
    return Counter(answer.status_code for answer in answers)


@pytest.mark.parametrize(
    "path", [TOP, f"{API}/leaderboards/default/distribution", "/", f"{API}/leaderboards/nosuch"], ids=str
)
def test_address_without_a_key_is_limited(limited: RunningServer, path: str) -> None:
    """In the hot lane, in an ordinary call, for pages, and for boards that do not exist."""
    address = f"203.0.113.{hash(path) % 200}"
    answers = send(limited, path, 30, **{"X-Forwarded-For": address})
    assert answers[0].status_code != 429
    assert 15 <= statuses(answers)[429] <= 26
    refused = answers[-1]
    problem(refused, 429, "too_many_calls")
    assert refused.headers["RateLimit-Policy"] == '"address";q=8;w=2'
    assert refused.headers["RateLimit"] == f'"address";r=0;t={refused.headers["Retry-After"]}'
    # Others are not affected.
    (other,) = send(limited, path, 1, **{"X-Forwarded-For": "198.51.100.1" + path[-1].replace("t", "7")})
    assert other.status_code != 429


def test_address_is_the_one_that_the_last_trusted_proxy_saw(limited: RunningServer) -> None:
    spoofed = [
        send(limited, "/", 1, **{"X-Forwarded-For": f"1.2.3.{number}, 203.0.113.250, 10.1.2.3"})[0]
        for number in range(20)
    ]
    assert statuses(spoofed)[429] >= 8
    # All addresses of a network of 64 bits are one customer.
    answers = [send(limited, "/", 1, **{"X-Forwarded-For": f"2001:db8::{number:x}"})[0] for number in range(20)]
    assert statuses(answers)[429] >= 8
    # Without a header, it is the proxy itself, on this machine.
    assert statuses(send(limited, "/", 40)) == {200: 40}
    assert statuses(send(limited, "/", 40, **{"X-Forwarded-For": "no address"})) == {200: 40}


def test_forwarded_addresses_are_ignored_without_trusted_proxies(tmp_path: Path) -> None:
    with RunningServer(tmp_path, rate_per_address="4") as server:
        assert statuses(send(server, TOP, 40, **{"X-Forwarded-For": "203.0.113.9"})) == {200: 40}


@pytest.mark.parametrize("action", ["top", "distribution"])
def test_key_and_pod_are_limited(limited: RunningServer, pod: str, action: str) -> None:
    path = f"{API}/leaderboards/{pod}/{action}"
    keys = [key_of(limited, pod) for _ in range(4)]
    first = send(limited, path, 40, **{"X-API-Key": keys[0]})
    assert 16 <= statuses(first)[200] <= 30
    assert problem(first[-1], 429, "too_many_calls")["retryable"] is True
    assert first[-1].headers["RateLimit-Policy"] == '"key";q=16;w=2'
    others = [answer for key in keys[1:] for answer in send(limited, path, 16, **{"X-API-Key": key})]
    policies = {answer.headers["RateLimit-Policy"] for answer in others if answer.status_code == 429}
    assert '"pod";q=40;w=2' in policies
    # Admin keys are for operators.
    assert statuses(send(limited, path, 60, **{"X-API-Key": ADMIN_KEY})) == {200: 60}


def test_player_is_limited(limited: RunningServer, pod: str) -> None:
    with limited.client(key_of(limited, pod)) as game:
        made = [game.post(f"{API}/pods/{pod}/tokens", json={"userId": user}).json() for user in ("ada", "ada", "bob")]

    def read(token: str) -> list[httpx.Response]:
        return send(limited, f"{API}/leaderboards/{pod}/top", 6, Authorization=f"Bearer {token}")

    first, again, other = [read(each["token"]) for each in made]
    assert 4 <= statuses(first)[200] <= 5
    assert first[-1].headers["RateLimit-Policy"] == '"player";q=4;w=2'
    # A new token of the same player changes nothing.
    assert statuses(again)[200] <= 3
    assert other[0].status_code == 200


def test_sender_of_wrong_keys_is_slowed_down(limited: RunningServer) -> None:
    def with_key(key: str) -> list[httpx.Response]:
        headers = {"X-API-Key": key, "X-Forwarded-For": "192.0.2.77"}
        return send(limited, TOP, 1, **headers)

    answers = [with_key(f"lrl_{number:012d}_wrong")[0] for number in range(6)]
    assert [answer.status_code for answer in answers[:3]] == [401] * 3
    problem(answers[-1], 429, "too_many_wrong_keys")
    assert int(answers[-1].headers["Retry-After"]) > 1
    # A valid key still works from the same address.
    assert with_key(ADMIN_KEY)[0].status_code == 200
    text = httpx.get(f"{limited.url}/metrics", verify=PLAIN).text
    assert 'laurels_refused_calls_total{code="too_many_wrong_keys"}' in text


@pytest.mark.parametrize("proxies", ["everybody", "10.0.0.1/8", "10.0.0.0/99"])
def test_malformed_proxies_are_refused(tmp_path: Path, proxies: Any) -> None:
    refused = laurels("serve", data_dir=tmp_path, trusted_proxies=proxies)
    assert refused.returncode == 2
    assert "LAURELS_TRUSTED_PROXIES" in refused.stderr
