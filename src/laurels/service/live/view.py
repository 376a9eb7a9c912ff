"""Views: the state that subscribers watch, and the frames that lead from one state to the next.

All subscribers to the same entries share one view and its frames; each frame is built and encoded once. A view keeps
its last frames as long as they are smaller than the state itself; a subscriber that is further behind gets a snapshot.
"""

import secrets
from collections import deque
from enum import StrEnum
from typing import NamedTuple

from msgspec import Struct

from laurels.core.board import Board, Status
from laurels.core.windows import Period
from laurels.ports import RankEntry
from laurels.service.people.profiles import PublicProfile
from laurels.service.read.reads import Selection

KEPT_FRAMES = 100
# Minimum number of changes to keep, however small the view is.
KEPT_CHANGES = 16


class TopSpec(Struct, frozen=True):
    """The first entries of a ranking."""

    board_id: int
    selection: Selection
    limit: int

    @property
    def size(self) -> int:
        return self.limit


class AroundSpec(Struct, frozen=True):
    """A user and the neighbours; empty while the user is not ranked."""

    board_id: int
    selection: Selection
    user_id: str
    above: int
    below: int

    @property
    def size(self) -> int:
        return self.above + 1 + self.below


ViewSpec = TopSpec | AroundSpec


class Facts(Struct, frozen=True):
    """The data about a board that is shown with its entries."""

    name: str
    status: Status
    period: Period
    # When the period takes scores: the later start and the earlier end of period and board.
    start: int | None
    end: int | None

    @classmethod
    def of(cls, board: Board, period: Period, now: int) -> "Facts":
        starts = [start for start in (period.start, board.start_at) if start is not None]
        return cls(board.name, board.status_at(now), period, max(starts, default=None), board.end_of(period))


class NamedEntry(NamedTuple):
    """An entry with the name of its user."""

    entry: RankEntry
    named: PublicProfile


class State(Struct, frozen=True):
    """Everything that a subscriber sees.

    `degraded`: read from the ledger because the index was unavailable.
    """

    facts: Facts
    users: list[NamedEntry]
    total: int
    degraded: bool = False


class FrameKind(StrEnum):
    # The whole state.
    SNAPSHOT = "snapshot"
    # The differences from the previous state.
    CHANGES = "changes"
    # The whole state, because a new period began.
    RESET = "reset"


class PositionChange(NamedTuple):
    """The new entry at a position of the list."""

    position: int
    shown: NamedEntry


class Frame(Struct, eq=False):
    """One step to a state: from any state or, if its kind is changes, from the previous frame.

    `sequence` is one more than that of the previous frame.
    """

    kind: FrameKind
    spec: ViewSpec
    view_id: str
    sequence: int
    changes: list[PositionChange]
    length: int
    total: int
    degraded: bool
    # None: unchanged.
    facts: Facts | None
    previous_period: str | None = None
    # Used by the encoder to cache its result.
    encoded: object = None

    @property
    def weight(self) -> int:
        return max(1, len(self.changes))


class View:
    def __init__(self, spec: ViewSpec, state: State) -> None:
        self.spec = spec
        # Sequences are only valid within one view: a view of the same entries on another server has other ones.
        self.id = secrets.token_hex(5)
        self.sequence = 1
        self.state = state
        self._snapshot: Frame | None = None
        self._frames: deque[Frame] = deque()
        self._weight = 0

    def advance(self, state: State) -> bool:
        """Move to a state and return True, or return False if it equals the current one."""
        before = self.state
        if state == before:
            return False
        self.sequence += 1
        self.state = state
        self._snapshot = None
        if state.facts.period.name != before.facts.period.name:
            self._keep(self._whole(FrameKind.RESET, before.facts.period.name))
        else:
            changes = [
                PositionChange(position, shown)
                for position, shown in enumerate(state.users)
                if position >= len(before.users) or before.users[position] != shown
            ]
            self._keep(self._frame(FrameKind.CHANGES, changes, state.facts if state.facts != before.facts else None))
        return True

    def after(self, sequence: int | None) -> list[Frame]:
        """Return the frames that lead from a sequence to the current state: those since then, or one snapshot."""
        if sequence == self.sequence:
            return []
        first = self._frames[0].sequence if self._frames else self.sequence + 1
        if sequence is not None and first <= sequence + 1 <= self.sequence:
            return [frame for frame in self._frames if frame.sequence > sequence]
        if self._snapshot is None:
            self._snapshot = self._whole(FrameKind.SNAPSHOT)
        return [self._snapshot]

    @property
    def size(self) -> int:
        """Return the number of rows in memory: those of the state and of the kept frames."""
        return len(self.state.users) + self._weight

    def _keep(self, frame: Frame) -> None:
        self._frames.append(frame)
        self._weight += frame.weight
        allowed = max(KEPT_CHANGES, len(self.state.users))
        while self._weight > allowed or len(self._frames) > KEPT_FRAMES:
            self._weight -= self._frames.popleft().weight

    def _whole(self, kind: FrameKind, previous_period: str | None = None) -> Frame:
        changes = [PositionChange(position, shown) for position, shown in enumerate(self.state.users)]
        return self._frame(kind, changes, self.state.facts, previous_period)

    def _frame(
        self, kind: FrameKind, changes: list[PositionChange], facts: Facts | None, previous_period: str | None = None
    ) -> Frame:
        state = self.state
        return Frame(
            kind,
            self.spec,
            self.id,
            self.sequence,
            changes,
            len(state.users),
            state.total,
            state.degraded,
            facts,
            previous_period,
        )
