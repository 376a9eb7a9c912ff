"""Authentication, and the management of keys, player tokens and pods.

Secrets are compared by hash and never stored. What a caller may do is in caller.py and in the guards of the routes.
"""

import asyncio
import hashlib
import hmac
import math
from collections.abc import Sequence
from typing import Any

import structlog
from msgspec.structs import replace

from laurels.core.ids import new_key_id, new_secret
from laurels.core.instants import SECOND_US
from laurels.core.quotas import Quotas
from laurels.errors import Conflict, Forbidden, Invalid, LaurelsError, NotFound, Unauthenticated
from laurels.ports import Clock, Key, Ledger, Pod, Role, Scope
from laurels.service.boards.caller import ANONYMOUS, SCOPES, Caller, unknown_pod
from laurels.service.boards.oauth import KEY_ID_PREFIX, OAuth
from laurels.service.boards.player_tokens import (
    ALGORITHM,
    MAX_LIFE_S,
    PlayerToken,
    bad_token,
    expired,
    header_of,
    is_jwt,
    sign,
    verify,
)
from laurels.service.boards.registry import Registry
from laurels.tasks import end_tasks

log = structlog.get_logger()

PREFIX = "lrl"
# The id of the key in the server's settings, which is not in the ledger.
ADMIN_KEY_ID = "admin"
KEPT_CALLERS = 10_000
STORE_USED_S = 60.0
ANY_ORIGIN = "*"


