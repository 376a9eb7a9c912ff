"""The Ledger: SQL truth, and the values that go in and come out."""

from collections.abc import AsyncIterator, Iterator, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from laurels.core.board import Board, Ranking
from laurels.core.people import Hidden
from laurels.core.scores import Standing
from laurels.core.windows import Period, Span
from laurels.ports.index import Ranks
from laurels.ports.position import AsOf, Position

if TYPE_CHECKING:
    from laurels.ports.jobs import JobBook
    from laurels.ports.outbox import Outbox
    from laurels.ports.people import Act, People
    from laurels.ports.seasons import Seasons
    from laurels.ports.streams import Streams


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
    # Its sender was told that it is taken: it is stored also where no period takes it any more.
    acknowledged: bool = False
    # Where the user is, if the sender said so.
    region: str | None = None
    # Why it is not to be stored. It is compared all the same: it may be the repetition of one that is.
    refused: Exception | None = None

    @property
    def is_stored(self) -> bool:
        return self.refused is None and (self.acknowledged or bool(self.board.periods_at(self.at)))


class Row(Struct, frozen=True):
    """What a user has in a period. `standing` None: removed; the version still guards against older rows.

    `segments`: those, beside the world, in which the user is ranked.
    """

    period_id: int
    user_id: str
    standing: Standing | None
    version: int
    segments: tuple[str, ...] = ()
    hidden: Hidden = Hidden.NO

    @property
    def ranked(self) -> Standing | None:
        """What the ranks show of it; None: nothing."""
        return self.standing if self.hidden is Hidden.NO else None


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
    # No period of the board takes scores of its time any more.
    LATE = "late"
    # Its user was erased after that time.
    ERASED = "erased"


class Record(Struct, frozen=True):
    """What the ledger made of one event. `changes`: the user's row in each period of the event's time.

    `moved`: other rows of the user, on any board of the pod, that are others now, for the event told a new region.
    """

    outcome: Recorded
    changes: tuple[Change, ...] = ()
    moved: tuple[Row, ...] = ()

    @property
    def rows(self) -> Iterator[Row]:
        """All that are others now, or may be."""
        yield from (change.row for change in self.changes)
        yield from self.moved


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
    # The periods that were open when this was read.
    periods: tuple[Period, ...]
    # Where the profile says that the user is, and whether somebody hid them.
    segments: tuple[str, ...] = ()
    hidden: Hidden = Hidden.NO


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


class FreeInstant(Struct, frozen=True):
    """An instant from which on a board has no events. `since`: what it is known from, so that only what came after
    that has to be looked at again; None: nothing is known.
    """

    at: int
    since: int | None = None


