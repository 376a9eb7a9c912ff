"""A board: whose it is, how scores fold and rank on it, and when it takes them."""

from enum import StrEnum
from typing import Any

from msgspec import Struct

from laurels.core.order import Order, Ties
from laurels.core.people import GLOBAL
from laurels.core.rewards import Reward
from laurels.core.scores import Rule
from laurels.core.windows import ALL_TIME, Period, PeriodState, Window

DEFAULT_POD = "default"
DEFAULT_BOARD = "default"
DEFAULT_GRACE_S = 60


class Status(StrEnum):
    SCHEDULED = "SCHEDULED"
    ACTIVE = "ACTIVE"
    ENDED = "ENDED"
    ARCHIVED = "ARCHIVED"


class RankStyle(StrEnum):
    """How places are numbered at equal scores: 1,2,3 or 1,1,3 or 1,1,2."""

    ORDINAL = "ordinal"
    COMPETITION = "competition"
    DENSE = "dense"


class Guest(Struct, frozen=True):
    """A hidden user who is to see themselves where they would stand."""

    user_id: str
    score: float
    achieved_at: int


class Ranking(Struct, frozen=True):
    """One sorted list in the index: everybody of a segment in a period. `guest`: who looks at it, if hidden.

    `keeps_all`: the index holds everybody and shows no more than the capacity, for who is outside one segment's best
    may be within another's.
    """

    period_id: int
    segment: str
    order: Order
    ties: Ties
    capacity: int | None
    keeps_all: bool = False
    guest: Guest | None = None

    @property
    def reserve(self) -> int:
        """How many beyond its capacity a ranking holds, so that one who drops out is replaced at once."""
        if self.capacity is None:
            return 0
        return EVERYBODY if self.keeps_all else reserve_of(self.capacity)


# More than there can be.
EVERYBODY = 2**40


def reserve_of(capacity: int) -> int:
    return min(10_000, max(16, capacity // 4))


class Board(Struct, frozen=True, kw_only=True):
    """`id` is the ledger's own number. `revision` grows with each change, so that two changes can't cross."""

    id: int
    uuid: str
    pod_id: str
    name: str
    rule: Rule = Rule.BEST
    order: Order = Order.DESC
    ties: Ties = Ties.EARLIEST
    capacity: int | None = None
    min_score: float | None = None
    max_score: float | None = None
    public: bool = False
    windows: tuple[Window, ...] = (ALL_TIME,)
    # Of which kinds the segments are that it ranks.
    segments: tuple[str, ...] = (GLOBAL,)
    start_at: int | None = None
    end_at: int | None = None
    archived_at: int | None = None
    created_at: int
    revision: int = 1
    metadata: dict[str, Any] | None = None
    grace_s: int = DEFAULT_GRACE_S
    flush_ms: int | None = None
    rewards: tuple[Reward, ...] = ()
    keep_events_days: int | None = None
    keep_periods_days: int | None = None
    # Events of an earlier time may be gone, and with them the knowledge of their ids.
    pruned_before: int | None = None
    # Those that are not final yet, oldest first.
    periods: tuple[Period, ...] = ()

    def status_at(self, now: int) -> Status:
        """By time alone: ending or starting a board by hand sets its `end_at` or `start_at` to that moment."""
        if self.archived_at is not None:
            return Status.ARCHIVED
        if self.end_at is not None and now >= self.end_at:
            return Status.ENDED
        if self.start_at is not None and now < self.start_at:
            return Status.SCHEDULED
        return Status.ACTIVE

    @property
    def open_periods(self) -> tuple[Period, ...]:
        return tuple(period for period in self.periods if period.state is PeriodState.OPEN)

    def periods_at(self, at: int) -> tuple[Period, ...]:
        """Every open period that contains an instant: where an event of that time counts."""
        # Asked for by every write, so without a generator.
        return tuple([period for period in self.periods if period.state is PeriodState.OPEN and period.contains(at)])

    def period_named(self, name: str) -> Period | None:
        return next((period for period in self.periods if period.name == name), None)

    def current_period(self, window: str, now: int) -> Period | None:
        # Asked for by every read, so without a generator.
        for period in self.periods:
            if period.window == window and period.contains(now):
                return period
        return None

    def next_period(self, window: str, now: int) -> Period | None:
        return next((p for p in self.periods if p.window == window and p.start is not None and p.start > now), None)

    def last_period(self, window: str) -> Period | None:
        """The one that ends last, be it to come."""
        return next((period for period in reversed(self.periods) if period.window == window), None)

    def window_named(self, name: str) -> Window | None:
        return next((window for window in self.windows if window.name == name), None)

    @property
    def window_names(self) -> tuple[str, ...]:
        return tuple(window.name for window in self.windows)

    @property
    def ended_at(self) -> int | None:
        """When it takes no more scores: at its end, or when it is archived before that."""
        if self.end_at is None or self.archived_at is None:
            return self.archived_at if self.end_at is None else self.end_at
        return min(self.end_at, self.archived_at)

    def end_of(self, period: Period) -> int | None:
        """When a period is over: at its own end, or at its board's."""
        ended_at = self.ended_at
        if period.end is None or ended_at is None:
            return ended_at if period.end is None else period.end
        return min(period.end, ended_at)

    @property
    def is_segmented(self) -> bool:
        return len(self.segments) > 1

    def ranking(self, period_id: int, segment: str = GLOBAL) -> Ranking:
        return Ranking(period_id, segment, self.order, self.ties, self.capacity, self.is_segmented)

    @property
    def forgets(self) -> bool:
        """Whether its index may know nothing of those outside the capacity.

        Where scores never get worse, an older row of theirs is outside, too, and can't do harm.
        """
        if self.capacity is None or self.is_segmented:
            return False
        if self.rule is Rule.INCREMENT:
            rises = self.min_score is not None and self.min_score >= 0
            falls = self.max_score is not None and self.max_score <= 0
            return rises if self.order is Order.DESC else falls
        return self.rule is Rule.BEST

    @property
    def rank_style(self) -> RankStyle:
        return RankStyle.COMPETITION if self.ties is Ties.SHARED else RankStyle.ORDINAL
