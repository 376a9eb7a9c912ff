"""What somebody looks at: its state, and the frames that lead from one state to the next.

All who look at the same thing share one view, and with it the frames, each of which is made and encoded once. A view
keeps its last frames for as long as they are less than the state itself: who is further behind gets that.
"""

import secrets
from collections import deque
from enum import StrEnum
from typing import NamedTuple

from msgspec import Struct

from laurels.core.board import Board, Status
from laurels.core.windows import Period
from laurels.ports import Place
from laurels.service.people import Named
from laurels.service.reads import Selection

KEPT_FRAMES = 100
# However small a view is, so many changes of it are kept.
KEPT_CHANGES = 16


class LookTop(Struct, frozen=True):
    """The best of a ranking."""

    board_id: int
    selection: Selection
    limit: int

    @property
    def size(self) -> int:
        return self.limit


class LookAround(Struct, frozen=True):
    """A user and the neighbours; nobody, while the user is not ranked."""

    board_id: int
    selection: Selection
    user_id: str
    above: int
    below: int

    @property
    def size(self) -> int:
        return self.above + 1 + self.below


Look = LookTop | LookAround


class Facts(Struct, frozen=True):
    """What is shown of a board beside its ranks."""

    name: str
    status: Status
    period: Period
    # When it takes scores: from its own start, or its board's, until its own end, or its board's.
    start: int | None
    end: int | None

    @classmethod
    def of(cls, board: Board, period: Period, now: int) -> "Facts":
        starts = [start for start in (period.start, board.start_at) if start is not None]
        return cls(board.name, board.status_at(now), period, max(starts, default=None), board.end_of(period))


class Shown(NamedTuple):
    """One who is ranked, with a name."""

    place: Place
    named: Named


class State(Struct, frozen=True):
    """All that a subscriber sees. `degraded`: read from the ledger, for the index could not be asked."""

    facts: Facts
    users: list[Shown]
    total: int
    degraded: bool = False


class Kind(StrEnum):
    # All of it.
    SNAPSHOT = "snapshot"
    # What is different.
    CHANGES = "changes"
    # All of it, for a new period has begun.
    RESET = "reset"


class Change(NamedTuple):
    """Who is at a place of the list now."""

    position: int
    shown: Shown


class Frame(Struct, eq=False):
    """What leads to a state: from anything, or, for changes, from the frame before. Its sequence is one more."""

    kind: Kind
    look: Look
    view_id: str
    sequence: int
    changes: list[Change]
    length: int
    total: int
    degraded: bool
    # None: they are as they were.
    facts: Facts | None
    previous_period: str | None = None
    # Kept here by whoever encodes it.
    encoded: object = None

    @property
    def weight(self) -> int:
        return max(1, len(self.changes))


class View:
    def __init__(self, look: Look, state: State) -> None:
        self.look = look
        # Another view of the same, on this server or elsewhere, numbers its frames by itself.
        self.id = secrets.token_hex(5)
        self.sequence = 1
        self.state = state
        self._snapshot: Frame | None = None
        self._frames: deque[Frame] = deque()
        self._weight = 0

    def advance(self, state: State) -> bool:
        """Go on to another state; whether it is one."""
        before = self.state
        if state == before:
            return False
        self.sequence += 1
        self.state = state
        self._snapshot = None
        if state.facts.period.name != before.facts.period.name:
            self._keep(self._whole(Kind.RESET, before.facts.period.name))
        else:
            changes = [
                Change(position, shown)
                for position, shown in enumerate(state.users)
                if position >= len(before.users) or before.users[position] != shown
            ]
            self._keep(self._frame(Kind.CHANGES, changes, state.facts if state.facts != before.facts else None))
        return True

    def after(self, sequence: int | None) -> list[Frame]:
        """What leads to the present state: the frames since then, or one that has all of it."""
        if sequence == self.sequence:
            return []
        first = self._frames[0].sequence if self._frames else self.sequence + 1
        if sequence is not None and first <= sequence + 1 <= self.sequence:
            return [frame for frame in self._frames if frame.sequence > sequence]
        if self._snapshot is None:
            self._snapshot = self._whole(Kind.SNAPSHOT)
        return [self._snapshot]

    @property
    def size(self) -> int:
        """How many rows it holds."""
        return len(self.state.users) + self._weight

    def _keep(self, frame: Frame) -> None:
        self._frames.append(frame)
        self._weight += frame.weight
        allowed = max(KEPT_CHANGES, len(self.state.users))
        while self._weight > allowed or len(self._frames) > KEPT_FRAMES:
            self._weight -= self._frames.popleft().weight

    def _whole(self, kind: Kind, previous_period: str | None = None) -> Frame:
        changes = [Change(position, shown) for position, shown in enumerate(self.state.users)]
        return self._frame(kind, changes, self.state.facts, previous_period)

    def _frame(
        self, kind: Kind, changes: list[Change], facts: Facts | None, previous_period: str | None = None
    ) -> Frame:
        state = self.state
        return Frame(
            kind,
            self.look,
            self.id,
            self.sequence,
            changes,
            len(state.users),
            state.total,
            state.degraded,
            facts,
            previous_period,
        )
