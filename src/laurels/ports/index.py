"""The Index: sorted ranks, and the values that go in and come out."""

from collections.abc import AsyncIterator, Hashable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from laurels.core.board import Ranking, RankStyle
from laurels.ports.position import AsOf, Position

if TYPE_CHECKING:
    from laurels.ports.ledger import Row


class Place(Struct, frozen=True):
    """Where a user stands. `rank` starts at 1 and is numbered in the style that was asked for."""

    user_id: str
    score: float
    achieved_at: int
    rank: int


class Page(Struct, frozen=True):
    """Neighbouring places, and how many users are ranked in all."""

    places: list[Place]
    total: int


class Found(Struct, frozen=True):
    """One user's place, and what a percentile needs: how many scores are strictly better, out of how many."""

    place: Place
    better: int
    total: int


class Placement(Struct, frozen=True):
    """A row's rank before and after a batch was applied; None: not ranked then."""

    before: int | None
    after: int | None


class Applied(Struct, frozen=True):
    """One Placement a row; None: the ranking is behind, so nobody knows their ranks.

    `short`: a trimmed ranking runs low and wants a refill.
    `refused`: some rows were not taken over, because they may be outdated. Read them again from the ledger.
    """

    placements: list[Placement] | None
    short: bool = False
    refused: bool = False


class Refill(Struct, frozen=True):
    """A trimmed ranking wants this many of the ledger's best rows. `token`: which refill this is."""

    wanted: int
    token: int


class Distribution(Struct, frozen=True):
    """How many scores lie between neighbouring edges (the last edge belongs to the last bucket), and the deciles."""

    edges: list[float]
    counts: list[int]
    deciles: list[float]


class Held(Struct, frozen=True):
    """What the index has of one user. `score` None: known and not ranked."""

    version: int
    score: float | None
    achieved_at: int | None
    # Those, beside the world, in which the user is ranked.
    segments: tuple[str, ...] = ()


class Standby(StrEnum):
    """What can be said of a ranking in the index."""

    READY = "ready"
    # All is there up to `position`; what came after may be missing, for its server was restarted or replaced.
    BEHIND = "behind"
    COLD = "cold"
    UNREACHABLE = "unreachable"


class IndexState(Struct, frozen=True):
    """A ranking as the index has it: complete up to a position of the ledger (None: it can't lose anything).

    `epoch` names the server that holds it, for as long as that one decides.
    """

    standby: Standby
    position: Position | None = None
    epoch: str = ""
    capacity: int | None = None
    # It was asked for something that it was not built for.
    wants_build: bool = False
    # Which build of it this is.
    generation: str = ""


class Ranks(Protocol):
    """What can be read of a ranking. Each read is of one moment. n: the users in a ranking."""

    async def top(self, ranking: Ranking, offset: int, limit: int, style: RankStyle) -> Page:
        """Places from `offset` on; 0 is the first. O(log n + limit)."""

    async def find(self, ranking: Ranking, user_id: str, style: RankStyle) -> Found | None:
        """A user's place; None if not ranked. O(log n)."""

    async def around(self, ranking: Ranking, user_id: str, above: int, below: int, style: RankStyle) -> Page | None:
        """The user's place with its neighbours, in order; None if not ranked. O(log n + above + below)."""

    async def places(self, ranking: Ranking, user_ids: Sequence[str], style: RankStyle) -> list[Place | None]:
        """A place for each user, None where not ranked. O(log n) a user."""

    async def distribution(self, ranking: Ranking, buckets: int) -> Distribution:
        """Equal-width buckets from the lowest to the highest score. O(buckets · log n)."""

    async def count(self, ranking: Ranking) -> int:
        """How many users are ranked. O(1)."""

    async def is_outside(self, ranking: Ranking, user_id: str) -> bool:
        """Whether the user has a score that is outside the ranking's capacity."""


