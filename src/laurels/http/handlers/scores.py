"""Submission of one or many scores, and removal of a user from a board."""

import contextlib
import hashlib
from collections.abc import Sequence
from itertools import count, repeat
from typing import Any, Literal

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from laurels.core import limits
from laurels.core.board import Board, RankStyle
from laurels.core.ids import new_event_id
from laurels.core.instants import to_datetime, to_us
from laurels.core.scores import RankState
from laurels.errors import Conflict, Forbidden, Invalid, LaurelsError, NotFound, Unavailable
from laurels.http.answers import BatchAnswer, BoardsScoreAnswer, PeriodScore, ScoreAnswer, ScoreResult
from laurels.http.board_parts import read_range
from laurels.http.call import Answered, Call, Finish, HotPlan
from laurels.http.decode import decode_body, decode_plain
from laurels.http.people_answers import RemovalsAnswer, RemovedAnswer
from laurels.http.problems import problem_of
from laurels.http.queries import BatchQuery, BoardReasonQuery, BoardsScoreQuery, NoQuery, ScoreQuery
from laurels.http.requests import BoardsScore, RemovalsRequest, ScoreBatch, ScoreItem, ScoreUpdate
from laurels.ports import RanksWanted, RecordOutcome
from laurels.service.boards.boards import unknown_board
from laurels.service.boards.caller import Caller
from laurels.service.read.reads import Selection
from laurels.service.traffic import Rate
from laurels.service.write.submissions import Accepted, PeriodResult, Submission

# Accepted, but not in the ledger yet.
WAITS = 202
_STATUS: dict[RecordOutcome, Literal["accepted", "duplicate", "spooled", "in_review"]] = {
    RecordOutcome.ACCEPTED: "accepted",
    RecordOutcome.DUPLICATE: "duplicate",
    RecordOutcome.SPOOLED: "spooled",
    RecordOutcome.IN_REVIEW: "in_review",
}

_item = msgspec.json.Decoder(ScoreItem)
_items = msgspec.json.Decoder(list[ScoreItem])


class _Named(msgspec.Struct, rename="camel"):
    user_id: str


_named = msgspec.json.Decoder(_Named)


def hot_score(call: Call[ScoreQuery, ScoreUpdate]) -> HotPlan:
    """Answer in the hot lane from the batcher's callback."""
    del call
    return HotPlan(start=start_score)


def hot_scores(call: Call[BatchQuery, ScoreBatch]) -> HotPlan:
    """Answer in the hot lane with the handler, which awaits only the batcher."""
    del call
    return HotPlan()


async def put_score(call: Call[ScoreQuery, ScoreUpdate]) -> Answered[ScoreAnswer]:
    """Submit a score.

    The board's rule decides whether the score is added, compared with the best one, or set. It counts in every window
    with a period that contains its timestamp. The user's entry is created if there is none. The response is sent after
    the score is durable and ranked; see `rankState`. Boards of several shards return no rank unless `rank=true`. Send
    an `eventId` (or an `Idempotency-Key`) to make retries safe: the score is then counted once.

    Status 202: the ledger is unreachable, and the score waits on this server's disk.
    """
    player = call.caller.player
    submission = to_submission(call.user_id, call.body, call.idempotency_key)
    if player is not None:
        _admit_player(call, call.caller)
        event_id = submission.event_id or new_event_id(call.laurels.clock.now_us())
        submission = replace(submission, event_id=_event_id_of_player(player, event_id))
    wanted = _wanted(call, RanksWanted.BOTH)
    accepted = await call.laurels.submissions.submit(call.board, submission, wanted)
    return _score_answer(call.board, accepted if player is None else _as_player_sees(call.board, accepted, wanted))


def _wanted(call: Call[Any, Any], ranks: RanksWanted) -> RanksWanted:
    """Return the ranks of an answer: `ranks`, or none if neither the call nor the board wants them."""
    asked = call.query.rank
    return ranks if (call.board.ranks_on_write if asked is None else asked) else RanksWanted.NONE


