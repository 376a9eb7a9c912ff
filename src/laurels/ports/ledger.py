"""The Ledger: the SQL database, source of truth, and the values that it takes and returns."""

from collections.abc import AsyncIterator, Iterator, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from laurels.core.board import Board, Ranking
from laurels.core.people import Hidden
from laurels.core.quotas import Quotas
from laurels.core.scores import Operation, Standing
from laurels.core.windows import Period, Span
from laurels.ports.index import Ranks
from laurels.ports.position import AsOf, Position

if TYPE_CHECKING:
    from laurels.ports.audit import AuditStore
    from laurels.ports.jobs import JobStore
    from laurels.ports.outbox import Outbox
    from laurels.ports.periods import PeriodStore
    from laurels.ports.profiles import ModerationAction, ProfileStore
    from laurels.ports.streams import StreamStore


class Event(Struct, frozen=True):
    """One score submission that passed every check, before the ledger records it."""

    board: Board
    event_id: str
    user_id: str
    score: float
    at: int
    # True if `at` comes from the server's clock. A retry then has another `at` but is the same event.
    stamped: bool
    received_at: int
    # Canonical JSON, so that equal metadata are equal texts.
    metadata: str | None = None
    # The sender was told that the event is accepted, so it is stored even if no period accepts it any longer.
    acknowledged: bool = False
    # The user's region, if the sender stated it.
    region: str | None = None
    subscore: int = 0
    # What the event does instead of the board's rule.
    operation: Operation | None = None
    # Why the event must not be stored. It is still compared, because it may be a duplicate of a stored event.
    refused: Exception | None = None

    @property
    def is_stored(self) -> bool:
        return self.refused is None and (self.acknowledged or bool(self.board.periods_at(self.at)))


class Row(Struct, frozen=True, gc=False):
    """A user's stored result in a period.

    `standing` is None if the user was removed; the version still guards against older rows. `segments` are those,
    besides the global one, in which the user is ranked.
    """

    period_id: int
    user_id: str
    standing: Standing | None
    version: int
    segments: tuple[str, ...] = ()
    hidden: Hidden = Hidden.NO
    # The last score is older than the board allows.
    expired: bool = False

    @property
    def ranked(self) -> Standing | None:
        """Return the standing that rankings show; None if the user is hidden or removed, or the score has expired."""
        return self.standing if self.hidden is Hidden.NO and not self.expired else None


class RowChange(Struct, frozen=True, gc=False):
    """A user's row after a batch and before it. Both are the same row if the batch did not change it."""

    row: Row
    before: Row | None


class RecordOutcome(StrEnum):
    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    CONFLICT = "conflict"
    # Kept on the local disk until the ledger can be reached.
    SPOOLED = "spooled"
    # No period of the board accepts scores of its time any longer.
    LATE = "late"
    # Its user was erased after that time.
    ERASED = "erased"
    # Its user has used all attempts of a period.
    SPENT = "spent"
    # Waits for a moderator.
    IN_REVIEW = "in_review"


class RecordedEvent(Struct, frozen=True, gc=False):
    """The result of recording one event.

    `changes` has the user's row in each period that the event's time lies in. `resegmented` has other rows of the user,
    on any board of the pod, that changed because the event stated a new region.
    """

    outcome: RecordOutcome
    changes: tuple[RowChange, ...] = ()
    resegmented: tuple[Row, ...] = ()

    @property
    def rows(self) -> Iterator[Row]:
        """Yield all rows that changed or may have changed."""
        yield from (change.row for change in self.changes)
        yield from self.resegmented


def are_stored(records: Sequence[RecordedEvent]) -> bool:
    """Return True if all events of a call of `Ledger.record_all` are in the ledger, now or from before."""
    return all(record.outcome in {RecordOutcome.ACCEPTED, RecordOutcome.DUPLICATE} for record in records)


