"""Scores on their way in: check, stamp, record, rank. HTTP, Kafka and the command line come through here alike."""

import math
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from laurels.core.board import Board, Status
from laurels.core.ids import new_event_id
from laurels.core.instants import SECOND_US, to_datetime
from laurels.core.limits import AHEAD_US, METADATA_BYTES, METADATA_DEPTH
from laurels.core.people import Hidden
from laurels.core.scores import RankState, Standing
from laurels.core.windows import Period
from laurels.errors import Conflict, Invalid, LaurelsError
from laurels.ports import Act, Change, Clock, Event, Ledger, Placement, Recorded, StoredAct
from laurels.service.access import Caller
from laurels.service.batcher import Batcher, Written
from laurels.service.follower import Follower

_CLOSED = {
    Status.SCHEDULED: ("board_not_started", "takes no scores yet"),
    Status.ENDED: ("board_ended", "takes no scores any more"),
    Status.ARCHIVED: ("board_archived", "is archived and takes no scores"),
}


class Submission(Struct, frozen=True):
    """A score as somebody sent it. `at` None: now. `event_id` None: Laurels makes one.

    `stamped`: an exported event whose time was given by a server.
    """

    user_id: str
    score: int | float
    at: int | None = None
    event_id: str | None = None
    metadata: dict[str, Any] | None = None
    stamped: bool = False
    region: str | None = None


class Counted(Struct, frozen=True):
    """What a user has in one period once the event was recorded."""

    period: Period
    score: float | None
    previous_score: float | None
    rank: int | None
    previous_rank: int | None
    rank_state: RankState


class Accepted(Struct, frozen=True):
    """What became of an event. `counted`: in the order of the board's windows. `late`: windows that did not take it.

    `score`, `rank` and so on are those of the first of the board's windows that took it.
    """

    outcome: Recorded
    event_id: str
    user_id: str
    counted: tuple[Counted, ...]
    late: tuple[str, ...]
    rank_state: RankState
    updated_at: int

    @property
    def score(self) -> float | None:
        return self.counted[0].score if self.counted else None

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
    def __init__(self, ledger: Ledger, follower: Follower, batcher: Batcher, clock: Clock) -> None:
        self._ledger = ledger
        self._follower = follower
        self._batcher = batcher
        self._clock = clock

    async def submit(self, board: Board, submission: Submission) -> Accepted:
        (answer,) = await self.submit_many(board, [submission])
        if isinstance(answer, LaurelsError):
            raise answer
        return answer

    def check(self, board: Board, submission: Submission) -> None:
        """Raise what would be wrong with it, as far as that can be known without the ledger."""
        refused = _check(board, submission, self._clock.now_us()).refused
        if refused is not None:
            raise refused

    async def submit_many(
        self, board: Board, submissions: Sequence[Submission | LaurelsError], *, may_spool: bool = True
    ) -> list[Accepted | LaurelsError]:
        """One answer each, in order. What was bad before it came here passes through as its error.

        `may_spool`: while the ledger is away they may be kept on the local disk, if this server does that.
        """
        self._follower.require_ready()
        now = self._clock.now_us()
        closed = _why_closed(board, now)
        if closed is not None and not any(isinstance(each, Submission) and each.event_id for each in submissions):
            raise closed
        answers: list[Accepted | LaurelsError | None] = []
        events: list[Event] = []
        for submission in submissions:
            if isinstance(submission, LaurelsError):
                answers.append(submission)
                continue
            try:
                event = _check(board, submission, now, closed)
            except LaurelsError as error:
                answers.append(error)
                continue
            if submission.event_id is None and isinstance(event.refused, LaurelsError):
                answers.append(event.refused)
            else:
                # Also one that is refused: it may be the repetition of one that is stored.
                events.append(event)
                answers.append(None)
        written = iter(await self._batcher.write(events, may_spool=may_spool) if events else ())
        checked = iter(events)
        given = [_answer(next(checked), next(written)) if each is None else each for each in answers]
        if closed is not None and all(
            answer is closed or each is not None for answer, each in zip(given, answers, strict=True)
        ):
            raise closed
        return given

    async def remove_user(
        self, caller: Caller, board: Board, user_id: str, idempotency_key: str | None, reason: str | None = None
    ) -> StoredAct:
        """Take a user off a board: what was scored so far no longer counts, what comes later starts anew."""
        self._follower.require_ready()
        now = self._clock.now_us()
        if board.status_at(now) is Status.ARCHIVED:
            raise Conflict("board_archived", "An archived board can't be changed.")
        token = idempotency_key if idempotency_key is not None else new_event_id(now)
        act = Act(f"remove/{token}/{user_id}", "remove", caller.key_id, now, reason)
        as_of = self._ledger.as_of
        await self._follower.apply(await self._ledger.remove_user(board, user_id, act), as_of, at_once=True)
        # It is there, and given as it is.
        return await self._ledger.people.begin_act(board.pod_id, board.id, user_id, act)


def _why_closed(board: Board, now: int) -> LaurelsError | None:
    """Why a board takes no scores at all now."""
    status = board.status_at(now)
    # The late events of an ended board are taken until its grace time is over.
    if status in _CLOSED and not (status is Status.ENDED and now < (board.end_at or 0) + board.grace_s * SECOND_US):
        code, what = _CLOSED[status]
        return Conflict(code, f"Board {board.uuid!r} {what}.")
    return None


def _check(board: Board, submission: Submission, now: int, closed: LaurelsError | None = None) -> Event:
    """Make an event of a submission. Raises if it could be nobody's; what this board does not take now is `refused`."""
    score = exact_score(submission.score)
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
        refused=closed or _why_closed(board, now) or _why_not(board, submission, score, now),
    )