def _event_id_of_player(player: str, event_id: str) -> str:
    """Return an event id that only this player can use, so that players can't take the ids of other events.

    An id that this function returned stays as it is, because a player may use it to retry.
    """
    prefix = f"player:{hashlib.sha256(player.encode()).hexdigest()[:16]}:"
    return event_id if event_id.startswith(prefix) else prefix + hashlib.sha256(event_id.encode()).hexdigest()[:32]


def _as_player_sees(board: Board, accepted: Accepted, wanted: RanksWanted) -> Accepted:
    """Return a result that does not tell players that they are hidden."""
    if accepted.rank_state is not RankState.HIDDEN:
        return accepted
    state = RankState.BUFFERED if board.flush_ms else RankState.CATCHING_UP
    if wanted is RanksWanted.NONE:
        state = RankState.NOT_REQUESTED
    counted = tuple(replace(each, rank_state=state) for each in accepted.counted)
    return replace(accepted, counted=counted, rank_state=state)


def _admit_player(call: Call[ScoreQuery, ScoreUpdate], caller: Caller) -> None:
    """Check a score that a player submits: the server sets its time and region, and the board limits the rate."""
    for field, value in (("timestamp", call.body.timestamp), ("region", call.body.region)):
        if value is not None:
            raise Forbidden("role_forbidden", f"Players can't set the {field} of a score.", field=field)
    per_minute = call.board.player_writes_per_minute
    call.laurels.rates.need(
        Rate.per_minute("player-scores", f"{call.board.id}/{caller.player}", per_minute),
        "too_many_scores",
        f"This board takes {per_minute} scores per minute from a player.",
    )


def start_score(call: Call[ScoreQuery, ScoreUpdate], finish: Finish) -> None:
    """Submit a score like `put_score`, and call `finish` with the answer or the error."""
    board = call.board
    submission = to_submission(call.user_id, call.body, call.idempotency_key)
    call.laurels.submissions.send(
        board,
        submission,
        lambda result: finish(result if isinstance(result, LaurelsError) else _score_answer(board, result)),
        _wanted(call, RanksWanted.BOTH),
    )


def status_of_score(accepted: Accepted) -> int:
    """Return the HTTP status for a score: 202 if it waits, on the disk or for a moderator."""
    return WAITS if accepted.outcome in {RecordOutcome.SPOOLED, RecordOutcome.IN_REVIEW} else 200


def _score_answer(board: Board, accepted: Accepted) -> Answered[ScoreAnswer]:
    answer = ScoreAnswer(
        uuid=board.uuid,
        user_id=accepted.user_id,
        score=accepted.score,
        rank=accepted.rank,
        previous_rank=accepted.previous_rank,
        previous_score=accepted.previous_score,
        updated_at=to_datetime(accepted.updated_at),
        event_id=accepted.event_id,
        duplicate=accepted.outcome is RecordOutcome.DUPLICATE,
        rank_state=accepted.rank_state,
        periods=[_period_score(counted) for counted in accepted.counted],
        late_windows=list(accepted.late),
        subscore=accepted.subscore,
    )
    return Answered(answer, status_of_score(accepted))


async def post_boards_score(call: Call[BoardsScoreQuery, BoardsScore]) -> BoardsScoreAnswer:
    """Submit a score to several boards of a pod: it counts on all of them or on none.

    One transaction stores it on all boards, with the same `eventId`. If a board does not take it, the call fails with
    the reason, and nothing is stored. The pod is that of the key; an admin key sets `podId`.
    """
    body, query = call.body, call.query
    pod_id = await call.laurels.access.pod_of(call.caller, query.pod_id)
    if len(set(body.boards)) < len(body.boards):
        raise Invalid("duplicate_board", "A board is listed twice.", field="boards", rule="each board once")
    boards = [await _board_of(call, pod_id, uuid) for uuid in body.boards]
    asked = any(board.ranks_on_write for board in boards) if query.rank is None else query.rank
    submission = to_submission(call.user_id, body, call.idempotency_key)
    accepted = await call.laurels.submissions.submit_to_boards(
        boards, submission, RanksWanted.BOTH if asked else RanksWanted.NONE
    )
    results = [_score_answer(board, each).answer for board, each in zip(boards, accepted, strict=True)]
    return BoardsScoreAnswer(user_id=call.user_id, event_id=accepted[0].event_id, results=results)


