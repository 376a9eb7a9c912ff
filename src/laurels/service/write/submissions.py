"""Score submissions: check, timestamp, record and rank. HTTP, Kafka and the command line all use this path."""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

import structlog
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from laurels.core.board import Board, Status
from laurels.core.checks import canonical_metadata, exact_score, why_closed, why_refused
from laurels.core.ids import new_event_id
from laurels.core.instants import to_datetime
from laurels.core.people import Hidden
from laurels.core.periods import opens_at
from laurels.core.scores import Operation, RankState, Standing
from laurels.core.windows import Period
from laurels.errors import Conflict, InternalError, Invalid, LaurelsError, TooMany
from laurels.metrics import EVENTS
from laurels.ports import (
    Clock,
    Event,
    Ledger,
    ModerationAction,
    RankChange,
    RanksWanted,
    RecordOutcome,
    RowChange,
    StoredAction,
)
from laurels.service.boards.caller import Caller
from laurels.service.index.updater import IndexUpdater
from laurels.service.traffic.usage import Usage
from laurels.service.write.batcher import Batcher, WriteResult
from laurels.service.write.review_gate import ReviewGate

log = structlog.get_logger()

T = TypeVar("T")

# How many scores of full pods may wait for a look at the ledger.
LOOK_UPS = 1000


class Submission(Struct, frozen=True, gc=False):
    """A score as it was sent.

    `at` None: the server's current time. `event_id` None: Laurels generates one. `stamped`: an exported event whose
    time came from a server's clock.
    """

    user_id: str
    score: int | float
    at: int | None = None
    event_id: str | None = None
    metadata: dict[str, Any] | None = None
    stamped: bool = False
    region: str | None = None
    subscore: int | None = None
    operation: Operation | None = None


class PeriodResult(Struct, frozen=True, gc=False):
    """A user's result in one period after the event was recorded."""

    period: Period
    score: float | None
    previous_score: float | None
    rank: int | None
    previous_rank: int | None
    rank_state: RankState
    # UNSET: the board has no subscores.
    subscore: int | UnsetType | None = UNSET


class Accepted(Struct, frozen=True, gc=False):
    """The result of an event.

    `counted`: the periods in which it counts, in the order of the board's windows. `late`: the windows that did not
    take it. `score`, `previous_score`, `rank` and `previous_rank` are those of the first period in `counted`.
    """

    outcome: RecordOutcome
    event_id: str
    user_id: str
    counted: tuple[PeriodResult, ...]
    late: tuple[str, ...]
    rank_state: RankState
    updated_at: int

    @property
    def score(self) -> float | None:
        return self.counted[0].score if self.counted else None

    @property
    def subscore(self) -> int | UnsetType | None:
        return self.counted[0].subscore if self.counted else UNSET

    @property
    def previous_score(self) -> float | None:
        return self.counted[0].previous_score if self.counted else None

    @property
    def rank(self) -> int | None:
        return self.counted[0].rank if self.counted else None

    @property
    def previous_rank(self) -> int | None:
        return self.counted[0].previous_rank if self.counted else None


