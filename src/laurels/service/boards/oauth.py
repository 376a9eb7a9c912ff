"""OAuth 2 bearer tokens: JWTs that another identity provider signs, mapped to callers by configuration.

The signing keys are cached, fetched again every few minutes and when a token names an unknown one. A provider that
can't be reached leaves the keys as they are, for a day at most.
"""

import asyncio
import hashlib
import re
from typing import Any

import jwt
import structlog

from laurels.core.ids import composed
from laurels.core.instants import SECOND_US
from laurels.core.limits import ID_PATTERN, POD_ID_CHARS, SLUG_PATTERN, USER_ID_CHARS
from laurels.errors import LaurelsError, Unauthenticated
from laurels.ports import Clock, Role, Scope, SigningKeys
from laurels.service.boards.caller import SCOPES, Caller
from laurels.service.boards.player_tokens import MAX_LIFE_S, bad_token, expired
from laurels.settings import OAuthSettings
from laurels.tasks import end_tasks

log = structlog.get_logger()

# The only algorithms that are accepted, by the type of the key: a token can't choose another one for a key.
ALGORITHMS = {"RSA": "RS256", "EC": "ES256", "OKP": "EdDSA"}
SKEW_S = 60
REFRESH_S = 300.0
# The minimum interval between two fetches, however many tokens name unknown keys.
REFRESH_AT_MOST_S = 5.0
KEEP_S = 24 * 60 * 60
MAX_KEYS = 100
KEY_ID_PREFIX = "oauth:"
KEY_ID_CHARS = 100
_USER_ID = re.compile(ID_PATTERN)
_POD_ID = re.compile(SLUG_PATTERN)


class OAuth:
    def __init__(self, settings: OAuthSettings, source: SigningKeys, clock: Clock) -> None:
        self._settings = settings
        self._source = source
        self._clock = clock
        self._keys: dict[str, jwt.PyJWK] = {}
        self._fetched_at: float | None = None
        self._tried_at: float | None = None
        # A token named a key that is not known.
        self._is_wanted = False
        self._fetching = asyncio.Lock()
        self._refreshing: asyncio.Task[None] | None = None
        # How many times the keys have changed.
        self.changes = 0

    async def open(self) -> None:
        await self._fetch()
        if self._refreshing is None:
            self._refreshing = asyncio.create_task(self._refresh(), name="refresh the signing keys")

    async def close(self) -> None:
        if self._refreshing is not None:
            await end_tasks([self._refreshing])
        await self._source.close()

    async def look_again(self) -> None:
        """Fetch the keys if a token named an unknown one, at most once per REFRESH_AT_MOST_S."""
        if not self._is_wanted:
            return
        async with self._fetching:
            now = asyncio.get_running_loop().time()
            if self._tried_at is None or now - self._tried_at >= REFRESH_AT_MOST_S:
                await self._fetch()

    def identify(self, token: str, header: dict[str, Any]) -> tuple[Caller, int]:
        """Return the caller of a token, and when the token was issued. Raises Unauthenticated."""
        key = self._key_of(header)
        claims = self._verify(token, header, key)
        role = self._role_of(claims)
        pod_id = _text(_claim(claims, self._settings.oauth_pod_claim)) or self._settings.oauth_pod
        if role is Role.ADMIN:
            pod_id = None
        elif pod_id is None or len(pod_id) > POD_ID_CHARS or not _POD_ID.search(pod_id):
            raise bad_token(f"it has no claim {self._settings.oauth_pod_claim!r} with a pod")
        end = (int(claims["exp"]) + SKEW_S) * SECOND_US
        issued_at = int(claims.get("iat", 0)) * SECOND_US
        player = None
        if role is Role.PLAYER:
            player = self._player_of(claims)
            if "iat" not in claims:
                raise bad_token("it does not say when it was issued (iat)")
            # Revocations are kept for as long as a token of this server can live.
            end = min(end, issued_at + MAX_LIFE_S * SECOND_US)
            if self._clock.now_us() >= end:
                raise expired("This token")
        caller = Caller(
            role,
            pod_id,
            _key_id_of(claims["sub"], is_player=player is not None),
            self._scopes_of(claims, role),
            player,
            end,
        )
        return caller, issued_at

    def _key_of(self, header: dict[str, Any]) -> jwt.PyJWK:
        if header.get("alg") not in ALGORITHMS.values():
            raise bad_token("its algorithm is not accepted")
        if "crit" in header:
            raise bad_token("it has critical header parameters that are not supported")
        kid = header.get("kid")
        key = self._keys.get(kid) if isinstance(kid, str) else None
        if kid is None and len(self._keys) == 1:
            (key,) = self._keys.values()
        if key is None:
            self._is_wanted = True
            raise _unknown_key()
        if header["alg"] != ALGORITHMS.get(key.key_type or ""):
            raise bad_token("its algorithm does not match its key")
        return key

    def _verify(self, token: str, header: dict[str, Any], key: jwt.PyJWK) -> dict[str, Any]:
        settings = self._settings
        try:
            return dict(
                jwt.decode(
                    token,
                    key.key,
                    algorithms=[header["alg"]],
                    audience=settings.oauth_audience,
                    issuer=settings.oauth_issuer,
                    leeway=SKEW_S,
                    options={"require": ["exp", "sub", "aud"]},
                )
            )
        except jwt.ExpiredSignatureError:
            raise expired("This token") from None
        except jwt.InvalidSignatureError:
            if "kid" in header:
                raise bad_token("its signature is wrong") from None
            # The token does not say which key it needs, so it may be a new one.
            self._is_wanted = True
            raise _unknown_key() from None
        except jwt.InvalidTokenError as error:
            raise bad_token(str(error)) from None

    def _role_of(self, claims: dict[str, Any]) -> Role:
        """Return the role in the claim, the most powerful one if it lists several, or the default role."""
        found = _claim(claims, self._settings.oauth_role_claim)
        named = {each for each in (found if isinstance(found, list) else [found]) if isinstance(each, str)}
        if found is None and self._settings.oauth_default_role is not None:
            named = {self._settings.oauth_default_role}
        role = next((role for role in Role if role.value in named), None)
        if role is None:
            raise bad_token(f"it has no claim {self._settings.oauth_role_claim!r} with a role")
        return role

    def _player_of(self, claims: dict[str, Any]) -> str:
        player = _text(_claim(claims, self._settings.oauth_player_claim))
        if player is None or len(composed(player)) > USER_ID_CHARS or not _USER_ID.search(player):
            raise bad_token(f"its claim {self._settings.oauth_player_claim!r} is not a user id")
        return composed(player)

    def _scopes_of(self, claims: dict[str, Any], role: Role) -> frozenset[Scope]:
        """Return the scopes in the token. Admins have all; every other role can read at least."""
        if role is Role.ADMIN:
            return SCOPES[role]
        sent = claims.get("scope", claims.get("scp", ""))
        names = sent.split() if isinstance(sent, str) else sent if isinstance(sent, list) else []
        prefix = self._settings.oauth_scope_prefix
        granted = {scope for scope in Scope if f"{prefix}{scope.value}" in names} | {Scope.READ}
        allowed = {Role.SERVER: frozenset(Scope), Role.PLAYER: frozenset({Scope.READ, Scope.SCORES_WRITE})}
        return frozenset(granted) & allowed.get(role, SCOPES[role])

    async def _refresh(self) -> None:
        while True:
            await asyncio.sleep(REFRESH_S)
            async with self._fetching:
                await self._fetch()

    async def _fetch(self) -> None:
        now = asyncio.get_running_loop().time()
        self._tried_at = now
        self._is_wanted = False
        try:
            keys = _read_keys(await self._source.fetch())
        except LaurelsError as error:
            log.warning("signing_keys_not_read", reason=error.message)
            if self._fetched_at is None or now - self._fetched_at < KEEP_S:
                return
            keys = {}
        else:
            self._fetched_at = now
        if keys.keys() != self._keys.keys() or any(keys[kid].key != self._keys[kid].key for kid in keys):
            self.changes += 1
        self._keys = keys