class Index(Ranks, Protocol):
    """Sorted ranks. Holds nothing that the ledger can't give again.

    The rankings of a period (the world's, and one for each segment of its users) are one whole: they are built, applied
    to and dropped together, by the world's ranking, so a reader never sees a user in two regions. Reads are of one.

    A ranking that was not loaded, that is short of entries, or that may have lost some, raises `Unavailable` with the
    code `catching_up` on every read: never a wrong rank. With `index_unavailable` the index can't be reached.
    """

    async def open(self, ledger_id: str) -> None:
        """Connect. What belongs to another ledger is not seen."""

    async def close(self) -> None:
        """Disconnect. Idempotent."""

    async def ping(self) -> None:
        """Return if the index can be reached."""

    @property
    def outages(self) -> int:
        """How often it was lost and found again: what others wrote meanwhile may not be in it yet."""

    async def load(
        self, ranking: Ranking, rows: "AsyncIterator[list[Row]]", position: Position, replacing: str | None = None
    ) -> None:
        """Build a ranking anew from all of the ledger's rows beside the live one, then put it in its place.

        Rows that are applied meanwhile go to both. `position`: the ledger's, from before the rows were read.
        `replacing`: only if this generation is still the live one, for another server may have been quicker.
        Unavailable with `build_running` if another is building or has built it; a claim ends by itself if its owner
        dies.
        O(n log n).
        """

    async def apply(
        self,
        ranking: Ranking,
        rows: "Sequence[Row]",
        style: RankStyle,
        left_out: int = 0,
        as_of: AsOf = AsOf(),  # noqa: B008 - a frozen value
    ) -> Applied:
        """Take over rows, each only if its version is newer than the one held: idempotent, and in any order.

        What the newest row says goes for all segments: who left one, or is hidden, is gone from it with that row.

        `as_of`: what the caller knew of the ledger before it read the rows. Rows of another history than the ranking's
        are refused. So is the row of a user who is not held, if its version is not above the floor of the ranking and
        `as_of` does not know that floor: the user may have been erased and forgotten since.

        `left_out`: so many others were not sent, for the rows that were, in their order and to the last one, are
        better and fill a trimmed ranking with its reserve. So nobody who is worse than the last one is ranked.
        A reader sees all of the rows or none. O(log n) a row.
        """

    async def drop(self, ranking: Ranking) -> None:
        """Forget the rankings of a period, which can't be read until they were loaded. Idempotent."""

    async def forget(self, ranking: Ranking, user_ids: Sequence[str], floor: int) -> None:
        """Let go of users who are not ranked, and of the versions that guard against older rows of theirs.

        From here on `floor` guards against those: see `apply`. A build under way is given up, because it may have read
        such rows already.
        """

    async def trim(self, ranking: Ranking, *, forget: bool) -> int:
        """Let go of whom a trimmed ranking holds beyond its reserve, and, if so, of all that it knows of those outside.

        Gives how many. O(n), a part at a time.
        """

    async def begin_refill(self, ranking: Ranking) -> Refill | None:
        """What a trimmed ranking wants, for others left it; None: nothing. The ledger is to be read after this."""

    async def refill(
        self,
        ranking: Ranking,
        refill: Refill,
        best: "Sequence[Row]",
        as_of: AsOf = AsOf(),  # noqa: B008 - a frozen value
    ) -> None:
        """Complete a trimmed ranking with the ledger's best rows, as many as are wanted or there are.

        Rows that were applied since `begin_refill` are kept in mind. Ignored if another refill overtook it, or if the
        rows may be outdated: see `apply`.
        """

    async def states(self, rankings: Sequence[Ranking]) -> list[IndexState]:
        """How each ranking stands."""

    async def confirm(self, ranking: Ranking, seen: IndexState, position: Position) -> None:
        """Say that everything up to a position of the ledger was applied since the state was seen.

        Ignored if another server has taken over meanwhile, or if the ranking is of another history by now.
        """

    def periods(self) -> AsyncIterator[list[int]]:
        """The periods that the index holds anything of, some perhaps twice: to find what nobody owns. O(all keys)."""

    async def claim(self, task: str, seconds: float) -> bool:
        """Whether this caller may do a task now: once in that time over all servers."""

    async def revision(self, ranking: Ranking) -> Hashable:
        """Something that is another after each change that a read could show: for caches. O(1)."""

    async def held(self, ranking: Ranking, user_ids: Sequence[str]) -> list[Held | None]:
        """What is held of each user: for verify."""

    async def segments(self, ranking: Ranking) -> list[str]:
        """The segments of a period that have somebody: for verify. O(their number)."""

    def ranked_users(self, ranking: Ranking) -> AsyncIterator[list[str]]:
        """Every ranked user, in order: for verify. In chunks: of one moment only if the revision stays. O(n)."""
