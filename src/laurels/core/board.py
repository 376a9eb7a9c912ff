"""A board: its owner, how it folds and ranks scores, and when it accepts them."""

from enum import StrEnum
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from laurels.core.order import Order, Sorting, Ties
from laurels.core.people import GLOBAL
from laurels.core.reviews import ReviewRule
from laurels.core.rewards import Reward
from laurels.core.scores import Operation, Rule, Standing, fold, operate
from laurels.core.windows import ALL_TIME, Period, PeriodState, Window

DEFAULT_POD = "default"
DEFAULT_BOARD = "default"
DEFAULT_GRACE_S = 60
DEFAULT_PLAYER_WRITES = 60


class Status(StrEnum):
    SCHEDULED = "SCHEDULED"
    ACTIVE = "ACTIVE"
    ENDED = "ENDED"
    ARCHIVED = "ARCHIVED"


class PublicField(StrEnum):
    """What callers without a key of the pod see of a public board besides its ranks, names and times."""

    METADATA = "metadata"
    REWARDS = "rewards"
    # The rankings of circles, which list their members.
    CIRCLES = "circles"
    # In entries, on request: the metadata of the scores that count, and the attributes of users.
    SCORE_METADATA = "scoreMetadata"
    ATTRIBUTES = "attributes"


class RankStyle(StrEnum):
    """How ranks are numbered at equal scores: 1,2,3 (ordinal), 1,1,3 (competition) or 1,1,2 (dense)."""

    ORDINAL = "ordinal"
    COMPETITION = "competition"
    DENSE = "dense"


class ShadowViewer(Struct, frozen=True):
    """A shadow-banned user who reads a ranking, with their own score.

    The read includes the user where the score belongs. Other users' reads don't.
    """

    user_id: str
    score: float
    achieved_at: int
    subscore: int = 0


class Reshard(Struct, frozen=True):
    """A change of a board's number of shards that has not ended.

    The index holds the rankings of the board twice meanwhile: with the board's `shards`, which is what reads use, and
    with these `shards`. Writes reach both. `switched_at` None: these are the new ones, which are being built. Otherwise
    they are the old ones: some time after this instant, when every server reads the new ones, `retired_at` is set. From
    then on writes don't reach them, and they are dropped.
    """

    shards: int
    began_at: int
    switched_at: int | None = None
    retired_at: int | None = None


class Ranking(Struct, frozen=True):
    """One sorted list in the index: the users of a segment in a period.

    The index holds all of them. `capacity` limits how many a read shows. `shadow_viewer` is the reading user if they
    are shadow-banned, else None. A shared index splits the ranking into `parts` (see core/parts.py).
    """

    period_id: int
    segment: str
    order: Order
    ties: Ties
    capacity: int | None
    shadow_viewer: ShadowViewer | None = None
    parts: int = 1
    subscore: Order | None = None

    @property
    def sorting(self) -> Sorting:
        return Sorting(self.order, self.ties, self.subscore)

    def limit(self, users: int) -> int:
        """Return how many users are ranked if the sorted list has `users` users."""
        return users if self.capacity is None else min(users, self.capacity)


