"""The Index: sorted rankings, and the values that it takes and returns."""

from collections.abc import AsyncIterator, Hashable, Sequence
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from laurels.core.board import Ranking, RankStyle
from laurels.core.distribution import DECILES
from laurels.ports.position import AsOf, Position

if TYPE_CHECKING:
    from laurels.ports.ledger import Row


class RankEntry(Struct, frozen=True, gc=False):
    """A user's position in a ranking. `rank` starts at 1 and is numbered in the requested style."""

    user_id: str
    score: float
    achieved_at: int
    rank: int
    # None: the board has no subscores.
    subscore: int | None = None


class Page(Struct, frozen=True):
    """Neighbouring entries of a ranking, and the total number of ranked users."""

    entries: list[RankEntry]
    total: int


class Found(Struct, frozen=True, gc=False):
    """A user's entry, with the numbers for a percentile.

    `better` of the `total` ranked users have a strictly better score.
    """

    entry: RankEntry
    better: int
    total: int


class RanksWanted(IntEnum):
    """The ranks that `Index.apply` returns. Each rank costs one more look-up per row."""

    NONE = 0
    AFTER = 1
    BOTH = 2


class RankChange(Struct, frozen=True, gc=False):
    """A user's rank before and after rows were applied.

    None means not ranked, or that the caller did not want to know the rank before.
    """

    before: int | None
    after: int | None


class Applied(Struct, frozen=True):
    """The result of `Index.apply`.

    `rank_changes` has one element per row, in order; it is empty if the caller wanted no ranks. It is None if the ranks
    are unknown, because the ranking is stale or rows were refused. `refused` means that some rows were not applied
    because they may be outdated: the caller must read them again from the ledger.
    """

    rank_changes: list[RankChange] | None
    refused: bool = False


class Distribution(Struct, frozen=True):
    """The number of scores between neighbouring edges, and the scores at percentiles, by nearest rank.

    A bucket includes its lower edge. The last bucket also includes its upper edge.
    """

    edges: list[float]
    counts: list[int]
    percentiles: list[float]


class ScoreRange(Struct, frozen=True):
    """A range of scores, both ends included. None: no limit at that end."""

    best: float | None = None
    worst: float | None = None


class RangePage(Struct, frozen=True):
    """Neighbouring entries of a ranking, near the users whose scores are in a range.

    `before` ranked users are better than the range, and the scores of `count` are in it. The entries begin at offset
    `start`.
    """

    entries: list[RankEntry]
    start: int
    before: int
    count: int
    total: int


class Held(Struct, frozen=True):
    """The version and values that the index holds of a user. `score` is None if the user is known but not ranked."""

    version: int
    score: float | None
    achieved_at: int | None
    # The segments, besides the global one, in which the user is ranked.
    segments: tuple[str, ...] = ()
    subscore: int = 0


class IndexHealth(StrEnum):
    """The state of a ranking in the index."""

    READY = "ready"
    # Complete up to `position`. Later rows may be missing, because the index server was restarted or replaced.
    STALE = "stale"
    MISSING = "missing"
    UNREACHABLE = "unreachable"


class IndexState(Struct, frozen=True):
    """The state of a part of a ranking, and the position up to which it is complete.

    `position` is None if the index can't lose rows, and if the part is missing or unreachable. `epoch` identifies the
    server that holds the part; it changes when another server takes over.
    """

    health: IndexHealth
    position: Position | None = None
    epoch: str = ""
    # A read needed data that this generation lacks (dense ranks), so it must be rebuilt.
    wants_build: bool = False
    # The id of the live generation.
    generation: str = ""
    # The number of the part.
    part: int = 0
    # How many users a build in progress has loaded; None if there is none.
    loaded: int | None = None


