"""OAuth 2 bearer tokens: a real OpenID Connect server, every algorithm, roles and scopes, and tokens to refuse."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives import serialization

from support.calls import problem
from support.identity import AUDIENCE, KeyFile, OidcServer, oidc_server
from support.running import RunningServer, laurels
from support.waiting import until

API = "/api/v1"
TOP = f"{API}/leaderboards/private/top"


class Provider(NamedTuple):
    server: RunningServer
    keys: KeyFile

    def get(self, token: str, path: str = TOP) -> httpx.Response:
        with self.server.client(token) as client:
            return client.get(path)


def create_board(server: RunningServer) -> None:
    with server.client() as api:
        body = {"UUID": "private", "podId": "default", "name": "Private", "playersMayWrite": True}
        assert api.post(f"{API}/leaderboards", json=body).status_code == 201


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Provider]:
    folder = tmp_path_factory.mktemp("oauth")
    keys = KeyFile(folder / "keys.json")
    settings = {"oauth_issuer": keys.ISSUER, "oauth_jwks": str(keys.path), "oauth_audience": AUDIENCE}
    with RunningServer(folder / "data", **settings) as server:
        create_board(server)
        yield Provider(server, keys)


def test_players_sign_in_at_an_openid_connect_server(tmp_path: Path) -> None:
    users: list[dict[str, Any]] = [
        {"sub": "ada", "laurels_role": "player", "laurels_pod": "default", "scope": "laurels:scores:write"},
        {"sub": "ops", "laurels_role": ["nothing", "admin"]},
        {"sub": "eve"},
    ]
    with (
        oidc_server(*users) as provider,
        RunningServer(tmp_path, oauth_issuer=provider.issuer, oauth_audience=AUDIENCE) as server,
    ):
        create_board(server)
        token = provider.sign_in("ada")
        with server.client(token) as ada, server.client(provider.sign_in("ops")) as ops:
            assert ada.put(f"{API}/leaderboards/private/users/ada", json={"score": 3}).json()["rank"] == 1
            problem(ada.put(f"{API}/leaderboards/private/users/bob", json={"score": 3}), 403, "role_forbidden")
            assert len(ada.get(f"{API}/leaderboards/private/users/ada/history").json()["events"]) == 1
            assert ops.get(f"{API}/pods").status_code == 200
            problem(ada.get(f"{API}/pods"), 403, "role_forbidden")
        with server.client(provider.sign_in("eve")) as eve:
            problem(eve.get(TOP), 401, "token_invalid")
        # The provider loses its key and makes another one: the server fetches it when a token needs it.
        provider.stop()
        renewed = OidcServer(users, provider.port)
        try:
            again = renewed.sign_in("ada")
            with server.client(again) as ada:
                until(lambda: ada.get(TOP).status_code == 200, "the new key is known")
            with server.client(token) as old:
                assert old.get(TOP).status_code == 401
        finally:
            renewed.stop()


@pytest.mark.parametrize("algorithm", ["RS256", "ES256", "EdDSA"])
def test_token_of_every_algorithm_is_accepted(provider: Provider, algorithm: str) -> None:
    assert provider.get(provider.keys.token(algorithm)).status_code == 200


def public_pem(keys: KeyFile) -> bytes:
    public = keys.private["RS256"].public_key()
    return bytes(public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo))


def confuse(keys: KeyFile, algorithm: str) -> str:
    """Sign a token with the public key as the secret of an HMAC, which PyJWT refuses to do itself."""
    secret = jwt.get_algorithm_by_name("HS256")
    signed = keys.token().split(".")
    header = jwt.utils.base64url_encode(json.dumps({"alg": algorithm, "kid": "RS256", "typ": "JWT"}).encode()).decode()
    signature = secret.sign(f"{header}.{signed[1]}".encode(), public_pem(keys))
    return f"{header}.{signed[1]}.{jwt.utils.base64url_encode(signature).decode()}"


def unsigned(token: str) -> str:
    header = jwt.utils.base64url_encode(b'{"alg": "none", "kid": "RS256"}').decode()
    return f"{header}.{token.split('.')[1]}."


def with_claims(token: str, other: str) -> str:
    """Return a token with the claims of another one."""
    header, _, signature = token.split(".")
    return f"{header}.{other.split('.')[1]}.{signature}"


REFUSED: dict[str, tuple[Callable[[KeyFile], str], str]] = {
    "no signature": (
        lambda keys: f"eyJhbGciOiJub25lIiwia2lkIjoiUlMyNTYifQ.{keys.token().split('.')[1]}.",
        "token_invalid",
    ),
    "public key as secret": (lambda keys: confuse(keys, "HS256"), "key_unknown"),
    "HMAC under the name of RSA": (lambda keys: confuse(keys, "RS256"), "token_invalid"),
    "key of another algorithm": (lambda keys: keys.token("ES256", headers={"kid": "RS256"}), "token_invalid"),
    "unknown key": (lambda keys: keys.token(headers={"kid": "other"}), "key_unknown"),
    "symmetric key": (lambda keys: keys.token(headers={"kid": "oct"}), "key_unknown"),
    "encryption key": (lambda keys: keys.token(headers={"kid": "enc"}), "key_unknown"),
    "critical header": (lambda keys: keys.token(headers={"crit": ["b64"], "b64": True}), "token_invalid"),
    "other audience": (lambda keys: keys.token(aud="others"), "token_invalid"),
    "no audience": (lambda keys: keys.token(aud=None), "token_invalid"),
    "other issuer": (lambda keys: keys.token(iss="https://evil.example"), "token_invalid"),
    "expired": (lambda keys: keys.token(exp=int(time.time()) - 61), "token_expired"),
    "no end": (lambda keys: keys.token(exp=None), "token_invalid"),
    "not yet valid": (lambda keys: keys.token(nbf=int(time.time()) + 90), "token_invalid"),
    "issued in the future": (lambda keys: keys.token(iat=int(time.time()) + 90), "token_invalid"),
    "no role": (lambda keys: keys.token(laurels_role=None), "token_invalid"),
    "unknown role": (lambda keys: keys.token(laurels_role=["king", 1]), "token_invalid"),
    "no pod": (lambda keys: keys.token(laurels_pod=None), "token_invalid"),
    "pod that is no text": (lambda keys: keys.token(laurels_pod={"a": 1}), "token_invalid"),
    "pod that can't exist": (lambda keys: keys.token(laurels_pod="A pod\n"), "token_invalid"),
    "half a character": (lambda keys: keys.token(laurels_pod="\ud800"), "token_invalid"),
    "player whose token has no time of issue": (lambda keys: keys.token(iat=None), "token_invalid"),
    "player whose token is older than a day": (
        lambda keys: keys.token(iat=int(time.time()) - 86_500),
        "token_expired",
    ),
    "player that is no user id": (lambda keys: keys.token(sub="a\nb"), "token_invalid"),
    "changed claims": (
        lambda keys: ".".join(
            [keys.token().split(".")[0], keys.token(sub="bob").split(".")[1], keys.token().split(".")[2]]
        ),
        "token_invalid",
    ),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_token_is_refused(provider: Provider, reason: str) -> None:
    make, code = REFUSED[reason]
    problem(provider.get(make(provider.keys)), 401, code)


def test_clocks_may_differ_by_a_minute(provider: Provider) -> None:
    now = int(time.time())
    assert provider.get(provider.keys.token(exp=now - 30)).status_code == 200
    assert provider.get(provider.keys.token(nbf=now + 30, iat=now + 30)).status_code == 200


def test_roles_and_scopes_are_those_of_the_claims(provider: Provider) -> None:
    def status(method: str, path: str, **claims: Any) -> int:
        with provider.server.client(provider.keys.token(**claims)) as client:
            return client.request(method, API + path, json={"score": 1} if method == "PUT" else None).status_code

    put = ("PUT", "/leaderboards/private/users/ada")
    assert status(*put, laurels_role="server", scope="openid laurels:scores:write") == 200
    assert status(*put, laurels_role="server", scope="scores:write") == 403
    assert status(*put, laurels_role="server", scp=["laurels:scores:write"]) == 200
    assert status("GET", "/leaderboards/private/top", laurels_role="server") == 200
    assert status("GET", "/leaderboards/private/events", laurels_role="client") == 403
    assert status(*put, laurels_role="client", scope="laurels:scores:write") == 403
    assert status(*put, scope="laurels:scores:write laurels:moderation") == 200
    assert status("DELETE", "/leaderboards/private/users/ada", scope="laurels:moderation") == 403
    assert status("GET", "/leaderboards/private/top", laurels_role="server", laurels_pod="other") == 404
    assert status("GET", "/pods", laurels_role="admin", laurels_pod=None) == 200
    # Only keys sign player tokens.
    with provider.server.client(provider.keys.token(laurels_role="admin")) as ops:
        problem(ops.post(f"{API}/pods/default/tokens", json={"userId": "ada"}), 403, "role_forbidden")


def test_odd_claims_grant_nothing(provider: Provider) -> None:
    body = {"score": 1}
    for scope in (7, {"laurels:scores:write": 1}, [["laurels:scores:write"]], None):
        with provider.server.client(provider.keys.token(laurels_role="server", scope=scope)) as client:
            problem(client.put(f"{API}/leaderboards/private/users/ada", json=body), 403, "scope_forbidden")
    # A pod that does not exist, and a subject that is too long for an id.
    with provider.server.client(
        provider.keys.token(laurels_role="server", laurels_pod="nosuch", scope="laurels:boards:write", sub="s" * 9000)
    ) as client:
        problem(client.post(f"{API}/leaderboards", json={"name": "A board"}), 404, "pod_not_found", "podId")


def test_tokens_of_a_player_are_revoked(provider: Provider) -> None:
    token = provider.keys.token(sub="eve")
    assert provider.get(token).status_code == 200
    with provider.server.client() as api:
        assert api.delete(f"{API}/pods/default/tokens/eve").status_code == 200
    problem(provider.get(token), 401, "token_invalid")
    # Times of issue are whole seconds.
    until(lambda: provider.get(provider.keys.token(sub="eve")).status_code == 200, "a later token is accepted")


def test_rotated_keys_are_fetched_when_a_token_needs_them(provider: Provider) -> None:
    before = provider.keys.token()
    assert provider.get(before).status_code == 200
    provider.keys.rotate("-2")
    try:
        after = provider.keys.token(suffix="-2")
        until(lambda: provider.get(after).status_code == 200, "the new keys are known")
        # The old key is gone, also for tokens that were accepted before.
        assert provider.get(before).status_code == 401
    finally:
        provider.keys.rotate("")
        until(lambda: provider.get(provider.keys.token()).status_code == 200, "the usual keys are known again")


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"oauth_issuer": "https://id.example"}, "LAURELS_OAUTH_AUDIENCE"),
        ({"oauth_issuer": "http://id.example", "oauth_audience": "x"}, "LAURELS_OAUTH_ISSUER"),
        ({"oauth_jwks": "http://id.example/keys", "oauth_audience": "x"}, "LAURELS_OAUTH_JWKS"),
        (
            {"oauth_jwks": "keys.json", "oauth_audience": "x", "oauth_default_role": "admin"},
            "LAURELS_OAUTH_DEFAULT_ROLE",
        ),
    ],
)
def test_dangerous_configuration_is_refused(tmp_path: Path, settings: dict[str, str], field: str) -> None:
    refused = laurels("serve", data_dir=tmp_path, **settings)
    assert refused.returncode == 2
    assert field in refused.stderr
