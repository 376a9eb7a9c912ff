"""The contracts between the service and the outside: Ledger, Index, Clock. Adapters say only where they differ.

Every method may raise `Unavailable` when its store can't be reached; nothing has happened then, unless said.
"""

from collections.abc import AsyncIterator, Sequence
from enum import StrEnum
from typing import Protocol

from msgspec import Struct

from laurels.core.board import Board, Ranking, RankStyle
from laurels.core.scores import Standing


class Event(Struct, frozen=True):
    """One submission that passed every check, on its way to the ledger."""

    board: Board
    event_id: str
    user_id: str
    score: float
    at: int
    # True if the server's clock gave `at`. A repetition then has another `at` and is the same event all the same.
    stamped: bool
    received_at: int
    # Canonical JSON text, so that equal metadata are equal texts.
    metadata: str | None = None


class Row(Struct, frozen=True):
    """What a user has in a period. `standing` None: removed; the version still guards against older rows."""

    period_id: int
    user_id: str
    standing: Standing | None
    version: int


class Change(Struct, frozen=True):
    """A user's row after a batch, and the row before it. The same row twice: the batch left it alone."""

    row: Row
    before: Row | None


class Recorded(StrEnum):
    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    CONFLICT = "conflict"


class Record(Struct, frozen=True):
    """What the ledger made of one event. `changes`: the user's row in each period of the event's time."""

    outcome: Recorded
    changes: tuple[Change, ...] = ()


class StoredEvent(Struct, frozen=True):
    """An event as it is kept. `seq` is the order of arrival."""

    seq: int
    event_id: str
    user_id: str
    score: float
    at: int
    received_at: int
    voided: bool
    metadata: str | None


class Refolded(Struct, frozen=True):
    """One user's rows as stored, and what the events say that they should be, by period."""

    user_id: str
    rows: tuple[Row, ...]
    fresh: dict[int, Standing]


class Pod(Struct, frozen=True):
    pod_id: str
    name: str
    created_at: int


class Role(StrEnum):
    ADMIN = "admin"
    SERVER = "server"
    CLIENT = "client"


class Key(Struct, frozen=True):
    """A key of a pod. `digest` is the SHA-256 of the key itself, which is not kept."""

    key_id: str
    pod_id: str
    role: Role
    label: str | None
    digest: bytes
    created_at: int


class Act(Struct, frozen=True):
    """Something a person did to stored scores: kept for ever, with who and when. Unique by `act_id` on a board."""

    act_id: str
    kind: str
    by: str
    at: int


class Clock(Protocol):
    def now_us(self) -> int:
        """The present instant, in microseconds since 1970."""


