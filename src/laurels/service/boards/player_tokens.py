"""Player tokens: short-lived, signed statements that a request comes from one player of a pod.

A token is a JWT (HS256). Its `kid` is the key that issued it, and its signature is made with a secret derived from the
digest of that key. So every server that knows the key can check the token, and revoking the key revokes its tokens.
"""

import hashlib
import hmac
from typing import Any

import jwt
from msgspec import Struct

from laurels.core.instants import SECOND_US
from laurels.errors import Unauthenticated
from laurels.ports import Scope

ISSUER = "laurels"
MAX_LIFE_S = 24 * 60 * 60
# How far the clocks of servers may differ.
SKEW_S = 60
ALGORITHM = "HS256"
_CLAIMS = ["iss", "sub", "pod", "iat", "exp", "issuedAt"]


class PlayerToken(Struct, frozen=True):
    """The content of a token. Times are in microseconds since 1970."""

    pod_id: str
    user_id: str
    issued_at: int
    expires_at: int
    may_write: bool

    @property
    def scopes(self) -> frozenset[Scope]:
        return frozenset({Scope.READ, Scope.SCORES_WRITE} if self.may_write else {Scope.READ})


def is_jwt(token: str) -> bool:
    """Return True if a token looks like a JWT. API keys contain no dot."""
    return token.count(".") == 2 and token.startswith("ey")


def sign(token: PlayerToken, key_id: str, digest: bytes) -> str:
    claims = {
        "iss": ISSUER,
        "sub": token.user_id,
        "pod": token.pod_id,
        "iat": token.issued_at // SECOND_US,
        "exp": token.expires_at // SECOND_US,
        # In microseconds, so that a token can be issued in the same second as a revocation.
        "issuedAt": token.issued_at,
        "scope": " ".join(sorted(token.scopes)),
    }
    return jwt.encode(claims, _secret(digest), ALGORITHM, headers={"kid": key_id})


def header_of(token: str) -> dict[str, Any]:
    """Return the header of a JWT, which is not verified yet."""
    try:
        return dict(jwt.get_unverified_header(token))
    except jwt.InvalidTokenError:
        raise bad_token("it is malformed") from None


def verify(token: str, digest: bytes, now: int) -> PlayerToken:
    """Return the content of a token that the key with this digest issued. Raises Unauthenticated."""
    try:
        claims = jwt.decode(
            token,
            _secret(digest),
            algorithms=[ALGORITHM],
            issuer=ISSUER,
            # Checked below, with this server's clock.
            options={"require": _CLAIMS, "verify_exp": False, "verify_iat": False},
        )
    except jwt.InvalidTokenError:
        raise bad_token("it was not issued by this server, or its key was revoked") from None
    expires_at = int(claims["exp"]) * SECOND_US
    issued_at = int(claims["issuedAt"])
    if expires_at - issued_at > MAX_LIFE_S * SECOND_US or issued_at > now + SKEW_S * SECOND_US:
        # Otherwise a token with a forged time would outlive its revocation.
        raise bad_token("it is valid for too long, or from a later time")
    if now >= expires_at:
        raise expired("This player token")
    may_write = Scope.SCORES_WRITE in str(claims.get("scope", "")).split()
    return PlayerToken(str(claims["pod"]), str(claims["sub"]), issued_at, expires_at, may_write)


def bad_token(why: str) -> Unauthenticated:
    return Unauthenticated("token_invalid", f"This token is not accepted: {why}.")


def expired(what: str) -> Unauthenticated:
    return Unauthenticated("token_expired", f"{what} has expired. Get a new one.")


def _secret(digest: bytes) -> bytes:
    return hmac.digest(digest, b"laurels player token", hashlib.sha256)