class Submissions:
    def __init__(
        self,
        ledger: Ledger,
        updater: IndexUpdater,
        batcher: Batcher,
        usage: Usage,
        review_gate: ReviewGate,
        clock: Clock,
    ) -> None:
        self._ledger = ledger
        self._review_gate = review_gate
        self._updater = updater
        self._batcher = batcher
        self._usage = usage
        # Scores of pods that may not add users, or of boards with reviews: something is looked up first.
        self._looking_up: set[asyncio.Task[None]] = set()
        self._clock = clock

    async def submit(self, board: Board, submission: Submission, wanted: RanksWanted = RanksWanted.BOTH) -> Accepted:
        future: asyncio.Future[Accepted | LaurelsError] = asyncio.get_running_loop().create_future()
        self.send(board, submission, lambda answer: None if future.done() else future.set_result(answer), wanted)
        answer = await future
        if isinstance(answer, LaurelsError):
            raise answer
        return answer

    def send(
        self,
        board: Board,
        submission: Submission,
        done: Callable[[Accepted | LaurelsError], None],
        wanted: RanksWanted = RanksWanted.BOTH,
    ) -> None:
        """Submit a score, and call `done` with its result later, from the event loop.

        `wanted`: which ranks the result needs. Raises the error, and records nothing, if the board does not accept the
        score.
        """
        self._updater.require_ready()
        if board.review or self._usage.is_full(board.pod_id):
            if len(self._looking_up) >= LOOK_UPS:
                raise TooMany("too_many_pending", "Too many scores are being looked up. Try again later.")
            task = asyncio.create_task(self._look_up(board, submission, done, wanted), name="look a user up")
            self._looking_up.add(task)
            task.add_done_callback(self._looking_up.discard)
            return
        self._send(board, submission, done, wanted, None)

    def _send(
        self,
        board: Board,
        submission: Submission,
        done: Callable[[Accepted | LaurelsError], None],
        wanted: RanksWanted,
        stranger: LaurelsError | None,
    ) -> None:
        now = self._clock.now_us()
        event = _check(board, submission, now, self._why_closed(board, now) or stranger)
        if submission.event_id is None and event.refused is not None:
            raise event.refused
        self._batcher.send(event, lambda results: done(_answer(event, results[0], wanted)), wanted)

    async def _look_up(
        self,
        board: Board,
        submission: Submission,
        done: Callable[[Accepted | LaurelsError], None],
        wanted: RanksWanted,
    ) -> None:
        try:
            if board.review:
                (answer,) = await self.submit_many(board, [submission], wanted=wanted)
                done(answer)
                return
            strangers = await self._usage.strangers(board, [submission.user_id])
            self._send(board, submission, done, wanted, strangers.get(submission.user_id))
        except LaurelsError as error:
            done(error)
        except Exception:
            log.exception("user_not_looked_up")
            done(InternalError("internal", "Internal error. The server's log has the details."))

    def _why_closed(self, board: Board, now: int) -> LaurelsError | None:
        """Return why a board takes no new scores now; None if it does."""
        return why_closed(board, now) or self._usage.refusal(board.pod_id)

    def check(self, board: Board, submission: Submission) -> None:
        """Raise the error that a submission would get, as far as it is known without the ledger."""
        now = self._clock.now_us()
        refused = _check(board, submission, now, why_closed(board, now)).refused
        if refused is not None:
            raise refused

    async def submit_many(
        self,
        board: Board,
        submissions: Sequence[Submission | LaurelsError],
        *,
        may_spool: bool = True,
        wanted: RanksWanted = RanksWanted.AFTER,
    ) -> list[Accepted | LaurelsError]:
        """Submit several scores and return one result each, in order.

        A submission that is already an error is returned as it is. `may_spool`: the events may be spooled to the local
        disk while the ledger is unreachable, if this server has a spool. `wanted`: which ranks the results need. Raises
        the error of a closed board if no submission repeats a stored event.
        """
        self._updater.require_ready()
        now = self._clock.now_us()
        closed = self._why_closed(board, now)
        if closed is not None and not any(isinstance(each, Submission) and each.event_id for each in submissions):
            raise closed
        strangers: Mapping[str, LaurelsError] = {}
        if self._usage.is_full(board.pod_id):
            users = [each.user_id for each in submissions if isinstance(each, Submission)]
            strangers = await _in_task(self._usage.strangers(board, users))
        answers: list[Accepted | LaurelsError | None] = []
        events: list[Event] = []
        for submission in submissions:
            if isinstance(submission, LaurelsError):
                answers.append(submission)
                continue
            try:
                event = _check(board, submission, now, closed or strangers.get(submission.user_id))
            except LaurelsError as error:
                answers.append(error)
                continue
            if submission.event_id is None and isinstance(event.refused, LaurelsError):
                answers.append(event.refused)
            else:
                # The ledger gets refused events, too, because they may repeat a stored one.
                events.append(event)
                answers.append(None)
        if board.review:
            answers, events = await _in_task(self._hold_suspicious(board, answers, events))
        written = iter(
            await self._batcher.write(events, may_spool=may_spool and not board.review, wanted=wanted) if events else ()
        )
        checked = iter(events)
        given = [_answer(next(checked), next(written), wanted) if each is None else each for each in answers]
        if closed is not None and all(
            answer is closed or each is not None for answer, each in zip(given, answers, strict=True)
        ):
            raise closed
        return given

    async def _hold_suspicious(
        self, board: Board, answers: list[Accepted | LaurelsError | None], events: list[Event]
    ) -> tuple[list[Accepted | LaurelsError | None], list[Event]]:
        """Put suspicious scores on the review list; return the answers with theirs, and the events that are left."""
        caught = await self._review_gate.caught(board, events)
        left: list[Event] = []
        given: dict[int, Accepted | LaurelsError] = {}
        for index, event in enumerate(events):
            try:
                if index in caught and await self._review_gate.hold(event, caught[index]):
                    EVENTS.labels(RecordOutcome.IN_REVIEW.value).inc()
                    self._usage.note(Counter({board.pod_id: 1}))
                    given[index] = _in_review(event)
                    continue
            except LaurelsError as error:
                given[index] = error
                continue
            left.append(event)
        numbers = iter(range(len(events)))
        return [given.get(next(numbers)) if each is None else each for each in answers], left

    async def submit_to_boards(
        self, boards: Sequence[Board], submission: Submission, wanted: RanksWanted = RanksWanted.BOTH
    ) -> list[Accepted]:
        """Submit a score to several boards of a pod, in one transaction: it counts on all of them or on none.

        Raises the error of the first board that does not take it.
        """
        self._updater.require_ready()
        now = self._clock.now_us()
        submission = replace(submission, event_id=submission.event_id or new_event_id(now))
        events = []
        for board in boards:
            closed = self._why_closed(board, now)
            if self._usage.is_full(board.pod_id):
                strangers = await self._usage.strangers(board, [submission.user_id])
                closed = closed or strangers.get(submission.user_id)
            events.append(_check(board, submission, now, closed))
            if board.review and await self._review_gate.caught(board, events[-1:]):
                raise Conflict(
                    "needs_review",
                    f"Board {board.uuid!r} would review this score first, so it can't count on all boards at once. "
                    "Submit it to each board.",
                    field="boards",
                )
        written = await self._batcher.write_atomic(events, wanted=wanted)
        answers = [_answer(event, result, wanted) for event, result in zip(events, written, strict=True)]
        accepted = []
        for board, answer in zip(boards, answers, strict=True):
            if isinstance(answer, LaurelsError):
                answer.message = f"{answer.message} Nothing was counted, because board {board.uuid!r} does not take it."
                raise answer
            accepted.append(answer)
        return accepted

    async def remove_user(
        self, caller: Caller, board: Board, user_id: str, idempotency_key: str | None, reason: str | None = None
    ) -> StoredAction:
        """Remove a user from a board: the scores so far no longer count, and later ones start over.

        Idempotent if `idempotency_key` is given. Raises Conflict if the board is archived, and NotFound if the user has
        nothing to remove.
        """
        self._updater.require_ready()
        now = self._clock.now_us()
        if board.status_at(now) is Status.ARCHIVED:
            raise Conflict("board_archived", "An archived board can't be changed.")
        token = idempotency_key if idempotency_key is not None else new_event_id(now)
        act = ModerationAction(f"remove/{token}/{user_id}", "remove", caller.key_id, now, reason)
        as_of = self._ledger.as_of
        await self._updater.apply(await self._ledger.remove_user(board, user_id, act), as_of, at_once=True)
        # The ledger has already stored the action, so this only returns it.
        return await self._ledger.profiles.begin_action(board.pod_id, board.id, user_id, act)