class Board(Struct, frozen=True, kw_only=True):
    """A leaderboard with its rules and its periods that are not final.

    `id` is the number that the ledger assigned. `revision` grows with each change, so that the ledger can reject a
    change that is based on an outdated board. All instants are in microseconds since 1970.
    """

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
    # The kinds of segments that the board ranks.
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
    # Events before this instant may have been removed, so duplicates of them can no longer be detected.
    pruned_before: int | None = None
    public_fields: tuple[PublicField, ...] = ()
    # Players may submit their own scores with a token, this many per minute.
    players_may_write: bool = False
    player_writes_per_minute: int = DEFAULT_PLAYER_WRITES
    # Into how many parts a shared index splits each ranking.
    shards: int = 1
    reshard: Reshard | None = None
    # Whether writes return ranks if the caller does not say; None: unless the board is split.
    rank_on_write: bool | None = None
    # The id of the key that created it.
    created_by: str | None = None
    # The kinds among `segments` that were added later and whose rankings don't have all users yet.
    filling: tuple[str, ...] = ()
    # Which scores wait for a moderator before they count.
    review: tuple[ReviewRule, ...] = ()
    # The order of subscores, which break ties before the time does; None: there are none.
    subscore: Order | None = None
    # A user whose last score is older leaves the ranking.
    score_ttl_s: int | None = None
    # What single events may do instead of the rule.
    operations: tuple[Operation, ...] = ()
    # The periods that are not final (open or closed), oldest first.
    periods: tuple[Period, ...] = ()

    def status_at(self, now: int) -> Status:
        """Return the status at an instant, by time alone.

        Starting or ending a board by hand sets its `start_at` or `end_at` to that moment.
        """
        if self.archived_at is not None:
            return Status.ARCHIVED
        if self.end_at is not None and now >= self.end_at:
            return Status.ENDED
        if self.start_at is not None and now < self.start_at:
            return Status.SCHEDULED
        return Status.ACTIVE

    @property
    def keeps_last(self) -> bool:
        """Return True if rows store the time of the last event."""
        return self.score_ttl_s is not None or bool(self.operations)

    @property
    def adds(self) -> bool:
        """Return True if scores can be sums."""
        return self.rule is Rule.INCREMENT or Operation.INCREMENT in self.operations

    def fold(
        self, standing: Standing | None, score: float, at: int, subscore: int = 0, operation: str | None = None
    ) -> Standing:
        """Return the standing after one more distinct event. `operation` None: the rule of the board."""
        if self.operations:
            chosen = Operation(operation or self.rule.value)
            after = operate(chosen, self.order, standing, score, at, subscore, self.subscore)
        else:
            after = fold(self.rule, self.order, standing, score, at, subscore, self.subscore)
        if not self.keeps_last:
            return after
        last_at = at if standing is None or standing.last_at is None else max(at, standing.last_at)
        return after if after.last_at == last_at else replace(after, last_at=last_at)

    @property
    def open_periods(self) -> tuple[Period, ...]:
        return tuple(period for period in self.periods if period.state is PeriodState.OPEN)

    def periods_at(self, at: int) -> tuple[Period, ...]:
        """Return every open period that contains an instant: an event of that time counts in all of them."""
        # A list, not a generator, because every write calls this and a list is faster.
        return tuple([period for period in self.periods if period.state is PeriodState.OPEN and period.contains(at)])

    def limited_period_at(self, at: int) -> tuple[Period, int] | None:
        """Return the open period at an instant whose window limits attempts, and the limit; None if there is none."""
        for window in self.windows:
            if window.attempts is not None:
                found = next((period for period in self.periods_at(at) if period.window == window.name), None)
                return None if found is None else (found, window.attempts)
        return None

    def period_named(self, name: str) -> Period | None:
        return next((period for period in self.periods if period.name == name), None)

    def opened_at(self, now: int) -> int:
        """Return now or, for a board that has not started, its start: the time whose periods it needs first."""
        return now if self.start_at is None else max(now, self.start_at)

    def current_period(self, window: str, now: int) -> Period | None:
        # A plain loop, because every read calls this and a generator is slower.
        for period in self.periods:
            if period.window == window and period.contains(now):
                return period
        return None

    def first_period(self, window: str) -> Period | None:
        """Return the earliest period of a window that is not final."""
        return next((period for period in self.periods if period.window == window), None)

    def next_period(self, window: str, now: int) -> Period | None:
        return next((p for p in self.periods if p.window == window and p.start is not None and p.start > now), None)

    def last_period(self, window: str) -> Period | None:
        """Return the period of a window that ends last, even if it has not begun."""
        return next((period for period in reversed(self.periods) if period.window == window), None)

    def window_named(self, name: str) -> Window | None:
        return next((window for window in self.windows if window.name == name), None)

    @property
    def window_names(self) -> tuple[str, ...]:
        return tuple(window.name for window in self.windows)

    @property
    def ended_at(self) -> int | None:
        """Return when the board ends: at its end or when it is archived, whichever is earlier; None if never."""
        if self.end_at is None or self.archived_at is None:
            return self.archived_at if self.end_at is None else self.end_at
        return min(self.end_at, self.archived_at)

    def end_of(self, period: Period) -> int | None:
        """Return when a period ends: at its own end or at the board's, whichever is earlier; None if never."""
        ended_at = self.ended_at
        if period.end is None or ended_at is None:
            return ended_at if period.end is None else period.end
        return min(period.end, ended_at)

    @property
    def is_segmented(self) -> bool:
        return len(self.segments) > 1

    def ranking(self, period_id: int, segment: str = GLOBAL) -> Ranking:
        return Ranking(
            period_id, segment, self.order, self.ties, self._capacity_in(period_id), None, self.shards, self.subscore
        )

    def uncapped(self) -> "Board":
        """Return the board without capacities, so that reads find all users."""
        return replace(self, capacity=None, windows=tuple(replace(each, capacity=None) for each in self.windows))

    def capacity_of(self, window: str) -> int | None:
        """Return how many users a window ranks; None for all."""
        own = next((each.capacity for each in self.windows if each.name == window), None)
        return self.capacity if own is None else own

    def _capacity_in(self, period_id: int) -> int | None:
        for window in self.windows:
            if window.capacity is not None:
                break
        else:
            return self.capacity
        period = next((period for period in self.periods if period.id == period_id), None)
        # Final ranks were cut when they were written.
        return self.capacity if period is None else self.capacity_of(period.window)

    def rankings(self, period_id: int) -> tuple[Ranking, ...]:
        """Return the global ranking that reads use and, while the number of shards changes, the other one."""
        if self.reshard is None or self.reshard.retired_at is not None:
            return (self.ranking(period_id),)
        return self.ranking(period_id), self.other_ranking(period_id, self.reshard)

    def other_ranking(self, period_id: int, change: Reshard) -> Ranking:
        """Return the global ranking with the other number of shards."""
        return replace(self.ranking(period_id), parts=change.shards)

    @property
    def index_parts(self) -> int:
        """Return into how many parts a split board's current rankings are split, in total; 0 for other boards."""
        return 0 if self.shards == 1 else self.shards * len(self.windows)

    @property
    def ranks_on_write(self) -> bool:
        return self.shards == 1 if self.rank_on_write is None else self.rank_on_write

    @property
    def sorting(self) -> Sorting:
        return Sorting(self.order, self.ties, self.subscore)

    @property
    def rank_style(self) -> RankStyle:
        return RankStyle.COMPETITION if self.ties is Ties.SHARED else RankStyle.ORDINAL
