"""The contracts between the service and the outside: Ledger, Index, Feed, Spool, Clock. Adapters say only where they
differ.

Every method may raise `Unavailable` when its store can't be reached; nothing has happened then, unless the error says
that the outcome is unknown.
"""

from collections.abc import AsyncIterator, Callable, Hashable, Sequence
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
    # Kept on the local disk until the ledger can be reached.
    SPOOLED = "spooled"


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
    stamped: bool


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

    async def identity(self) -> str:
        """A name that no other ledger has, given at its making: an index must not serve two of them."""

    @property
    def ranks(self) -> "Ranks | None":
        """Ranks straight from SQL, for when the index can't be asked; None where it is never apart from the ledger."""

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

    async def position(self) -> str:
        """Where the ledger is now: `changes` from here gives all that is committed from now on. Cheap."""

    def is_ahead(self, position: str, of: str) -> bool:
        """Whether a position is of a time that another one does not know: this ledger was set back since."""

    def changes(self, since: str) -> AsyncIterator[list[Row]]:
        """The rows, as they are now, that were changed by transactions that were not finished at a position.

        In chunks, in no order, some perhaps twice. Costs what was changed since, unless said.
        """

    async def count_changes(self, since: str, limit: int) -> int:
        """About how many events `changes` has to look at; no more than `limit` are counted."""

    async def best_rows(self, ranking: Ranking, limit: int) -> list[Row]:
        """The first rows in the order of the ranking, removed ones left out. A scan of the period."""

    async def rows_of_user(self, period_ids: Sequence[int], user_id: str) -> list[Row]:
        """The user's rows in these periods, removed ones left out, in one query."""

    async def user_events(
        self, board_id: int, user_id: str, *, before_seq: int | None, limit: int
    ) -> list[StoredEvent]:
        """A user's events on a board, last arrived first."""

    async def board_events(self, board_id: int, *, after_seq: int, limit: int, voided: bool) -> list[StoredEvent]:
        """A board's events in the order of arrival, voided ones only if asked for."""

    async def count_events(self, board_id: int | None = None) -> int:
        """How many events a board has, or all boards together."""

    def refold(self, board: Board) -> AsyncIterator[list[Refolded]]:
        """Every user of the board, by user id, with the stored rows and a fresh fold of the events: for verify.

        Each chunk is a consistent view. Memory does not grow with the number of events.
        """

    # Who and what is there

    async def registry_revision(self) -> int:
        """A number that grows with every change of pods, keys and boards."""

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


class Applied(Struct, frozen=True):
    """One Placement a row; None: the rows were taken over, and as the ranking is behind nobody knows their ranks.

    `short`: a trimmed ranking runs low and wants a refill.
    """

    placements: list[Placement] | None
    short: bool = False


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
    position: str | None = None
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
        self, ranking: Ranking, rows: AsyncIterator[list[Row]], position: str, replacing: str | None = None
    ) -> None:
        """Build a ranking anew from all of the ledger's rows beside the live one, then put it in its place.

        Rows that are applied meanwhile go to both. `position`: the ledger's, from before the rows were read.
        `replacing`: only if this generation is still the live one, for another server may have been quicker.
        Unavailable with `build_running` if another is building or has built it; a claim ends by itself if its owner
        dies.
        O(n log n).
        """

    async def apply(self, ranking: Ranking, rows: Sequence[Row], style: RankStyle) -> Applied:
        """Take over rows, each only if its version is newer than the one held: idempotent, and in any order.

        A reader sees all of the rows or none. O(log n) a row.
        """

    async def drop(self, ranking: Ranking) -> None:
        """Forget a ranking, which can't be read from now on until it was loaded. Idempotent."""

    async def begin_refill(self, ranking: Ranking) -> Refill | None:
        """What a trimmed ranking wants, for others left it; None: nothing. The ledger is to be read after this."""

    async def refill(self, ranking: Ranking, refill: Refill, best: Sequence[Row]) -> None:
        """Complete a trimmed ranking with the ledger's best rows, as many as are wanted or there are.

        Rows that were applied since `begin_refill` are kept in mind. A refill that another one overtook is ignored.
        """

    async def states(self, rankings: Sequence[Ranking]) -> list[IndexState]:
        """How each ranking stands."""

    async def confirm(self, ranking: Ranking, seen: IndexState, position: str) -> None:
        """Say that everything up to a position of the ledger was applied since the state was seen.

        Ignored if another server has taken over meanwhile.
        """

    async def claim(self, task: str, seconds: float) -> bool:
        """Whether this caller may do a task now: once in that time over all servers."""

    async def revision(self, ranking: Ranking) -> Hashable:
        """Something that is another after each change that a read could show: for caches. O(1)."""

    async def held(self, ranking: Ranking, user_ids: Sequence[str]) -> list[Held | None]:
        """What is held of each user: for verify."""

    def ranked_users(self, ranking: Ranking) -> AsyncIterator[list[str]]:
        """Every ranked user, in order: for verify. In chunks: of one moment only if the revision stays. O(n)."""


class Feed(Protocol):
    """Hints between servers that something changed. They may be lost: whoever depends on one also looks by itself."""

    async def open(self, ledger_id: str) -> None:
        """Connect, and go on trying for as long as it takes."""

    async def close(self) -> None:
        """Disconnect. Idempotent."""

    async def publish(self, topic: str, message: str) -> None:
        """Tell every server, this one too. Never raises."""

    def subscribe(self, topic: str, hear: Callable[[str | None], None]) -> Callable[[], None]:
        """Call `hear` with each message, and with None when some may have been missed; gives what ends it."""


class Spool(Protocol):
    """What waits on the local disk for a ledger that can't be reached. Items are bytes of the service's own making."""

    async def open(self, ledger_id: str) -> None:
        """Take over what an earlier process left behind for this ledger. Unavailable if the folder can't be used."""

    async def append(self, items: Sequence[bytes]) -> None:
        """Keep items. Once this has returned they are on the disk. Unavailable if they can't be kept."""

    async def peek(self, limit: int) -> list[bytes]:
        """The first items that still wait, in the order of their coming; none if none wait."""

    async def drop(self, count: int) -> None:
        """Forget the first items, for they are in the ledger. After a crash some may come again."""

    @property
    def waiting(self) -> int:
        """How many items wait."""

    async def close(self) -> None:
        """Let go of the folder. Idempotent."""