class NotAllStored(Exception):
    """The reason to roll the transaction of `Ledger.record_all` back, with the outcomes."""

    def __init__(self, records: Sequence[RecordedEvent]) -> None:
        super().__init__("an event can't be stored")
        self.records = [RecordedEvent(record.outcome) for record in records]


class StoredEvent(Struct, frozen=True):
    """An event as stored. `seq` is the order of arrival."""

    seq: int
    event_id: str
    user_id: str
    score: float
    at: int
    received_at: int
    voided: bool
    metadata: str | None
    stamped: bool
    subscore: int = 0
    # What the event did instead of the board's rule.
    operation: str | None = None


class Refolded(Struct, frozen=True):
    """A user's rows as stored, and the standings that a new fold of the events produces, by period id."""

    user_id: str
    rows: tuple[Row, ...]
    fresh: dict[int, Standing]
    # The periods that were open when the rows were read.
    periods: tuple[Period, ...]
    # The segments according to the user's profile, and how the user is hidden.
    segments: tuple[str, ...] = ()
    hidden: Hidden = Hidden.NO


class Pod(Struct, frozen=True):
    pod_id: str
    name: str
    created_at: int
    # The web origins whose pages may call the API about this pod; "*" for all.
    allowed_origins: tuple[str, ...] = ()
    quotas: Quotas = Quotas()


class Template(Struct, frozen=True):
    """What a new board of a pod is like: `board` without its id, UUID and times.

    `prefix`: the first score for a UUID that begins with it creates the board; None: no score does.
    """

    pod_id: str
    name: str
    prefix: str | None
    board: Board
    created_at: int
    updated_at: int


class Role(StrEnum):
    ADMIN = "admin"
    SERVER = "server"
    CLIENT = "client"
    # A player token; no key has this role.
    PLAYER = "player"


class Scope(StrEnum):
    """What a caller may do within its role."""

    READ = "read"
    # Submit scores, change profiles, claim rewards and issue player tokens.
    SCORES_WRITE = "scores:write"
    # Create and change boards, periods and event schemas.
    BOARDS_WRITE = "boards:write"
    # Remove, hide, void, restore, export and erase.
    MODERATION = "moderation"


class Key(Struct, frozen=True):
    """An API key. `digest` is the SHA-256 of the secret, which is not stored.

    `pod_id` None: the key of an administrator. `scopes` None: all scopes of the role.
    """

    key_id: str
    pod_id: str | None
    role: Role
    label: str | None
    digest: bytes
    created_at: int
    expires_at: int | None = None
    scopes: tuple[Scope, ...] | None = None
    used_at: int | None = None


class FreeInstant(Struct, frozen=True):
    """An instant at or after which a board has no events.

    `since` is a point in the order of recording: only events recorded after it must be checked again. None means that
    all must be checked.
    """

    at: int
    since: int | None = None


class BoardUpdate(Struct, frozen=True):
    """A changed board, with its changed periods and the spans to create periods for.

    `free_from`: the change affects scores from this instant on, so the board must have none, and the instant must be in
    the future. `ends_at`: the board ends at this instant, which may be in the past, so it must have no scores from then
    on.
    """

    board: Board
    periods: tuple[Period, ...] = ()
    spans: tuple[Span, ...] = ()
    free_from: int | None = None
    ends_at: FreeInstant | None = None