class BoardChange(Struct, frozen=True):
    """A board as it is to be, which of its periods are others than before, and which are to be made.

    `free_from`: the change is about scores from this instant on, so there may be none, and it must lie ahead.
    `ends_at`: the board ends then, also if that is over, so there may be no scores from then on either.
    """

    board: Board
    periods: tuple[Period, ...] = ()
    spans: tuple[Span, ...] = ()
    free_from: int | None = None
    ends_at: FreeInstant | None = None


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

    async def sender(self) -> str:
        """What the ids of its messages begin with. It stays when another ledger takes over: a repetition is known."""

    @property
    def seasons(self) -> "Seasons":
        """Final ranks, rewards, and what else becomes of periods."""

    @property
    def people(self) -> "People":
        """Profiles, who is hidden, and what was done to scores."""

    @property
    def jobs(self) -> "JobBook":
        """Who does what is to be done once for all servers."""

    @property
    def outbox(self) -> "Outbox":
        """What others are to be told."""

    @property
    def streams(self) -> "Streams":
        """Schemas of events, replays of dead letters, and what is published."""

    @property
    def ranks(self) -> Ranks | None:
        """Ranks straight from SQL, for when the index can't be asked; None where it is never apart from the ledger."""

    # Which history

    @property
    def as_of(self) -> AsOf:
        """What this process last learned from `read_as_of`."""

    async def read_as_of(self) -> AsOf:
        """Ask which history the ledger is in. One that has lost data begins a new history with this. Cheap."""

    async def mark(self) -> None:
        """Leave a mark in the ledger: one that is restored to an older state lacks the last marks. Cheap."""

    async def knows(self, position: Position) -> bool:
        """Return True if what was committed at a position is still there; False if the ledger has lost it since."""

    # Scores

    async def record(self, events: Sequence[Event], history: str | None = None) -> list[Record]:
        """Store and fold a batch in one transaction: all or nothing. One Record an event, in order.

        An event id that the board already has (or that stands earlier in the batch) is a DUPLICATE if user, score,
        given time and metadata are the same, else a CONFLICT; neither changes anything. A new one that no period takes,
        or that is refused, is LATE, and not stored unless it was acknowledged; one of before its user was erased is
        ERASED.

        Every Change shows the row as it was before and as it is after the whole batch, so a score that is shown is one
        that was committed. A region that an event tells is the user's from its time on, on all boards of the pod.

        Stale, and nothing is stored, if one of the boards is not there, or no longer as the events have it: its
        periods decide. The same if the ledger is not in `history` (None: that of `as_of`), in which they were read.
        """

    async def remove_user(self, board: Board, user_id: str, act: "Act") -> list[Row]:
        """Void the user's events on the board and clear the rows of open periods; gives them, with new versions.

        NotFound if there is nothing to remove. Idempotent by `act.act_id`: a repetition changes nothing and gives the
        rows as they are now.
        """

    def rows(self, period_id: int) -> AsyncIterator[list[Row]]:
        """Every row of a period in chunks, removed ones too, ordered by user id. Each chunk is a consistent view."""

    async def count_rows(self) -> int:
        """How many rows `rows` will give for all periods together: for progress bars."""

    async def position(self) -> Position:
        """Where the ledger is now: `changes` from here gives all that is committed from now on. Cheap."""

    def changes(self, since: Position) -> AsyncIterator[list[Row]]:
        """The rows, as they are now, that were changed by transactions that were not finished at a position.

        In chunks, in no order, some perhaps twice. Costs what was changed since, unless said.
        """

    async def count_changes(self, since: Position, limit: int) -> int:
        """About how many events `changes` has to look at. No more than `limit` are counted, or some are forgotten."""

    async def forget_changes(self, keep: int, limit: int) -> int:
        """Forget what is noted for `changes` beside events, but the last `keep`; `limit` at once. Gives how many."""

    async def best_rows(self, ranking: Ranking, limit: int) -> list[Row]:
        """The first rows in the order of the ranking, removed ones left out. A scan of the period."""

    async def rows_of_user(self, period_ids: Sequence[int], user_id: str) -> list[Row]:
        """The user's rows in these periods, removed ones left out, in one query."""

    async def rows_of_users(self, period_id: int, user_ids: Sequence[str]) -> list[Row]:
        """The rows of some users in a period, removed ones too."""

    async def user_events(
        self, board_id: int, user_id: str, *, before_seq: int | None, limit: int
    ) -> list[StoredEvent]:
        """A user's events on a board, last arrived first."""

    async def board_events(self, board_id: int, *, after_seq: int, limit: int, voided: bool) -> list[StoredEvent]:
        """A board's events in the order of arrival, voided ones only if asked for."""

    async def count_events(self, board_id: int | None = None) -> int:
        """How many events a board has, or all boards together."""

    def refold(self, board: Board) -> AsyncIterator[list[Refolded]]:
        """Every user of a board, by user id, with the rows of open periods and a fresh fold of the events: for verify.

        Each chunk is a consistent view, of the periods that are open then. Memory does not grow with the number of
        events.
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

    async def create_board(self, board: Board, spans: Sequence[Span]) -> Board:
        """Store a board and its first periods; gives it with its ids. Conflict if its UUID is taken."""

    async def update_board(self, change: BoardChange, history: str | None = None) -> Board:
        """Store a changed board with its changed and its new periods, all at once; gives it with their ids.

        Conflict if its revision is not the stored one any more; else that grows. Stale if the ledger is not in
        `history`. Events that are being recorded on the board are finished before, and those that come after it must
        know it. Conflict with the code `period_has_scores` if there are events from `free_from` on, or could be, for it
        is not ahead of the clock; with `end_before_scores` if there are any from `ends_at` on.
        """

    async def free_instant(self, board_id: int, earliest: int, notice_us: int) -> FreeInstant:
        """An instant that is some time ahead of all clocks, and from which on a board has no events yet."""

    async def boards(self, ids: Sequence[int] | None = None) -> list[Board]:
        """Some or all, oldest first, with the periods that are not final."""
