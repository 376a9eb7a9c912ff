"""Authentication and permissions: who is calling, and what their key may do.

Secrets are compared by hash and never stored.
"""

import asyncio
import hashlib
import hmac

from msgspec import Struct

from laurels.core.board import Board
from laurels.core.ids import new_key_id, new_secret
from laurels.errors import Conflict, Forbidden, Invalid, LaurelsError, NotFound, Unauthenticated
from laurels.ports import Clock, Key, Ledger, Pod, Role
from laurels.service.boards.registry import Registry

PREFIX = "lrl"
KEPT_CALLERS = 10_000


class Caller(Struct, frozen=True):
    """The caller of a request. `role` None: no key was sent."""

    role: Role | None
    pod_id: str | None
    key_id: str

    @property
    def is_admin(self) -> bool:
        return self.role is Role.ADMIN

    def require_key(self) -> None:
        if self.role is None:
            raise Unauthenticated("key_required", "Send a key: 'Authorization: Bearer KEY' or 'X-API-Key: KEY'.")

    def require_admin(self) -> None:
        self.require_key()
        if not self.is_admin:
            raise Forbidden("role_forbidden", f"This needs an admin key; yours is a {self.role} key.")

    def require_writer(self) -> None:
        self.require_key()
        if self.role is Role.CLIENT:
            raise Forbidden("role_forbidden", "A client key can only read. This call needs a server key.")

    def require_pod(self, pod_id: str | None, where: str = "the query string (?podId=POD)") -> str:
        """Return the pod of a call: the key's own pod, or, for an admin key, the given one.

        `where` says in the error where the call takes a podId.
        """
        self.require_key()
        if self.is_admin:
            if pod_id is None:
                raise Invalid(
                    "missing_field",
                    f"An admin key belongs to no pod. Name one: add podId to {where}.",
                    field="podId",
                    rule="required",
                )
            return pod_id
        if pod_id not in {None, self.pod_id}:
            raise unknown_pod(pod_id)
        assert self.pod_id is not None, "server and client keys have a pod"
        return self.pod_id

    def sees(self, board: Board) -> bool:
        return board.public or self.is_admin or (self.role is not None and self.pod_id == board.pod_id)


ANONYMOUS = Caller(None, None, "")


class Access:
    """Keys and pods. All valid keys are in memory: authentication costs one hash, or one lookup for a cached token."""

    def __init__(self, ledger: Ledger, registry: Registry, clock: Clock, admin_key: str) -> None:
        self._ledger = ledger
        self._registry = registry
        self._clock = clock
        self._admin_digest = _digest(admin_key)
        self._keys: dict[str, Key] = {}
        # The callers of valid tokens, cached until a key changes.
        self._callers: dict[str, Caller] = {}
        # How many times the keys have changed.
        self.changes = 0
        # Keeps a reload that began earlier from dropping a key that was just created.
        self._changing = asyncio.Lock()

    async def reload(self) -> None:
        """Load the valid keys from the ledger."""
        async with self._changing:
            self._keys = {key.key_id: key for key in await self._ledger.keys()}
            self._changed()

    def authenticate(self, token: str | None) -> Caller:
        if token is None:
            return ANONYMOUS
        caller = self._callers.get(token)
        if caller is None:
            caller = self._identify(token)
            if len(self._callers) >= KEPT_CALLERS:
                self._callers.clear()
            self._callers[token] = caller
        return caller

    def _changed(self) -> None:
        self.changes += 1
        self._callers.clear()

    def _identify(self, token: str) -> Caller:
        digest = _digest(token)
        if hmac.compare_digest(digest, self._admin_digest):
            return Caller(Role.ADMIN, None, "admin")
        parts = token.split("_", 2)
        key = self._keys.get(parts[1]) if len(parts) == 3 and parts[0] == PREFIX else None
        if key is None or not hmac.compare_digest(digest, key.digest):
            raise Unauthenticated("key_unknown", "This key is not known, or was revoked.")
        return Caller(key.role, key.pod_id, key.key_id)

    async def create_key(
        self, pod_id: str, role: Role, label: str | None, idempotency_key: str | None = None
    ) -> tuple[Key, str]:
        """Create a key and return it with its token, which can't be shown again."""
        key_id = new_key_id()
        if idempotency_key is not None:
            key_id = hashlib.sha256(f"{pod_id}/{idempotency_key}".encode()).hexdigest()[:12]
        token = f"{PREFIX}_{key_id}_{new_secret()}"
        key = Key(key_id, pod_id, role, label, _digest(token), self._clock.now_us())
        async with self._changing:
            await self._ledger.create_key(key)
            self._keys[key_id] = key
        await self._registry.tell()
        return key, token

    async def adopt_key(self, pod_id: str, role: Role, label: str | None, key_id: str, digest: bytes) -> Key:
        """Import a key that another Laurels installation created. Idempotent."""
        key = Key(key_id, pod_id, role, label, digest, self._clock.now_us())
        held = self._keys.get(key_id)
        if held is not None and (held.pod_id, held.role, held.digest) == (pod_id, role, digest):
            return held
        async with self._changing:
            await self._ledger.create_key(key)
            self._keys[key_id] = key
        await self._registry.tell()
        return key

    async def pod_of(self, caller: Caller, pod_id: str | None) -> str:
        """Return the pod of a call; raise NotFound if an admin key names a pod that does not exist."""
        found = caller.require_pod(pod_id)
        if caller.is_admin:
            await self._need_pod(found)
        return found

    async def keys_of(self, pod_id: str) -> list[Key]:
        await self._need_pod(pod_id)
        await self._registry.look_again()
        return [key for key in self._keys.values() if key.pod_id == pod_id]

    async def revoke_key(self, pod_id: str, key_id: str) -> None:
        if key_id not in self._keys:
            await self._registry.look_again()
        async with self._changing:
            key = self._keys.get(key_id)
            if key is None or key.pod_id != pod_id or not await self._ledger.revoke_key(key_id):
                raise NotFound("key_not_found", f"Pod {pod_id!r} has no key {key_id!r}.", field="keyId")
            self._keys.pop(key_id, None)
            self._changed()
        await self._registry.tell()

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

    async def _need_pod(self, pod_id: str) -> None:
        if all(pod.pod_id != pod_id for pod in await self._ledger.pods()):
            raise unknown_pod(pod_id)


def unknown_pod(pod_id: str | None) -> LaurelsError:
    return NotFound("pod_not_found", f"There is no pod {pod_id!r}.", field="podId")


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