class Access:
    """Keys and pods. All valid keys are in memory: authentication costs one hash, or one lookup for a cached token."""

    def __init__(
        self,
        ledger: Ledger,
        registry: Registry,
        clock: Clock,
        admin_key: str,
        oauth: OAuth | None = None,
        quotas: Quotas = Quotas(),  # noqa: B008 - a frozen value
    ) -> None:
        self._ledger = ledger
        self._registry = registry
        self._clock = clock
        self._admin_digest = _digest(admin_key)
        self._oauth = oauth
        self._quotas = quotas
        # The changes of the provider's keys that the cached callers reflect.
        self._oauth_changes = 0
        self._keys: dict[str, Key] = {}
        # When the tokens of a player were revoked, by pod and user.
        self._revocations: dict[tuple[str, str], int] = {}
        self._pods: dict[str, Pod] = {}
        # The callers of valid tokens, cached until a key changes.
        self._callers: dict[str, Caller] = {}
        # When keys were used, until that is stored.
        self._used: dict[str, int] = {}
        self._storing: asyncio.Task[None] | None = None
        self._changes = 0
        # Keeps a reload that began earlier from dropping a key that was just created.
        self._changing = asyncio.Lock()

    async def reload(self) -> None:
        """Load the valid keys, the revoked player tokens and the allowed origins from the ledger."""
        async with self._changing:
            keys = await self._ledger.keys()
            revocations = await self._ledger.token_revocations(self._oldest_token())
            pods = await self._ledger.pods()
            self._keys = {key.key_id: key for key in keys}
            self._revocations = revocations
            self._pods = {pod.pod_id: pod for pod in pods}
            self._changed()

    async def open(self) -> None:
        """Load what `reload` loads, and the signing keys of the OAuth 2 provider if there is one."""
        await self.reload()
        if self._oauth is not None:
            await self._oauth.open()

    async def look_again(self) -> None:
        """Look for a key or a board that another server has just created, or for a new signing key."""
        if self._oauth is not None:
            await self._oauth.look_again()
        await self._registry.look_again()

    def start(self) -> None:
        self._storing = asyncio.create_task(self._store_regularly(), name="store when keys were used")

    async def close(self) -> None:
        if self._storing is not None:
            await end_tasks([self._storing])
            await self.store_used()
        if self._oauth is not None:
            await self._oauth.close()

    # Authentication

    def authenticate(self, token: str | None) -> Caller:
        """Return the caller who sent a key or a token. Raises Unauthenticated."""
        if token is None:
            return ANONYMOUS
        now = self._clock.now_us()
        if self._oauth is not None and self._oauth.changes != self._oauth_changes:
            self._oauth_changes = self._oauth.changes
            self._changed()
        caller = self._callers.get(token)
        if caller is None:
            caller = self._identify(token, now)
            if len(self._callers) >= KEPT_CALLERS:
                self._callers.clear()
            self._callers[token] = caller
        if now >= caller.expires_at:
            raise expired("This token" if is_jwt(token) else "This key")
        if caller.player is None and caller.key_id in self._keys:
            self._used[caller.key_id] = now
        return caller

    @property
    def changes(self) -> int:
        """Return how many times the keys have changed, including the signing keys of the OAuth 2 provider."""
        return self._changes if self._oauth is None else self._changes + self._oauth.changes

    def _changed(self) -> None:
        self._changes += 1
        self._callers.clear()

    def _identify(self, token: str, now: int) -> Caller:
        digest = _digest(token)
        if hmac.compare_digest(digest, self._admin_digest):
            return Caller(Role.ADMIN, None, ADMIN_KEY_ID)
        if is_jwt(token):
            header = header_of(token)
            if self._oauth is not None and header.get("alg") != ALGORITHM:
                return self._identify_oauth(self._oauth, token, header)
            return self._identify_player(token, str(header.get("kid", "")), now)
        parts = token.split("_", 2)
        key = self._keys.get(parts[1]) if len(parts) == 3 and parts[0] == PREFIX else None
        if key is None or not hmac.compare_digest(digest, key.digest):
            raise Unauthenticated("key_unknown", "This key is not known, or was revoked.")
        return Caller(key.role, key.pod_id, key.key_id, scopes_of(key), None, _end_of(key))

    def _identify_oauth(self, oauth: OAuth, token: str, header: dict[str, Any]) -> Caller:
        caller, issued_at = oauth.identify(token, header)
        if caller.player is not None:
            self._need_not_revoked(caller.pod_id, caller.player, issued_at)
        return caller

    def _need_not_revoked(self, pod_id: str | None, player: str, issued_at: int) -> None:
        if issued_at <= self._revocations.get((pod_id or "", player), -1):
            raise bad_token("the tokens of this player were revoked")

    def _identify_player(self, token: str, key_id: str, now: int) -> Caller:
        digest = self._admin_digest
        if key_id != ADMIN_KEY_ID:
            issuer = self._keys.get(key_id)
            if issuer is None:
                raise Unauthenticated("key_unknown", "The key that issued this token is not known, or was revoked.")
            digest = issuer.digest
        found = verify(token, digest, now)
        issuer_end, scopes = math.inf, found.scopes
        if key_id != ADMIN_KEY_ID:
            issuer = self._keys[key_id]
            # Whoever has the key can sign any token, so a token never allows more than its key.
            issuer_end, scopes = _end_of(issuer), scopes & scopes_of(issuer)
            if Scope.SCORES_WRITE not in scopes_of(issuer) or issuer.pod_id not in {None, found.pod_id}:
                raise bad_token("its key may not issue tokens for this pod")
        self._need_not_revoked(found.pod_id, found.user_id, found.issued_at)
        return Caller(Role.PLAYER, found.pod_id, key_id, scopes, found.user_id, min(found.expires_at, issuer_end))

    # Keys

    async def create_key(
        self,
        pod_id: str | None,
        role: Role,
        label: str | None,
        *,
        expires_at: int | None = None,
        scopes: Sequence[Scope] | None = None,
        idempotency_key: str | None = None,
    ) -> tuple[Key, str]:
        """Create a key and return it with its token, which can't be shown again. `pod_id` None: an admin key."""
        now = self._clock.now_us()
        _check_scopes(role, scopes)
        if expires_at is not None and expires_at <= now:
            raise Invalid("out_of_range", "expiresAt must be in the future.", field="expiresAt", rule="> now")
        key_id = new_key_id()
        if idempotency_key is not None:
            key_id = hashlib.sha256(f"{pod_id or ''}/{idempotency_key}".encode()).hexdigest()[:12]
        token = f"{PREFIX}_{key_id}_{new_secret()}"
        allowed = None if scopes is None else tuple(sorted(set(scopes)))
        key = Key(key_id, pod_id, role, label, _digest(token), now, expires_at, allowed)
        await self._store_key(key)
        return key, token

    async def adopt_key(self, key: Key) -> Key:
        """Import a key that another Laurels installation created. Idempotent."""
        _check_scopes(key.role, key.scopes)
        held = self._keys.get(key.key_id)
        if held is not None and (held.pod_id, held.role, held.digest) == (key.pod_id, key.role, key.digest):
            return held
        stored = replace(key, created_at=self._clock.now_us())
        await self._store_key(stored)
        return stored

    async def rotate_key(
        self, pod_id: str | None, key_id: str, overlap_s: int, idempotency_key: str | None = None
    ) -> tuple[Key, str]:
        """Create a key with the permissions of another, which expires after `overlap_s` seconds."""
        old = await self._find_key(pod_id, key_id)
        # Without the end of the old key, because a key is often rotated just before it expires.
        made = await self.create_key(pod_id, old.role, old.label, scopes=old.scopes, idempotency_key=idempotency_key)
        end = self._clock.now_us() + overlap_s * SECOND_US
        async with self._changing:
            await self._ledger.expire_key(key_id, end)
            held = self._keys.get(key_id)
            if held is not None and (held.expires_at is None or held.expires_at > end):
                self._keys[key_id] = replace(held, expires_at=end)
            self._changed()
        await self._registry.tell()
        return made

    async def keys_of(self, pod_id: str | None) -> list[Key]:
        """Return the keys of a pod, or the admin keys; expired ones, too."""
        if pod_id is not None:
            await self._need_pod(pod_id)
        await self._registry.look_again()
        return [
            replace(key, used_at=max(key.used_at or 0, self._used.get(key.key_id, 0)) or None)
            for key in self._keys.values()
            if key.pod_id == pod_id
        ]

    async def revoke_key(self, pod_id: str | None, key_id: str) -> Key:
        """Revoke a key, and with it the player tokens that it issued. Return the key."""
        revoked = await self._find_key(pod_id, key_id)
        async with self._changing:
            if not await self._ledger.revoke_key(key_id):
                raise _unknown_key(pod_id, key_id)
            self._keys.pop(key_id, None)
            self._changed()
        await self._registry.tell()
        return revoked

    async def store_used(self) -> None:
        """Store when keys were last used. Loses up to a minute of that if the server is killed."""
        used, self._used = self._used, {}
        used = {key_id: at for key_id, at in used.items() if key_id in self._keys}
        if not used:
            return
        try:
            await self._ledger.mark_used(list(used.items()))
        except LaurelsError as error:
            self._used = used | self._used
            log.debug("used_keys_not_stored", reason=error.message)
            return
        for key_id, at in used.items():
            if (key := self._keys.get(key_id)) is not None:
                self._keys[key_id] = replace(key, used_at=at)

    async def _store_regularly(self) -> None:
        while True:
            await asyncio.sleep(STORE_USED_S)
            await self.store_used()

    async def _store_key(self, key: Key) -> None:
        async with self._changing:
            await self._ledger.create_key(key)
            self._keys[key.key_id] = key
        await self._registry.tell()

    async def _find_key(self, pod_id: str | None, key_id: str) -> Key:
        if key_id not in self._keys:
            await self._registry.look_again()
        key = self._keys.get(key_id)
        if key is None or key.pod_id != pod_id:
            raise _unknown_key(pod_id, key_id)
        return key

    # Player tokens

    async def create_token(
        self, caller: Caller, pod_id: str, user_id: str, life_s: int, *, may_write: bool
    ) -> tuple[PlayerToken, str]:
        """Return a token for a player, signed for the key of the caller."""
        await self._need_pod(pod_id)
        caller.require_scope(Scope.READ)
        digest = self._admin_digest
        if caller.key_id.startswith(KEY_ID_PREFIX):
            raise Forbidden("role_forbidden", "Only a key can issue player tokens, because it signs them.")
        if caller.key_id != ADMIN_KEY_ID:
            digest = (await self._find_key(caller.pod_id, caller.key_id)).digest
        now = self._clock.now_us()
        # JWTs expire at full seconds: round up, so that the token lasts at least as long as asked.
        ends_at = min(-(-(now + life_s * SECOND_US) // SECOND_US), (now + MAX_LIFE_S * SECOND_US) // SECOND_US)
        token = PlayerToken(pod_id, user_id, now, ends_at * SECOND_US, may_write)
        return token, sign(token, caller.key_id, digest)

    async def revoke_tokens(self, pod_id: str, user_id: str) -> int:
        """Refuse all tokens that a player has so far, on every server, and return the instant."""
        now = self._clock.now_us()
        async with self._changing:
            await self._ledger.revoke_tokens(pod_id, user_id, now, self._oldest_token())
            self._revocations[pod_id, user_id] = now
            self._changed()
        await self._registry.tell()
        return now

    def _oldest_token(self) -> int:
        return self._clock.now_us() - (MAX_LIFE_S + 60) * SECOND_US

    # Pods

    async def pod_of(self, caller: Caller, pod_id: str | None) -> str:
        """Return the pod of a call; raise NotFound if it does not exist, which admin keys and OAuth tokens can name."""
        found = caller.require_pod(pod_id)
        if found not in self._pods:
            await self._need_pod(found)
        return found

    async def create_pod(self, pod_id: str, name: str) -> Pod:
        for pod in await self._ledger.pods():
            if pod.pod_id != pod_id and pod.pod_id.replace("_", ".") == pod_id.replace("_", "."):
                raise Conflict(
                    "pod_exists",
                    f"Pod {pod.pod_id!r} exists, and Kafka can't tell '.' from '_' in names. Choose another podId.",
                    field="podId",
                )
        return await self._ledger.create_pod(Pod(pod_id, name, self._clock.now_us()))

    async def pods(self) -> list[Pod]:
        return await self._ledger.pods()

    async def pod(self, pod_id: str) -> Pod | None:
        return next((pod for pod in await self._ledger.pods() if pod.pod_id == pod_id), None)

    async def change_pod(self, pod_id: str, origins: Sequence[str] | None, quotas: Quotas | None) -> Pod:
        """Set from which web origins browsers may call the API about a pod, and its quotas. None: unchanged."""
        async with self._changing:
            chosen = None if origins is None else tuple(dict.fromkeys(origins))
            pod = await self._ledger.change_pod(pod_id, chosen, quotas)
            self._pods[pod_id] = pod
        await self._registry.tell()
        return pod

    def allows_origin(self, pod_id: str | None, origin: str) -> bool:
        """Return True if a pod allows calls from an origin. None: if any pod does."""
        pods = self._pods.values() if pod_id is None else [self._pods[pod_id]] if pod_id in self._pods else []
        return any(origin in pod.allowed_origins or ANY_ORIGIN in pod.allowed_origins for pod in pods)

    def quotas_of(self, pod_id: str) -> Quotas:
        """Return the quotas of a pod: its own, and those in the settings for the others."""
        pod = self._pods.get(pod_id)
        return self._quotas if pod is None else pod.quotas.over(self._quotas)

    async def _need_pod(self, pod_id: str) -> None:
        if all(pod.pod_id != pod_id for pod in await self._ledger.pods()):
            raise unknown_pod(pod_id)


def scopes_of(key: Key) -> frozenset[Scope]:
    return SCOPES[key.role] if key.scopes is None else frozenset(key.scopes) & SCOPES[key.role]


def _end_of(key: Key) -> float:
    return math.inf if key.expires_at is None else key.expires_at


def _check_scopes(role: Role, scopes: Sequence[Scope] | None) -> None:
    if scopes is not None and role is not Role.SERVER:
        raise Invalid(
            "out_of_range",
            f"Only server keys have scopes to choose from; a {role.value} key has a fixed set.",
            field="scopes",
            rule="only with role server",
        )


def _unknown_key(pod_id: str | None, key_id: str) -> NotFound:
    owner = "There is no admin" if pod_id is None else f"Pod {pod_id!r} has no"
    return NotFound("key_not_found", f"{owner} key {key_id!r}.", field="keyId")


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
