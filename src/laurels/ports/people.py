"""The part of the ledger that is about people: profiles, who is hidden, what was done to scores, and erasure."""

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from laurels.core.board import Board
from laurels.core.people import Hidden, Profile, ProfileChange
from laurels.ports.ledger import Row, StoredEvent


class Act(Struct, frozen=True):
    """Something that somebody did to stored scores, with who, when and why. Unique by `act_id` on a board.

    `detail`: JSON text, what it was about.
    """

    act_id: str
    kind: str
    by: str
    at: int
    reason: str | None = None
    detail: str | None = None


class StoredAct(Struct, frozen=True):
    """An act as it is kept. `board_id` 0: all boards of the pod. `done_at` None: it is going on.

    `events`: how many it voided, or restored. `undone_by`: the act that took it back.
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


class Erasure(Struct, frozen=True):
    """A user whose traces are to be swept, once no row of theirs can be on its way any more."""

    pod_id: str
    user_id: str


class Touched(Struct, frozen=True):
    """What an act did in one step: how many events it was about, and the rows of their users."""

    events: int
    rows: list[Row]


class People(Protocol):
    # Profiles

    async def profiles(self, pod_id: str, user_ids: Sequence[str]) -> list[Profile]:
        """Those that there are, in one query."""

    async def page(self, pod_id: str, after: str, limit: int) -> list[tuple[Profile, dict[int, Hidden]]]:
        """Everybody of whom a pod knows something, by user id, and where they are hidden (0: everywhere)."""

    async def has_names(self, pod_id: str) -> bool:
        """Whether any profile of a pod has a name or a picture."""

    async def users_named(self, pod_id: str, beginning: str, limit: int) -> list[str]:
        """Users whose name begins so, whatever its case, by name."""

    async def change_profiles(self, pod_id: str, changes: Sequence[ProfileChange], at: int) -> list[Row]:
        """Change or make profiles, and move their users in every open period, all at once; gives the rows of those.

        Conflict if somebody would be in too many circles.
        """

    # Who is hidden

    async def hide(self, pod_id: str, board_id: int, user_id: str, hidden: Hidden, act: Act) -> tuple[int, list[Row]]:
        """Hide a user on a board (0: on all of the pod), or show one again; gives the act's number and the rows.

        It goes for rows that are made later, too. Idempotent by `act.act_id`.
        """

    async def hides(self, pod_id: str, user_id: str) -> dict[int, Hidden]:
        """Where a user is hidden, by board; 0: everywhere."""

    # Acts

    async def begin_act(self, pod_id: str, board_id: int, user_id: str | None, act: Act) -> StoredAct:
        """Write an act down, which goes on until `finish_act`; one that was begun before is given as it is.

        Conflict while final ranks of the board are being set right; until it is done, none are.
        """

    async def finish_act(self, act: StoredAct, now: int, undoes: int | None = None) -> StoredAct:
        """It is done. `undoes`: the act that it took back."""

    async def find_act(self, pod_id: str, act_id: int) -> StoredAct | None: ...

    async def acts(self, pod_id: str, board_id: int | None, before: int, limit: int) -> list[StoredAct]:
        """The acts of a pod, or those about one of its boards, last first, from before a number."""

    async def acts_of_user(self, pod_id: str, user_id: str) -> list[StoredAct]:
        """What was done to one user."""

    async def unfinished_acts(self, before: int) -> list[StoredAct]:
        """Acts that were begun before an instant and are not done: their server may have died."""

    # Events that don't count

    async def events_by_id(self, board_id: int, event_ids: Sequence[str]) -> list[StoredEvent]:
        """Those that there are."""

    async def events_like(
        self, board_id: int, texts: Sequence[str], after_seq: int, before: int, limit: int
    ) -> tuple[list[StoredEvent], int | None]:
        """Events whose metadata contain all of some texts, received before an instant.

        Looks at `limit` places in the order of arrival; gives the events, and where to go on, or None at the end.
        """

    async def voided_by(self, act_id: int, limit: int) -> list[StoredEvent]:
        """Some of the events that an act voided and that are still void."""

    async def void(self, board: Board, act: StoredAct, seqs: Sequence[int]) -> Touched:
        """Let some events not count, and fold what is left of their users' events anew. Those that are void stay so.

        An act that is done does nothing any more.
        """

    async def restore(self, board: Board, undone: StoredAct, act: StoredAct, seqs: Sequence[int]) -> Touched:
        """The contrary: let some events that an act voided count again. `act`: the one that undoes it."""

    # Erasure

    async def erase(self, pod_id: str, user_id: str, stand_in: str, act: Act) -> list[Row] | None:
        """Take a user out of everything that is kept of a pod, and give the rows, which are cleared.

        What has to stay, so that ranks and totals do, stays under the name `stand_in`. From now on events of the user
        with an earlier time are refused. None, and nothing is done, while a period of the pod is being frozen or an act
        is going on. Idempotent by `act.act_id`.
        """

    async def unswept_erasures(self, before: int) -> list[Erasure]:
        """Users who were erased before an instant and whose last traces are still there."""

    async def note_forgotten(self) -> int:
        """Note, and give, the last version of any row: from now on it is the floor of `Ledger.read_as_of`."""

    async def sweep_erasure(self, erasure: Erasure) -> None:
        """Remove the cleared rows of an erased user, and the name itself.

        An index that was last complete before the erasure can't be followed on from there any more, but is built anew.
        """
