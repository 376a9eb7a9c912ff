"""A board: whose it is, how scores fold and rank on it, and when it takes them."""

from enum import StrEnum
from typing import Any

from msgspec import Struct

from laurels.core.order import Order, Ties
from laurels.core.scores import Rule
from laurels.core.windows import ALL, Period

GLOBAL = "global"
DEFAULT_POD = "default"
DEFAULT_BOARD = "default"


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


class Ranking(Struct, frozen=True):
    """One sorted list in the index: everybody of a segment in a period."""

    period_id: int
    segment: str
    order: Order
    ties: Ties
    capacity: int | None


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
    windows: tuple[str, ...] = (ALL,)
    segments: tuple[str, ...] = (GLOBAL,)
    start_at: int | None = None
    end_at: int | None = None
    archived_at: int | None = None
    created_at: int
    revision: int = 1
    metadata: dict[str, Any] | None = None
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

    def periods_at(self, at: int) -> tuple[Period, ...]:
        """Every open period that contains an instant: where an event of that time counts."""
        return tuple(period for period in self.periods if period.contains(at))

    def period_named(self, name: str) -> Period | None:
        return next((period for period in self.periods if period.name == name), None)

    def current_period(self, window: str, now: int) -> Period | None:
        return next((p for p in self.periods if p.window == window and p.contains(now)), None)

    def ranking(self, period_id: int, segment: str = GLOBAL) -> Ranking:
        return Ranking(period_id, segment, self.order, self.ties, self.capacity)

    @property
    def rank_style(self) -> RankStyle:
        return RankStyle.COMPETITION if self.ties is Ties.SHARED else RankStyle.ORDINAL