async def _board_of(call: Call[Any, Any], pod_id: str, uuid: str) -> Board:
    """Return a board of a pod, also if another server has just created it."""
    for is_last in (False, True):
        with contextlib.suppress(NotFound):
            board = call.laurels.boards.to_write(call.caller, uuid)
            if board.pod_id == pod_id:
                return board
        if not is_last:
            await call.laurels.access.look_again()
            await call.laurels.templates.create_for_score(call.caller, uuid)
    raise unknown_board(uuid, "boards")


async def post_scores(call: Call[BatchQuery, ScoreBatch]) -> Answered[BatchAnswer]:
    """Submit many scores.

    Returns one result per item, in order. An invalid item is refused and does not affect the others. With an
    `Idempotency-Key`, an item without an `eventId` gets one made of the key and the item's position in the list.

    Status 503: send the same batch again. This is safe because nothing was stored, or because every item has an
    `eventId`. Otherwise the result of each item tells whether to retry it, and with which `eventId`.
    """
    board = call.board
    key = call.idempotency_key
    items = _read_items(call.body.scores, key)
    repeatable = all(isinstance(item, LaurelsError) or item.event_id for item in items)
    if not repeatable:
        now = call.laurels.clock.now_us()
        items = [item if isinstance(item, LaurelsError) else _with_event_id(item, now) for item in items]
    previous = call.query.previous
    wanted = _wanted(call, RanksWanted.BOTH if previous else RanksWanted.AFTER)
    answers = await call.laurels.submissions.submit_many(board, items, wanted=wanted)
    failures = [answer for answer in answers if isinstance(answer, LaurelsError) and answer.retryable]
    if failures and (repeatable or not any(map(_may_be_stored, answers))):
        raise failures[0]
    results = [
        _refusal(raw, item, answer) if isinstance(answer, LaurelsError) else _result(answer, previous=previous)
        for raw, item, answer in zip(call.body.scores, items, answers, strict=True)
    ]
    spooled = any(result.status == "spooled" for result in results)
    return Answered(BatchAnswer(uuid=board.uuid, results=results), WAITS if spooled else 200)


async def delete_user(call: Call[BoardReasonQuery, None]) -> RemovedAnswer:
    """Remove a user from a board.

    The user's events so far no longer count and are shown in the history as voided. Later scores count from scratch.
    Events that were counted before are not counted again if they are repeated.
    """
    board = call.board
    act = await call.laurels.submissions.remove_user(
        call.caller, board, call.user_id, call.idempotency_key, call.query.reason
    )
    call.note_change(None, {"actId": str(act.id), "events": act.events})
    return RemovedAnswer(uuid=board.uuid, user_id=call.user_id, removed=True, act_id=str(act.id))


async def post_removals(call: Call[NoQuery, RemovalsRequest]) -> RemovalsAnswer:
    """Remove many users from a board, like `DELETE` of each: by id, or all whose scores are in a range.

    A call removes at most 1,000 users. If more are in the range, `more` is true: repeat the call. Each removal is an
    act of its own, which can be restored.
    """
    board, body = call.board, call.body
    user_ids, more = list(dict.fromkeys(body.user_ids)), False
    in_range = (body.min_score, body.max_score) != (None, None)
    if bool(user_ids) == in_range:
        raise Invalid(
            "nothing_chosen",
            "Send either userIds, or minScore, maxScore or both.",
            field="userIds",
            rule="userIds or a range of scores",
        )
    if in_range:
        scores = read_range(board, body.min_score, body.max_score)
        selection = Selection(body.window, style=RankStyle.ORDINAL)
        found = await call.laurels.score_reads.in_range(
            board.uncapped(), selection, scores, 0, limits.REMOVED_USERS, reverse=False
        )
        if found.period is not None and found.period.is_final:
            raise Conflict("period_closed", "The period is final: its scores can't be removed.", field="window")
        user_ids, more = [entry.user_id for entry in found.value.entries], found.value.count > limits.REMOVED_USERS
    key = call.idempotency_key
    missing = []
    for user_id in user_ids:
        try:
            await call.laurels.submissions.remove_user(call.caller, board, user_id, key, body.reason)
        except NotFound:
            missing.append(user_id)
    removed = len(user_ids) - len(missing)
    call.note_change(None, {"removed": removed})
    # While the ranking lags, it may still show users who were removed: then a repetition would not help.
    return RemovalsAnswer(uuid=board.uuid, removed=removed, missing=missing, more=more and removed > 0)