class Ranks(Protocol):
    """Reads of a ranking. Each read shows the ranking at one moment.

    Only users within the capacity of the ranking are ranked. The costs are those of an index; n is the number of users
    in the ranking.
    """

    async def top(self, ranking: Ranking, offset: int, limit: int, style: RankStyle) -> Page:
        """Return up to `limit` entries from `offset` on; offset 0 is the first entry. O(log n + limit)."""

    async def find(self, ranking: Ranking, user_id: str, style: RankStyle) -> Found | None:
        """Return a user's entry; None if the user is not ranked. O(log n)."""

    async def around(self, ranking: Ranking, user_id: str, above: int, below: int, style: RankStyle) -> Page | None:
        """Return a user's entry and its neighbours, in order; None if the user is not ranked.

        `above` and `below` limit the number of neighbours on each side. O(log n + above + below).
        """

    async def find_many(self, ranking: Ranking, user_ids: Sequence[str], style: RankStyle) -> list[RankEntry | None]:
        """Return an entry for each user, in order; None for users who are not ranked. O(log n) per user."""

    async def in_range(
        self, ranking: Ranking, scores: ScoreRange, skip: int, limit: int, style: RankStyle, *, from_end: bool = False
    ) -> RangePage:
        """Count the users whose scores are in a range, and return up to `limit` entries near them.

        The entries begin `skip` rows after the first user of the range or, with `from_end`, after the last one. With
        a negative `skip` they begin before it. They may lie outside the range. O(log n + limit).
        """

    async def distribution(self, ranking: Ranking, buckets: int, percentiles: Sequence[int] = DECILES) -> Distribution:
        """Count the scores in equal-width buckets from the lowest to the highest score.

        `percentiles` are in units of 1 / PER_PERCENT percent (core/distribution.py). O((buckets + percentiles) · log
        n). Returns fewer buckets if scores are too close together, and empty lists if no user is ranked.
        """

    async def count(self, ranking: Ranking) -> int:
        """Return the number of ranked users. O(1)."""


class InstantRanks(Protocol):
    """Reads of an index in this process, without `await`. They return the same values as those of `Ranks`."""

    def find_now(self, ranking: Ranking, user_id: str, style: RankStyle) -> Found | None:
        """Return a user's entry, as `Ranks.find`."""

    def around_now(self, ranking: Ranking, user_id: str, above: int, below: int, style: RankStyle) -> Page | None:
        """Return a user's entry and its neighbours, as `Ranks.around`."""

    def revision_now(self, ranking: Ranking) -> Hashable:
        """Return the revision of a ranking, as `Index.revision`."""