class Ledger(Protocol):
    """The SQL database, source of truth. When a method returns, its changes are durable."""

    async def open(self) -> list[str]:
        """Connect, apply missing migrations, and return their names."""

    async def close(self) -> None:
        """Finish the work in progress, then disconnect. Idempotent."""

    async def ping(self) -> None:
        """Return if the ledger can answer a read now; raise `Unavailable` if not."""

    async def identity(self) -> str:
        """Return the unique id of this ledger, assigned when it was created.

        An index uses it to keep the rankings of different ledgers apart.
        """

    async def sender(self) -> str:
        """Return the prefix of the ids of all messages that are sent.

        It stays when another ledger takes over the data, so that receivers can still detect duplicates.
        """

    @property
    def periods(self) -> "PeriodStore":
        """Return the store of periods: final ranks, rewards, retention."""

    @property
    def profiles(self) -> "ProfileStore":
        """Return the store of profiles, hidden users, moderation actions and erasures."""

    @property
    def jobs(self) -> "JobStore":
        """Return the store of job leases and results."""

    @property
    def outbox(self) -> "Outbox":
        """Return the outbox of webhook messages."""

    @property
    def streams(self) -> "StreamStore":
        """Return the store of event schemas, replays of dead letters, and publishing cursors."""

    @property
    def audit(self) -> "AuditStore":
        """Return the audit log."""

    @property
    def ranks(self) -> Ranks | None:
        """Return reads of rankings directly from SQL, for when the index is unavailable.

        None in embedded mode, because the index is in the same process. Each read costs a scan of the period.
        """

    # History

    @property
    def as_of(self) -> AsOf:
        """Return what this process learned from its last `read_as_of`."""

    async def read_as_of(self) -> AsOf:
        """Read which history the ledger is in, and its floor. Cheap.

        If the ledger has lost data since the last call, this starts a new history.
        """

    async def mark(self) -> None:
        """Write a mark into the ledger. Cheap.

        A ledger that is restored to an older state lacks the latest marks, which shows that it has lost data.
        """

    async def knows(self, position: Position) -> bool:
        """Return True if everything that was committed at a position is still there.

        False if the ledger has lost it since, or can't tell.
        """

    # Scores

    @property
    def batches_at_once(self) -> int:
        """Return how many calls of `record` can make progress at the same time."""

    async def record(self, events: Sequence[Event], history: str | None = None) -> list[RecordedEvent]:
        """Store and fold a batch of events in one transaction, and return one result per event, in order.

        All or nothing. Idempotent by event id: an id that the board already has, or that appears earlier in the batch,
        is a DUPLICATE if user, score, given time and metadata are the same, else a CONFLICT; neither changes anything.
        A new event that is refused, or that no period accepts, is LATE and not stored; an acknowledged event is stored
        even if no period accepts it. An event from before its user was erased is ERASED and not stored.

        Each RowChange has the row before and after the whole batch, so every score that is shown was committed. A
        region that an event states is the user's region from the event's time on, on all boards of the pod.

        Raises `Stale`, and stores nothing, if a board does not exist or differs from the one in the events, because its
        periods decide where events count; and if the ledger is not in `history` (None: the history of `as_of`), in
        which the boards were read.
        """

    async def hold_for_review(self, event: Event, act: "ModerationAction", history: str | None = None) -> RecordOutcome:
        """Store an event as void by an action of kind `review`, so that it counts once a moderator restores it.

        Idempotent by the event id, also in the comparison with other events. Raises as `record` does.
        """

    async def record_all(self, events: Sequence[Event], history: str | None = None) -> list[RecordedEvent]:
        """Store and fold events like `record`, but all of them or none.

        If an outcome is neither ACCEPTED nor DUPLICATE, nothing is stored, also not the events whose outcome is
        ACCEPTED, and the results have no changes. See `are_stored`.
        """

    async def remove_user(self, board: Board, user_id: str, act: "ModerationAction") -> list[Row]:
        """Void a user's events on a board, clear the rows of open periods, and return these with new versions.

        Atomic. Idempotent by `act.action_id`: a repetition changes nothing and returns the current rows. Raises
        `NotFound` if there is nothing to remove, and `Busy` with `refreeze_running` while final ranks of the board are
        being corrected.
        """

    async def expire(self, board_id: int, cutoffs: Sequence[tuple[int, int]], limit: int) -> list[Row]:
        """Let rows expire, at least one up to about `limit` if any is due, and return them.

        `cutoffs` has a period and an instant each: rows whose `last_at` is not after it expire. With another score, a
        row no longer is expired.
        """

    async def oldest_last_at(self, period_ids: Sequence[int]) -> dict[int, int]:
        """Return by period the oldest `last_at` of the rows that have not expired. Periods without one are left out."""

    def rows(self, period_id: int) -> AsyncIterator[list[Row]]:
        """Yield every row of a period, including removed ones, in chunks, ordered by user id.

        Each chunk is a consistent view. May raise `Stale` if the period is frozen meanwhile.
        """

    async def sum_scores(self, ranking: Ranking, *, final: bool) -> tuple[int, float]:
        """Return how many users are ranked, and the sum of their scores, as a double.

        From the final ranks of a frozen period (`final`), otherwise from the rows. Ignores the shadow viewer. O(n).
        """

    async def count_rows(self) -> int:
        """Return how many rows `rows` yields for all periods together, for progress bars."""

    async def position(self) -> Position:
        """Return the current position. `changes` from here yields everything that is committed from now on. Cheap."""

    def changes(self, since: Position) -> AsyncIterator[list[Row]]:
        """Yield the current rows that were changed by transactions that were not finished at a position.

        In chunks, in no order, some possibly twice. Unless an adapter says otherwise, the cost grows with the number of
        changes since the position.
        """

    async def remembers(self, since: Position) -> bool:
        """Return True if `changes` returns every change since a position; False if some of them were removed."""

    async def count_changes(self, since: Position, limit: int) -> int:
        """Return about how many changes `changes` has to read, at most `limit`.

        Returns `limit` if some of the changes have been forgotten, so that the caller rebuilds the index.
        """

    async def forget_changes(self, keep: int, limit: int) -> int:
        """Forget old notes that `changes` needs in addition to events, and return how many.

        Keeps the last `keep` notes and removes at most `limit` per call.
        """

    async def rows_of_user(self, period_ids: Sequence[int], user_id: str) -> list[Row]:
        """Return a user's rows in these periods, without removed ones. One query."""

    async def rows_of_users(self, period_id: int, user_ids: Sequence[str]) -> list[Row]:
        """Return the rows of some users in a period, including removed ones."""

    async def user_events(
        self, board_id: int, user_id: str, *, before_seq: int | None, limit: int
    ) -> list[StoredEvent]:
        """Return a user's events on a board, voided ones too, latest arrival first, before `before_seq`."""

    async def events_at(self, board_id: int, moments: Sequence[tuple[str, int, float | None]]) -> list[StoredEvent]:
        """Return one event that counts of each user at an instant: those with a score, or any (None).

        Of several, the one with the smallest id, events other than 0 first. Costs a look at all events of each user.
        """

    async def metadata_kept(self, board_id: int, moments: Sequence[tuple[str, int, float | None]]) -> dict[str, str]:
        """Return, by user, the metadata of scores that count and whose events were removed.

        `moments`: as for `events_at`.
        """

    async def forget_metadata(self, board_id: int) -> None:
        """Remove the kept metadata of scores that no longer count."""

    async def board_events(self, board_id: int, *, after_seq: int, limit: int, voided: bool) -> list[StoredEvent]:
        """Return a board's events after `after_seq`, in the order of arrival.

        `voided`: include voided events.
        """

    async def count_events(self, board_id: int | None = None) -> int:
        """Return the number of events of a board, or of all boards, without voided ones."""

    def refold(self, board: Board) -> AsyncIterator[list[Refolded]]:
        """Yield every user of a board, by user id, with the rows of open periods and a new fold of the events.

        Used by verify. Each chunk is a consistent view, of the periods that are open at that moment. Memory does not
        grow with the number of events.
        """

    # Registry: pods, keys, boards

    async def registry_revision(self) -> int:
        """Return a number that grows with every change of pods, keys, boards and schemas."""

    async def create_pod(self, pod: Pod) -> Pod:
        """Store a pod, and return it as stored.

        Idempotent. Raises `Conflict` if a pod with the same id and another name exists.
        """

    async def pods(self) -> list[Pod]:
        """Return all pods, ordered by id."""

    async def create_key(self, key: Key) -> None:
        """Store a key. Raises `Conflict` if its id is taken, `NotFound` if the pod does not exist."""

    async def keys(self) -> list[Key]:
        """Return all keys that are not revoked, oldest first."""

    async def revoke_key(self, key_id: str) -> bool:
        """Revoke a key; return False if it does not exist or is revoked already."""

    async def expire_key(self, key_id: str, at: int) -> bool:
        """Set when a key expires; return False if it does not exist or is revoked."""

    async def mark_used(self, used: Sequence[tuple[str, int]]) -> None:
        """Store when keys were last used, each by its id. A stored time never moves back."""

    async def change_pod(self, pod_id: str, origins: Sequence[str] | None, quotas: Quotas | None) -> Pod:
        """Set the allowed origins and the quotas of a pod, and return it. None: unchanged.

        Raises `NotFound` if the pod does not exist.
        """

    async def add_usage(self, day: int, events: Sequence[tuple[str, int]]) -> dict[str, int]:
        """Add to the numbers of events that pods had on a day, and return the sums of all pods.

        Forgets older days. Not idempotent.
        """

    async def revoke_tokens(self, pod_id: str, user_id: str, at: int, forget_before: int) -> None:
        """Refuse the player tokens of a user that were issued before `at`.

        Also deletes all revocations from before `forget_before`, because the tokens that they refuse have expired.
        """

    async def token_revocations(self, since: int) -> dict[tuple[str, str], int]:
        """Return the revocations from `since` on, by pod and user."""

    async def templates(self) -> list[Template]:
        """Return the templates of all pods."""

    async def put_template(self, template: Template) -> Template:
        """Create or replace a template, and return it as stored: with the time of its creation.

        Raises `NotFound` if the pod does not exist. Increases `registry_revision`, as does `delete_template`.
        """

    async def delete_template(self, pod_id: str, name: str) -> bool:
        """Delete a template; return False if there was none."""

    async def create_board(self, board: Board, spans: Sequence[Span]) -> Board:
        """Store a board and its first periods in one transaction, and return it with its ids.

        Raises `Conflict` if its UUID is taken, `NotFound` if the pod does not exist.
        """

    async def update_board(self, change: BoardUpdate, history: str | None = None) -> Board:
        """Store a changed board, its changed periods and its new ones in one transaction; return it with the new ids.

        The revision grows by one. Waits until the events that are being recorded on the board are stored; events that
        are recorded afterwards must know the new board (see `record`).

        Raises `Conflict` if the board's revision is no longer the stored one; with `period_has_scores` if there are
        events from `free_from` on, or could be because it is not in the future; with `end_before_scores` if there are
        events from `ends_at` on. Raises `Stale` if the ledger is not in `history` (None: the history of `as_of`).
        """

    async def free_instant(self, board_id: int, earliest: int, notice_us: int) -> FreeInstant:
        """Return an instant at or after which a board has no events yet.

        It is at least `notice_us` microseconds after `earliest` and after the clock.
        """

    async def delete_board(self, board: Board, history: str | None = None) -> None:
        """Delete a board for good: it and its periods are no longer found. `purge_board` removes what it had.

        Raises Conflict (`changed_meanwhile`) if its revision is not the stored one. `history`: as for `update_board`.
        """

    async def boards_to_purge(self) -> list[int]:
        """Return the ids of deleted boards that still have events, rows, final ranks or messages."""

    async def purge_board(self, board_id: int, limit: int) -> int:
        """Remove up to `limit` rows that belonged to a deleted board, and return how many; 0 when all are removed."""

    async def boards(self, ids: Sequence[int] | None = None) -> list[Board]:
        """Return some or all boards, oldest first, with their periods that are not final."""
