"""The caller of a request: the role, the pod, the scopes and, with a player token, the player."""

import math

from msgspec import Struct

from laurels.core.board import Board, PublicField
from laurels.errors import Forbidden, Invalid, LaurelsError, NotFound, Unauthenticated
from laurels.ports import Role, Scope

ALL_SCOPES = frozenset(Scope)
# The scopes of a role, unless a key limits them.
SCOPES = {
    Role.ADMIN: ALL_SCOPES,
    Role.SERVER: ALL_SCOPES,
    Role.CLIENT: frozenset({Scope.READ}),
    Role.PLAYER: frozenset({Scope.READ}),
}
_FROM_OUTSIDE = {None, Role.CLIENT, Role.PLAYER}


class Caller(Struct, frozen=True):
    """The caller of a request. `role` None: no key was sent.

    `player` is the user id of a player token. `expires_at` is the instant at which the key or the token expires.
    """

    role: Role | None
    pod_id: str | None
    key_id: str
    scopes: frozenset[Scope] = ALL_SCOPES
    player: str | None = None
    expires_at: float = math.inf

    @property
    def is_admin(self) -> bool:
        return self.role is Role.ADMIN

    @property
    def is_from_outside(self) -> bool:
        """Return True if anybody can be this caller. Only these have limits of their address."""
        return self.role in _FROM_OUTSIDE

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
            raise Forbidden("role_forbidden", "A client key can only read ranks. This call needs a server key.")
        if self.role is Role.PLAYER:
            raise Forbidden("role_forbidden", "A player token does not allow this. This call needs a server key.")

    def require_scope(self, scope: Scope) -> None:
        """Raise Forbidden if the key or the token lacks a scope. Does not check callers without a key."""
        if self.role is not None and scope not in self.scopes:
            raise Forbidden("scope_forbidden", f"This needs the scope {scope.value!r}, which your key does not have.")

    def require_person(self, user_id: str) -> None:
        """Raise Forbidden if the caller may not read the personal data of a user.

        Client keys are public, because they ship inside games, so they see what rankings show and nothing else.
        """
        if self.role is Role.CLIENT:
            raise Forbidden(
                "player_token_required",
                "A client key sees rankings, not the data of one player. Use a player token or a server key.",
            )
        if self.player is not None and self.player != user_id:
            raise Forbidden("role_forbidden", "A player token gives access to the data of its own player only.")

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
        assert self.pod_id is not None, "all keys but admin keys have a pod"
        return self.pod_id

    def belongs_to(self, board: Board) -> bool:
        """Return True if the caller has a key of the board's pod, or an admin key."""
        return self.is_admin or (self.role is not None and self.pod_id == board.pod_id)

    def sees(self, board: Board) -> bool:
        return board.public or self.belongs_to(board)

    def sees_field(self, board: Board, field: PublicField) -> bool:
        """Return True if the caller may see a part of a board that public boards show only if they say so."""
        return field in board.public_fields or self.belongs_to(board)


ANONYMOUS = Caller(None, None, "")


def unknown_pod(pod_id: str | None) -> LaurelsError:
    return NotFound("pod_not_found", f"There is no pod {pod_id!r}.", field="podId")