def _why_not(board: Board, submission: Submission, score: float, now: int) -> LaurelsError | None:
    """Why a board does not take a score now."""
    if submission.at is None and board.status_at(now) is Status.ENDED:
        return Conflict("board_ended", f"Board {board.uuid!r} takes only late scores, with a timestamp before its end.")
    if (board.min_score is not None and score < board.min_score) or (
        board.max_score is not None and score > board.max_score
    ):
        low = "" if board.min_score is None else f"{board.min_score:g} <= "
        high = "" if board.max_score is None else f" <= {board.max_score:g}"
        return Invalid(
            "score_out_of_bounds",
            f"The board takes scores where {low}score{high}.",
            field="score",
            rule=f"{low}score{high}",
        )
    return None if submission.at is None else _why_not_then(board, submission.at, now)


def exact_score(score: float, field: str = "score") -> float:
    """The double that a number is, or an error if there is none."""
    try:
        double = float(score)
    except OverflowError:
        double = math.inf
    if not math.isfinite(double):
        raise Invalid("not_finite", "A score is a finite number that a double can hold.", field=field, rule="finite")
    if isinstance(score, int) and int(double) != score:
        raise Invalid(
            "not_exact",
            f"The integer {score} can't be held exactly: the nearest double is {int(double)}. "
            "Integers up to 2^53 always can.",
            field=field,
            rule="exact as a double",
        )
    # -0.0 is 0.0, in the ledger too.
    return double + 0.0


def _why_not_then(board: Board, at: int, now: int) -> LaurelsError | None:
    """Why a board takes no scores of that time now."""
    if at < 0 or at > now + AHEAD_US:
        return Invalid(
            "timestamp_out_of_range",
            "A timestamp is from 1970 on and at most five minutes ahead of the server's clock "
            f"({to_datetime(now).isoformat(timespec='seconds')}).",
            field="timestamp",
            rule="1970-01-01T00:00:00Z <= timestamp <= now + 5 min",
        )
    if (board.start_at is not None and at < board.start_at) or (board.end_at is not None and at >= board.end_at):
        return Invalid(
            "outside_board_time",
            "The timestamp is not within the board's startTime and endTime.",
            field="timestamp",
            rule="startTime <= timestamp < endTime",
        )
    return None


def canonical_metadata(metadata: dict[str, Any] | None) -> str | None:
    """Equal metadata give equal texts. Raises if it is over its limits."""
    if metadata is None:
        return None
    encoded = b"" if is_deeper(metadata, METADATA_DEPTH) else msgspec.json.encode(metadata, order="sorted")
    if not encoded or len(encoded) > METADATA_BYTES:
        raise Invalid(
            "metadata_too_large",
            f"metadata is at most {METADATA_BYTES} bytes of JSON, nested at most {METADATA_DEPTH} deep.",
            field="metadata",
            rule=f"<= {METADATA_BYTES} bytes, <= {METADATA_DEPTH} deep",
        )
    return encoded.decode()


def is_deeper(value: Any, levels: int) -> bool:
    """Looks no deeper than it has to, so that no nesting is too much for it."""
    if not isinstance(value, dict | list):
        return False
    children = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(is_deeper(each, levels - 1) for each in children)


def _answer(event: Event, written: Written | LaurelsError) -> Accepted | LaurelsError:
    if isinstance(written, LaurelsError):
        return written
    if written.record.outcome is Recorded.CONFLICT:
        return Conflict(
            "event_conflict",
            f"The eventId {event.event_id!r} (or the Idempotency-Key in its place) was used before with another "
            "payload. The first stays.",
            field="eventId",
        )
    # The board as it was recorded: periods may have been closed since the event was checked.
    event = written.event
    board = event.board
    if written.record.outcome is Recorded.LATE:
        return Conflict(
            "period_closed",
            f"No period of board {board.uuid!r} takes scores of {to_datetime(event.at).isoformat()} any more: they are "
            f"taken up to {board.grace_s} s after a reset.",
            field="timestamp",
        )
    if written.record.outcome is Recorded.ERASED:
        return Conflict(
            "user_erased", "This user was erased, and scores of an earlier time are not taken any more.", field="userId"
        )
    spooled = written.record.outcome is Recorded.SPOOLED
    taken = {period.window: period for period in board.periods_at(event.at)}
    changes = {change.row.period_id: change for change in written.record.changes}
    counted = [
        _counted(board, period, change, written.placements.get(period.id))
        for window in board.window_names
        if (period := taken.get(window)) is not None and (change := changes.get(period.id)) is not None
    ]
    state = RankState.SPOOLED if spooled else counted[0].rank_state if counted else RankState.PERIOD_OVER
    return Accepted(
        outcome=written.record.outcome,
        event_id=event.event_id,
        user_id=event.user_id,
        counted=tuple(counted),
        late=() if spooled else tuple(window for window in board.window_names if window not in taken),
        rank_state=state,
        updated_at=event.received_at,
    )


def _counted(board: Board, period: Period, change: Change, placement: Placement | None) -> Counted:
    standing = change.row.standing
    before = change.before.standing if change.before else None
    state = RankState.HIDDEN if change.row.hidden is not Hidden.NO else _rank_state(standing, placement)
    if state is RankState.CATCHING_UP and board.flush_ms is not None:
        state = RankState.BUFFERED
    return Counted(
        period=period,
        score=standing.score if standing else None,
        previous_score=before.score if before else None,
        rank=placement.after if placement else None,
        previous_rank=placement.before if placement else None,
        rank_state=state,
    )


def _rank_state(standing: Standing | None, placement: Placement | None) -> RankState:
    if standing is None:
        return RankState.REMOVED
    if placement is None:
        return RankState.CATCHING_UP
    return RankState.RANKED if placement.after is not None else RankState.OUTSIDE_CAPACITY
