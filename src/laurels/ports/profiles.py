"""The ProfileStore: the part of the ledger that stores profiles, hidden users, moderation actions and erasures."""

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from laurels.core.board import Board
from laurels.core.people import Hidden, Profile, ProfileChange
from laurels.ports.ledger import Row, StoredEvent


class ModerationAction(Struct, frozen=True):
    """A moderation action to store in the audit log: who did what, when and why.

    `action_id` is unique on a board and makes the action idempotent. `detail` is JSON text that describes what it is
    about.
    """

    action_id: str
    kind: str
    by: str
    at: int
    reason: str | None = None
    detail: str | None = None


class StoredAction(Struct, frozen=True):
    """A moderation action as stored.

    `board_id` 0 means all boards of the pod. `done_at` is None while the action is in progress. `events` counts the
    events that it voided or restored. `undone_by` is the id of the action that undid it.
    """

    id: int
    pod_id: str
    board_id: int
    kind: str
    user_id: str | None
    by: str
    at: int
    reason: str | None
    detail: str | None
    events: int
    done_at: int | None
    undone_by: int | None


class StoredReview(Struct, frozen=True):
    """A score on a review list, and the action that accepted (kind `restore`) or rejected (`reject`) it, if one did."""

    review: StoredAction
    decision: str | None
    decided_by: str | None
    decided_at: int | None
    reason: str | None


class Erasure(Struct, frozen=True):
    """An erased user whose remaining rows must be removed, once no row of theirs can be on its way to the index."""

    pod_id: str
    user_id: str


class ActionStep(Struct, frozen=True):
    """The result of one step of a moderation action: how many events changed, and the rows of their users."""

    events: int
    rows: list[Row]


class ProfileStore(Protocol):
    # Profiles

    async def profiles(self, pod_id: str, user_ids: Sequence[str]) -> list[Profile]:
        """Return the profiles of those users who have one. One query."""

    async def page(self, pod_id: str, after: str, limit: int) -> list[tuple[Profile, dict[int, Hidden]]]:
        """Return up to `limit` profiles of a pod after a user id, ordered by user id.

        Each comes with the boards on which the user is hidden; board 0 means everywhere.
        """

    async def has_names(self, pod_id: str) -> bool:
        """Return True if any profile of a pod has a name or a picture."""

    async def users_named(self, pod_id: str, beginning: str, limit: int) -> list[str]:
        """Return up to `limit` users whose name starts with `beginning`, ignoring case, ordered by name."""

    async def change_profiles(self, pod_id: str, changes: Sequence[ProfileChange], at: int) -> list[Row]:
        """Create or change profiles, move their users to the new segments in every open period, and return their rows.

        All in one transaction. Raises `Conflict` with `too_many_circles` if a user would be in too many circles.
        """

    async def move_users(self, pod_id: str, user_ids: Sequence[str]) -> list[Row]:
        """Move users to the segments of their profiles in every open period, and return their rows.

        This does nothing unless the segments of a board have changed.
        """

    # Hidden users

    async def hide(
        self, pod_id: str, board_id: int, user_id: str, hidden: Hidden, act: ModerationAction
    ) -> tuple[int, list[Row]]:
        """Hide a user on a board, or show them again (Hidden.NO); return the action's id and the changed rows.

        Board 0 means all boards of the pod. Also applies to rows that are created later. Atomic. Idempotent by
        `act.action_id`: a repetition returns the current rows. Raises `Busy` with `refreeze_running` while final ranks
        are being corrected.
        """

    async def hides(self, pod_id: str, user_id: str) -> dict[int, Hidden]:
        """Return how a user is hidden, by board id; 0 means all boards."""

    # Moderation actions

    async def begin_action(
        self, pod_id: str, board_id: int, user_id: str | None, act: ModerationAction
    ) -> StoredAction:
        """Store a moderation action, which is in progress until `finish_action`; return it as stored.

        Idempotent by `act.action_id`: an action that was begun before is returned as it is. Raises `Busy` with
        `refreeze_running` while final ranks of the board are being corrected. Until the action is done, no refreeze of
        the board can begin.
        """

    async def finish_action(self, act: StoredAction, now: int, undoes: int | None = None) -> StoredAction:
        """Mark an action as done, and return it. `undoes` is the id of the action that it undid."""

    async def find_action(self, pod_id: str, act_id: int) -> StoredAction | None: ...

    async def actions(self, pod_id: str, board_id: int | None, before: int, limit: int) -> list[StoredAction]:
        """Return up to `limit` actions of a pod, or those that affect one of its boards, latest first.

        Only actions with an id below `before`.
        """

    async def actions_of_user(self, pod_id: str, user_id: str) -> list[StoredAction]:
        """Return all actions about one user, oldest first."""

    async def unfinished_actions(self, before: int) -> list[StoredAction]:
        """Return the actions begun before an instant and not done: their server may have died."""

    async def reviews(self, board_id: int, decision: str | None, before: int, limit: int) -> list[StoredReview]:
        """Return up to `limit` scores that are or were on the review list of a board, latest first.

        Only those with an id below `before`. `decision`: the kind of the action that decided, "" for pending ones, None
        for all.
        """

    # Void events

    async def events_by_id(self, board_id: int, event_ids: Sequence[str]) -> list[StoredEvent]:
        """Return the events of a board that have these ids. Ids that don't exist are left out."""

    async def events_like(
        self, board_id: int, texts: Sequence[str], after_seq: int, before: int, limit: int
    ) -> tuple[list[StoredEvent], int | None]:
        """Return the events of a board whose metadata contain all of some texts, received before an instant.

        Reads the next `limit` sequence numbers after `after_seq`. Returns the events, and the sequence number to
        continue from; None at the end.
        """

    async def voided_by(self, act_id: int, limit: int) -> list[StoredEvent]:
        """Return up to `limit` events that an action voided and that are still void."""

    async def void(self, board: Board, act: StoredAction, seqs: Sequence[int]) -> ActionStep:
        """Void some events, fold the remaining events of their users again, and return the users' rows.

        Atomic. Events that are void already stay as they are. Does nothing if the action is done, so a step can be
        repeated. Raises `Busy` with `refreeze_running` while final ranks of the board are being corrected.
        """

    async def restore(self, board: Board, undone: StoredAction, act: StoredAction, seqs: Sequence[int]) -> ActionStep:
        """Restore some events that the action `undone` voided, so that they count again; otherwise as `void`.

        `act` is the action that undoes it.
        """

    # Erasure

    async def erase(self, pod_id: str, user_id: str, stand_in: str, act: ModerationAction) -> list[Row] | None:
        """Erase a user from all stored data of a pod, and return the user's rows, which are cleared.

        Data that must stay, so that ranks and totals of other users stay the same, is stored under the name `stand_in`.
        From then on, events of the user with an earlier time are rejected. Returns None, and changes nothing, while a
        period of the pod is being frozen or a moderation action is in progress. Atomic. Idempotent by `act.action_id`.
        """

    async def unswept_erasures(self, before: int) -> list[Erasure]:
        """Return the users who were erased before an instant and whose cleared rows still exist."""

    async def note_forgotten(self) -> int:
        """Set the floor (see `Ledger.read_as_of`) to the last version of any row, and return it."""

    async def sweep_erasure(self, erasure: Erasure) -> None:
        """Remove the cleared rows of an erased user, and the user id itself.

        An index that was last complete before the erasure can't be repaired from there any longer: it must be rebuilt.
        """