async def _in_task(work: Coroutine[Any, Any, T]) -> T:
    """Await work that reads the ledger in a task, because the hot lane runs this without one."""
    return await asyncio.create_task(work)


def _check(board: Board, submission: Submission, now: int, closed: LaurelsError | None) -> Event:
    """Build an event from a submission. `closed`: why the board accepts no scores now.

    Raises if no board could take it. If this board does not take it now, the event's `refused` holds the reason.
    """
    score = exact_score(submission.score)
    operation = submission.operation
    if operation is not None and operation == board.rule.value:
        operation = None
    if submission.subscore is not None and board.subscore is None:
        raise Invalid(
            "subscore_not_available",
            "The board has no subscores. They are chosen when a board is created, with 'subscore'.",
            field="subscore",
            rule="only on boards with subscores",
        )
    if operation is not None and operation not in board.operations:
        allowed = ", ".join(dict.fromkeys((board.rule.value, *(each.value for each in board.operations))))
        raise Invalid(
            "operation_not_allowed",
            f"The board does not allow the operation {operation.value!r} on single scores: only {allowed}.",
            field="operation",
            rule=f"one of {allowed}",
        )
    return Event(
        board=board,
        event_id=submission.event_id or new_event_id(now),
        user_id=submission.user_id,
        score=score,
        at=now if submission.at is None else submission.at,
        stamped=submission.at is None or submission.stamped,
        received_at=now,
        metadata=canonical_metadata(submission.metadata),
        region=submission.region,
        subscore=submission.subscore or 0,
        operation=operation,
        refused=closed or why_refused(board, score, submission.at, now),
    )