class Index(Ranks, Protocol):
    """Sorted rankings, derived from the ledger. The index holds nothing that can't be rebuilt from the ledger.

    The rankings of a period (the global one, and one per segment that has users) belong together. They are built,
    updated and dropped together, in one call that names the global ranking, so a reader never sees a user in two
    regions. A read names one ranking.

    Every change that a read could show must be published on the feed under the topic `ranking_topic`, once reads
    can show it: live updates depend on it. That includes rows that `apply` changed and a new generation that `load` put
    live. Subscribers ignore the content of the message, and one message per call is enough. As on the feed in general,
    a message may be lost, and a message without a change is allowed.

    A shared index splits a ranking into `ranking.parts` parts, which may be on several servers (core/parts.py).
    Rankings of one period with different numbers of parts are independent, so one can be built beside the other. A part
    is built, confirmed and repaired by itself. A write is atomic in each part. A read answers from all parts, each at
    one moment, within one gathering: a user is in one part, so nobody is counted twice or missed, and without writes in
    flight the answer is that of the ledger. If one part is missing or stale, the read raises as for the whole ranking.
    An index in this process ignores the number of parts and has one.

    A read of a ranking that is missing or stale raises `Unavailable` with the code `catching_up`, so a read never
    returns a wrong rank. The code is `index_unavailable` if the index can't be reached.
    """

    async def open(self, ledger_id: str) -> None:
        """Connect. Rankings that belong to another ledger are not visible."""

    async def close(self) -> None:
        """Disconnect. Idempotent."""

    async def ping(self) -> None:
        """Raise `Unavailable` unless the index can be reached."""

    @property
    def instant(self) -> InstantRanks | None:
        """Return reads that need no await, if the index is in this process."""

    @property
    def outages(self) -> int:
        """Return how many times the index was lost and found again.

        When the number grows, rankings may lack rows that other servers wrote during the outage.
        """

    async def load(
        self,
        ranking: Ranking,
        rows: "AsyncIterator[list[Row]]",
        position: Position,
        replacing: Sequence[IndexState] | None = None,
    ) -> None:
        """Build a new generation of a period's rankings from the ledger's rows, then replace the live one with it.

        `rows` yields all rows of the period. `position` is the ledger's position from before the rows were read. Reads
        use the live generation until it is replaced, atomically in each part. Rows that are applied during the build go
        to both generations.

        `replacing` are the parts to build, with the generations that the caller has seen: the build starts only if they
        are still the live ones, because another server may have been faster. None replaces all parts, whatever they
        have.

        Raises `Unavailable` and leaves the live generation as it is: with `build_running` if another server is building
        the ranking or has built it; with `catching_up` if the build was abandoned, because users were forgotten or a
        row was refused during the build. Then some of the parts may have been replaced. A builder's lease expires if
        the builder dies. O(n log n).
        """

    async def apply(
        self,
        ranking: Ranking,
        rows: "Sequence[Row]",
        style: RankStyle,
        as_of: AsOf = AsOf(),  # noqa: B008 - a frozen value
        wanted: RanksWanted = RanksWanted.BOTH,
    ) -> Applied:
        """Apply rows to the rankings of a period, and return the changes of rank in the global ranking.

        A row is applied only if its version is newer than the one held. So the call is idempotent, and rows may arrive
        in any order. The newest row of a user decides for all segments: it removes the user from segments that the row
        does not name, and a hidden user from all. The call is atomic: a reader sees all of the rows or none.

        `as_of` is what the caller knew of the ledger before it read the rows. The index refuses rows of a history other
        than the ranking's. It also refuses the row of a user whom it does not hold if the row's version is not above
        the ranking's floor and `as_of.floor` is below it: the user may have been erased and forgotten since the row was
        read.

        `wanted` selects the ranks to return: none, those after the update, or those before and after it. In a ranking
        of several parts, the ranks before are those among the others as they are after the update.

        Rows are also applied to a stale ranking and to a build in progress. Raises `Unavailable` with `catching_up` if
        the ranking is missing. O(log n) per row.
        """

    async def drop(self, ranking: Ranking) -> None:
        """Remove the rankings of a period. They can't be read until they are loaded again. Idempotent."""

    async def forget(self, ranking: Ranking, user_ids: Sequence[str], floor: int) -> None:
        """Forget users who are not ranked, with the versions that guard against older rows of theirs. Idempotent.

        From then on `floor` guards against those rows: see `apply`. Users who are ranked stay. A build in progress is
        abandoned, because it may have read those rows already.
        """

    async def states(self, rankings: Sequence[Ranking]) -> list[tuple[IndexState, ...]]:
        """Return the state of each part of each ranking, in order.

        The health of a part is UNREACHABLE if the index can't be reached.
        """

    async def confirm(self, ranking: Ranking, seen: IndexState, position: Position) -> None:
        """Note that everything up to a position of the ledger was applied after the state `seen` of a part was read.

        A stale part is ready afterwards. Ignored if another server has taken over since, or if the ranking now
        belongs to another history. Idempotent.
        """

    def built(self) -> AsyncIterator[list[tuple[int, int]]]:
        """Yield period id and number of parts of all rankings that the index holds keys of, some possibly twice.

        In chunks. Used to find rankings that no longer belong to a period. O(all keys).
        """

    async def claim(self, task: str, seconds: float) -> bool:
        """Return True if the caller may run a task now: at most once per `seconds` over all servers."""

    async def revision(self, ranking: Ranking) -> Hashable:
        """Return a value that differs after each change that a read could show, for use in cache keys. O(1)."""

    async def held(self, ranking: Ranking, user_ids: Sequence[str]) -> list[Held | None]:
        """Return what the index holds of each user, in order; None for unknown users. Used by verify."""

    async def segments(self, ranking: Ranking) -> list[str]:
        """Return the segments of a period that have users. O(number of segments)."""

    def ranked_users(self, ranking: Ranking) -> AsyncIterator[list[str]]:
        """Yield every ranked user, in order, in chunks. Used by verify. O(n).

        The chunks show one moment only if `revision` stays the same.
        """