def _read_keys(found: list[dict[str, Any]]) -> dict[str, jwt.PyJWK]:
    """Return the public keys that can sign tokens, by their id. Others are left out."""
    keys: dict[str, jwt.PyJWK] = {}
    for each in found[:MAX_KEYS]:
        if str(each.get("kty")) not in ALGORITHMS or each.get("use", "sig") != "sig":
            continue
        algorithm = ALGORITHMS[str(each["kty"])]
        if each.get("alg", algorithm) != algorithm:
            continue
        try:
            keys[str(each.get("kid", ""))] = jwt.PyJWK(each, algorithm)
        except (jwt.PyJWTError, ValueError, TypeError) as error:
            log.warning("signing_key_not_read", kid=each.get("kid"), reason=str(error))
    return keys


def _claim(claims: dict[str, Any], path: str) -> Any:
    """Return a claim. A name that contains dots is looked up as it is first, because it may be a URL."""
    if path in claims:
        return claims[path]
    value: Any = claims
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _key_id_of(subject: str, *, is_player: bool) -> str:
    """Return the id under which logs and limits know the owner of a token.

    It is a digest if the owner is a player, because logs have no personal data, and if the subject is very long.
    """
    # JSON can contain halves of characters, which no log or database stores.
    if is_player or len(subject) > KEY_ID_CHARS or _text(subject) is None:
        subject = hashlib.sha256(subject.encode(errors="replace")).hexdigest()
    return KEY_ID_PREFIX + subject


def _unknown_key() -> Unauthenticated:
    return Unauthenticated("key_unknown", "The key that signed this token is not known.")


def _text(value: Any) -> str | None:
    # JSON can contain halves of characters, which no database stores.
    is_text = isinstance(value, str) and value and value.encode(errors="ignore").decode() == value
    return str(value) if is_text else None