def _answer(event: Event, written: WriteResult | LaurelsError, wanted: RanksWanted) -> Accepted | LaurelsError:
    if isinstance(written, LaurelsError):
        return written
    if written.record.outcome is not RecordOutcome.ACCEPTED and (refused := _why_not_recorded(event, written)):
        return refused
    # Use the board as recorded: periods may have been closed since the event was checked.
    event = written.event
    board = event.board
    changes = written.record.changes
    # Other writes of the batch may have asked for ranks.
    rank_changes = None if wanted is RanksWanted.NONE else written.rank_changes
    periods = board.periods_at(event.at)
    if len(changes) == len(periods) == len(board.windows) == 1:
        # As below: most boards have one window.
        counted: tuple[PeriodResult, ...] = (_counted(board, periods[0], changes[0], rank_changes),)
        late: tuple[str, ...] = ()
    else:
        taken = {period.window: period for period in periods}
        by_period = {change.row.period_id: change for change in changes}
        counted = tuple(
            [
                _counted(board, period, by_period[period.id], rank_changes)
                for window in board.windows
                if (period := taken.get(window.name)) is not None and period.id in by_period
            ]
        )
        late = tuple([window.name for window in board.windows if window.name not in taken])
    outcome = written.record.outcome
    if outcome is RecordOutcome.SPOOLED:
        state, late = RankState.SPOOLED, ()
    else:
        state = counted[0].rank_state if counted else RankState.PERIOD_OVER
    return Accepted(outcome, event.event_id, event.user_id, counted, late, state, event.received_at)


def _in_review(event: Event) -> Accepted:
    return Accepted(
        RecordOutcome.IN_REVIEW, event.event_id, event.user_id, (), (), RankState.IN_REVIEW, event.received_at
    )


def _why_not_recorded(event: Event, written: WriteResult) -> LaurelsError | None:
    """Return why an event was not recorded; None if it was, or repeats one that was."""
    if written.record.outcome is RecordOutcome.CONFLICT:
        return Conflict(
            "event_conflict",
            f"The eventId {event.event_id!r} (or Idempotency-Key) was already used with a different payload. "
            "The first event stays. Use a new eventId for a new score.",
            field="eventId",
        )
    # Use the board as recorded: periods may have been closed since the event was checked.
    event = written.event
    board = event.board
    if written.record.outcome is RecordOutcome.LATE:
        opens = opens_at(board, event.at)
        if opens is not None:
            return Conflict(
                "window_closed",
                f"Board {board.uuid!r} takes no scores of {to_datetime(event.at).isoformat()}: its windows are closed "
                f"then. The next one opens at {to_datetime(opens).isoformat()}.",
                field="timestamp",
            )
        return Conflict(
            "period_closed",
            f"Board {board.uuid!r} no longer accepts scores of {to_datetime(event.at).isoformat()}: all periods of "
            f"that time are closed. Late scores are accepted up to {board.grace_s} s after a reset.",
            field="timestamp",
        )
    return _why_not_of_user(event, written.record.outcome)


def _why_not_of_user(event: Event, outcome: RecordOutcome) -> LaurelsError | None:
    """Return why an event was not recorded, if that is because of its user."""
    if outcome is RecordOutcome.SPENT:
        limited = event.board.limited_period_at(event.at)
        named = "" if limited is None else f" {limited[1]} attempts of the period {limited[0].name!r}"
        return Conflict(
            "attempts_used",
            f"User {event.user_id!r} has used all{named}. The score does not count in any window.",
            field="userId",
        )
    if outcome is RecordOutcome.ERASED:
        return Conflict(
            "user_erased", "This user was erased. Scores from before the erasure are not accepted.", field="userId"
        )
    return None


def _counted(
    board: Board, period: Period, change: RowChange, rank_changes: Mapping[int, RankChange] | None
) -> PeriodResult:
    """Return a user's result in a period. `rank_changes` None: the write did not ask for ranks."""
    standing = change.row.standing
    before = change.before.standing if change.before else None
    rank_change = None if rank_changes is None else rank_changes.get(period.id)
    if change.row.hidden is not Hidden.NO:
        state = RankState.HIDDEN
    elif rank_changes is None and standing is not None:
        state = RankState.NOT_REQUESTED
    else:
        state = _rank_state(standing, rank_change)
    if state is RankState.CATCHING_UP and board.flush_ms is not None:
        state = RankState.BUFFERED
    return PeriodResult(
        period=period,
        score=standing.score if standing else None,
        previous_score=before.score if before else None,
        rank=rank_change.after if rank_change else None,
        previous_rank=rank_change.before if rank_change else None,
        rank_state=state,
        subscore=UNSET if board.subscore is None else standing.subscore if standing else None,
    )


def _rank_state(standing: Standing | None, rank_change: RankChange | None) -> RankState:
    if standing is None:
        return RankState.REMOVED
    if rank_change is None:
        return RankState.CATCHING_UP
    return RankState.RANKED if rank_change.after is not None else RankState.OUTSIDE_CAPACITY