def to_submission(user_id: str, update: ScoreUpdate, event_id: str | None) -> Submission:
    return Submission(
        user_id=user_id,
        score=update.score,
        at=None if update.timestamp is None else to_us(update.timestamp),
        event_id=update.event_id or event_id,
        metadata=update.metadata,
        region=update.region,
        subscore=update.subscore,
        operation=update.operation,
    )


def _read_items(raws: Sequence[msgspec.Raw], key: str | None) -> list[Submission | LaurelsError]:
    """Decode the items of a batch. `key`: the Idempotency-Key of the call."""
    # All at once takes a quarter of the time, but works only if every item is plain and valid.
    items = decode_plain(b"[%b]" % b",".join(raws), _items) or map(_read_item, raws)
    ids = repeat(None) if key is None else (f"{key}#{number}" for number in count())
    return [
        item if isinstance(item, LaurelsError) else _to_submission(item, event_id)
        for item, event_id in zip(items, ids, strict=False)
    ]


def _read_item(raw: msgspec.Raw) -> ScoreItem | LaurelsError:
    try:
        return decode_body(bytes(raw), _item, "item")
    except LaurelsError as error:
        return error


def _to_submission(item: ScoreItem, event_id: str | None) -> Submission:
    submission = to_submission(item.user_id, item, event_id)
    return replace(submission, stamped=True) if item.stamped else submission


def _with_event_id(item: Submission, now: int) -> Submission:
    return item if item.event_id else replace(item, event_id=new_event_id(now))


def _may_be_stored(answer: Accepted | LaurelsError) -> bool:
    return not isinstance(answer, LaurelsError) or (isinstance(answer, Unavailable) and answer.outcome_unknown)


def _refusal(raw: msgspec.Raw, item: Submission | LaurelsError, error: LaurelsError) -> ScoreResult:
    problem = problem_of(error)
    if isinstance(item, LaurelsError):
        return ScoreResult(user_id=_guess_user(raw), status="refused", problem=problem)
    return ScoreResult(user_id=item.user_id, status="refused", event_id=item.event_id, problem=problem)


def _result(accepted: Accepted, *, previous: bool) -> ScoreResult:
    return ScoreResult(
        user_id=accepted.user_id,
        status=_STATUS[accepted.outcome],
        score=accepted.score,
        rank=accepted.rank,
        previous_rank=accepted.previous_rank if previous else UNSET,
        previous_score=accepted.previous_score if previous else UNSET,
        event_id=accepted.event_id,
        rank_state=accepted.rank_state,
        late_windows=list(accepted.late),
        subscore=accepted.subscore,
    )


def _period_score(counted: PeriodResult) -> PeriodScore:
    return PeriodScore(
        window=counted.period.window,
        period=counted.period.name,
        score=counted.score,
        rank=counted.rank,
        previous_rank=counted.previous_rank,
        previous_score=counted.previous_score,
        rank_state=counted.rank_state,
        subscore=counted.subscore,
    )


def _guess_user(raw: msgspec.Raw) -> str | None:
    """Return the user id of an invalid item, if it has one, so that the sender can identify the item."""
    try:
        return _named.decode(bytes(raw)).user_id
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
