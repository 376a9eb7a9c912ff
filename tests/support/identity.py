"""Identity providers for tests: a real OpenID Connect server, and key files for tokens of any kind."""

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from support.running import PLAIN, START_TIMEOUT_S, free_port

AUDIENCE = "laurels"
CALLBACK = "http://127.0.0.1/callback"


class OidcServer:
    """The package oidc-provider-mock: discovery, keys, and the authorization code flow, over HTTP."""

    def __init__(self, users: list[dict[str, Any]], port: int | None = None) -> None:
        self.port = port or free_port()
        self.issuer = f"http://127.0.0.1:{self.port}"
        claims = [part for user in users for part in ("--user-claims", json.dumps(user))]
        command = [sys.executable, "-m", "oidc_provider_mock", "--port", str(self.port), *claims]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        end = time.monotonic() + START_TIMEOUT_S
        while True:
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"{self.issuer}/jwks", verify=PLAIN).status_code == 200:
                    return
            assert time.monotonic() < end, "the OpenID Connect server did not start"
            time.sleep(0.1)

    def sign_in(self, user: str) -> str:
        """Sign a user in, as a browser does, and return the token."""
        asked = {"client_id": AUDIENCE, "redirect_uri": CALLBACK, "response_type": "code", "scope": "openid"}
        answer = httpx.post(f"{self.issuer}/oauth2/authorize", params=asked, data={"sub": user}, verify=PLAIN)
        code = httpx.URL(answer.headers["location"]).params["code"]
        body = {"grant_type": "authorization_code", "code": code, "redirect_uri": CALLBACK}
        answer = httpx.post(f"{self.issuer}/oauth2/token", data=body, auth=(AUDIENCE, "secret"), verify=PLAIN)
        return str(answer.json()["id_token"])

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(10)


@contextlib.contextmanager
def oidc_server(*users: dict[str, Any]) -> Iterator[OidcServer]:
    server = OidcServer(list(users))
    try:
        yield server
    finally:
        server.stop()


class KeyFile:
    """A JWKS file with a key of each algorithm. `kid` is the algorithm, with a suffix after a rotation."""

    ISSUER = "https://id.example"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rotate("")

    def rotate(self, suffix: str) -> None:
        """Replace all keys."""
        self.private: dict[str, Any] = {
            f"RS256{suffix}": rsa.generate_private_key(65537, 2048),
            f"ES256{suffix}": ec.generate_private_key(ec.SECP256R1()),
            f"EdDSA{suffix}": ed25519.Ed25519PrivateKey.generate(),
        }
        keys = []
        for kid, private in self.private.items():
            algorithm = jwt.get_algorithm_by_name(kid.removesuffix(suffix))
            public: dict[str, Any] = json.loads(algorithm.to_jwk(private.public_key()))
            keys.append({name: value for name, value in public.items() if name != "key_ops"} | {"kid": kid})
        # Keys that can't sign tokens must be ignored.
        keys += [{"kty": "oct", "kid": "oct", "k": "c2VjcmV0"}, keys[0] | {"kid": "enc", "use": "enc"}, {"kty": "RSA"}]
        self.path.write_text(json.dumps({"keys": keys}), "utf-8")

    def token(
        self, algorithm: str = "RS256", *, suffix: str = "", headers: dict[str, Any] | None = None, **claims: Any
    ) -> str:
        """Return a token. `claims` replace the usual ones; None removes one."""
        now = int(time.time())
        usual = {
            "iss": self.ISSUER,
            "aud": AUDIENCE,
            "sub": "ada",
            "iat": now,
            "exp": now + 300,
            "laurels_role": "player",
            "laurels_pod": "default",
        }
        sent = {name: value for name, value in (usual | claims).items() if value is not None}
        kid = algorithm + suffix
        return jwt.encode(sent, self.private[kid], algorithm, {"kid": kid} | (headers or {}))