class Ledger(Protocol):
    """SQL truth. What a method has returned from is durable."""

    async def open(self) -> list[str]:
        """Connect, and apply the migrations that are missing; gives their names."""

    async def close(self) -> None:
        """Finish what is under way, then disconnect. Idempotent."""

    async def ping(self) -> None:
        """Return if a read would be answered now."""

    # Scores

    async def record(self, events: Sequence[Event]) -> list[Record]:
        """Store and fold a batch in one transaction: all or nothing. One Record an event, in order.

        An event id that the board already has (or that stands earlier in the batch) is a DUPLICATE if user, score,
        given time and metadata are the same, else a CONFLICT; neither changes anything. Every Change shows the row
        as it was before and as it is after the whole batch, so a score that is shown is one that was committed.
        """

    async def remove_user(self, board: Board, user_id: str, act: Act) -> list[Row]:
        """Void the user's events on the board and clear the rows; gives the rows, with their new versions.

        NotFound if there is nothing to remove. Idempotent by `act.act_id`: a repetition changes nothing and gives the
        rows as they are now.
        """

    def rows(self, period_id: int) -> AsyncIterator[list[Row]]:
        """Every row of a period in chunks, removed ones too, ordered by user id. Each chunk is a consistent view."""

    async def count_rows(self) -> int:
        """How many rows `rows` will give for all periods together: for progress bars."""

    async def best_rows(self, ranking: Ranking, limit: int) -> list[Row]:
        """The first rows in the order of the ranking, removed ones left out. A scan of the period."""

    async def rows_of_user(self, period_ids: Sequence[int], user_id: str) -> list[Row]:
        """The user's rows in these periods, removed ones left out, in one query."""

    async def user_events(
        self, board_id: int, user_id: str, *, before_seq: int | None, limit: int
    ) -> list[StoredEvent]:
        """A user's events on a board, last arrived first."""

    async def board_events(self, board_id: int, *, after_seq: int, limit: int) -> list[StoredEvent]:
        """A board's events in the order of arrival, voided ones left out."""

    async def count_events(self, board_id: int | None = None) -> int:
        """How many events a board has, or all boards together."""

    def refold(self, board: Board) -> AsyncIterator[list[Refolded]]:
        """Every user of the board, by user id, with the stored rows and a fresh fold of the events: for verify.

        Each chunk is a consistent view. Memory does not grow with the number of events.
        """

    # Who and what is there

    async def create_pod(self, pod: Pod) -> Pod:
        """Conflict if the id is taken by a pod with another name; else idempotent."""

    async def pods(self) -> list[Pod]:
        """All, by id."""

    async def create_key(self, key: Key) -> None:
        """Conflict if the key's id is taken; NotFound if there is no such pod."""

    async def keys(self) -> list[Key]:
        """All that were not revoked, oldest first."""

    async def revoke_key(self, key_id: str) -> bool:
        """False if there is no such key."""

    async def create_board(self, board: Board) -> Board:
        """Store a board and its first periods; gives it with its ids. Conflict if its UUID is taken."""

    async def update_board(self, board: Board) -> Board:
        """Store a changed board if its revision is still the stored one, which then grows; else Conflict."""

    async def boards(self) -> list[Board]:
        """All, oldest first, with their periods."""


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


class Shortage(Struct, frozen=True):
    """A trimmed ranking wants this many of the ledger's best rows. `generation`: of which build of it."""

    wanted: int
    generation: int


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


class Index(Protocol):
    """Sorted ranks. Holds nothing that the ledger can't give again.

    A ranking that was not loaded, or that is short of entries, raises `Unavailable` with the code `catching_up` on
    every read: never a wrong rank. Each read is of one moment. n: the users in a ranking.
    """

    async def load(self, ranking: Ranking, rows: AsyncIterator[list[Row]]) -> None:
        """Build a ranking anew from all of the ledger's rows beside the live one, then put it in its place.

        Rows that are applied meanwhile go to both. O(n log n).
        """

    async def apply(self, ranking: Ranking, rows: Sequence[Row], style: RankStyle) -> list[Placement]:
        """Take over rows, each only if its version is newer than the one held: idempotent, and in any order.

        A reader sees all of the rows or none. One Placement a row. O(log n) a row.
        """

    async def drop(self, ranking: Ranking) -> None:
        """Forget a ranking, which can't be read from now on until it was loaded. Idempotent."""

    def shortage(self, ranking: Ranking) -> Shortage | None:
        """What a trimmed ranking wants, for others left it; None: nothing."""

    async def refill(self, ranking: Ranking, shortage: Shortage, best: Sequence[Row]) -> None:
        """Complete a trimmed ranking with the ledger's best rows, as many as are wanted or there are.

        No `apply` may run since they were read. Rows for a generation that is gone are ignored.
        """

    async def top(self, ranking: Ranking, offset: int, limit: int, style: RankStyle) -> Page:
        """Places from `offset` on; 0 is the first. O(log n + limit)."""

    def revision(self, ranking: Ranking) -> int:
        """A number that is another one after each change that a read could show: for caches. O(1)."""

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

    async def held(self, ranking: Ranking, user_ids: Sequence[str]) -> list[Held | None]:
        """What is held of each user: for verify."""

    async def ranked_users(self, ranking: Ranking) -> list[str]:
        """Every ranked user, in order: for verify. O(n)."""
