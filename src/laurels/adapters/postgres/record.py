"""Recording a batch of events in PostgreSQL: the parameters and the results of the function record_events."""

from collections.abc import Sequence
from typing import Any

import asyncpg

from laurels.adapters.postgres.pool import Connection
from laurels.adapters.postgres.scores import action_by_key, insert_action, read_standing
from laurels.adapters.postgres.sql import SQL
from laurels.adapters.sql.mapping import compare, digest_of, outcome_of, read_hidden, stale
from laurels.core.board import Board
from laurels.core.order import Order
from laurels.core.scores import Rule, exact_text
from laurels.core.windows import Period
from laurels.ports import Event, ModerationAction, RecordedEvent, RecordOutcome, Row, RowChange

# PostgreSQL converts whole numbers below this limit from double to numeric exactly.
PLAIN_LIMIT = 1e15


async def record(connection: Connection, events: Sequence[Event], history: str) -> list[RecordedEvent]:
    """See Ledger.record. One call of record_events, which folds the events in the database."""
    targets = _Targets()
    batch = _columns(events, targets)
    outcomes = [RecordOutcome.ACCEPTED] * len(events)
    changes: dict[tuple[int, str], RowChange] = {}
    resegmented: dict[str, list[Row]] = {}
    for result in await _fetch_stale(connection, events, SQL["record"], history, targets.types, batch):
        match result["outcome"]:
            case "changed":
                change = _change(result)
                changes[change.row.period_id, change.row.user_id] = change
            case "resegmented":
                resegmented.setdefault(result["user_id"], []).append(_row_after(result))
            case _:
                number = result["n"]
                outcomes[number - 1] = _outcome(events[number - 1], result)
    recorded = []
    for event, outcome, periods in zip(events, outcomes, targets.periods, strict=True):
        own: tuple[RowChange, ...] = ()
        if outcome is not RecordOutcome.ERASED:
            user_id = event.user_id
            own = tuple([changes[each, user_id] for each in periods if (each, user_id) in changes])
        recorded.append(RecordedEvent(outcome, own, _others(event, resegmented, own)))
    return recorded


async def hold_for_review(connection: Connection, event: Event, act: ModerationAction) -> RecordOutcome:
    """See Ledger.hold_for_review."""
    board = event.board
    await connection.execute(SQL["share_board"], board.id)
    if await connection.fetchval(SQL["revision_of"], board.id) != board.revision:
        raise stale(board)
    erased_at = await connection.fetchval(SQL["erased_at"], board.pod_id, digest_of(board.pod_id, event.user_id))
    if erased_at is not None and min(event.at, event.received_at) < erased_at:
        return RecordOutcome.ERASED
    found = await connection.fetchrow(SQL["event_with_act"], board.id, event.event_id)
    if found is None and not board.periods_at(event.at):
        return RecordOutcome.LATE
    if found is None and await is_spent(connection, event):
        return RecordOutcome.SPENT
    if found is None:
        act_id = await insert_action(connection, board.pod_id, board.id, event.user_id, act)
        is_new = act_id is not None
        if act_id is None:
            act_id = (await action_by_key(connection, board.pod_id, board.id, act)).id
        values = (
            event.user_id, event.score, event.at, event.stamped, event.received_at, event.metadata, event.subscore,
            event.operation,
        )  # fmt: skip
        inserted = await connection.fetchval(SQL["insert_void_event"], board.id, event.event_id, *values, act_id)
        if inserted is not None:
            await connection.execute(SQL["end_action"], act.at, act_id)
            await connection.execute(SQL["count_action_events"], 1, act_id)
            return RecordOutcome.IN_REVIEW
        if is_new:
            # Another transaction has just taken the id for an event that counts.
            await connection.execute(SQL["delete_action"], act_id)
        found = await connection.fetchrow(SQL["event_with_act"], board.id, event.event_id)
        assert found is not None, "the id is taken"
    return outcome_of(event, tuple(found))


async def is_spent(connection: Connection, event: Event) -> bool:
    """Return True if the user has used all attempts, after waiting for others who count them (spent_events_v1.sql)."""
    limited = None if event.acknowledged else event.board.limited_period_at(event.at)
    if limited is None:
        return False
    period, attempts = limited
    await connection.execute(SQL["lock_attempts"], event.user_id, event.board.id)
    used = await connection.fetchval(SQL["count_attempts"], event.board.id, event.user_id, period.start, period.end)
    return int(used) >= attempts


class _Targets:
    """The boards and periods in which the events of a batch count, each once, as the type event_target_v1."""

    def __init__(self) -> None:
        self.types: list[tuple[Any, ...]] = []
        # The ids of the periods, event by event.
        self.periods: list[list[int]] = []
        self._numbers: dict[tuple[Any, ...], int] = {}
        self._last: tuple[Board | None, tuple[Period, ...], list[int], int] = (None, (), [], 0)

    def add(self, event: Event) -> int:
        """Return the number of an event's target."""
        board, found = event.board, event.board.periods_at(event.at)
        last_board, last_found, ids, number = self._last
        if board is not last_board or found != last_found:
            ids = [period.id for period in found]
            limited = None if event.acknowledged else board.limited_period_at(event.at)
            key = (board.id, board.revision, limited is None, *ids)
            number = self._numbers.setdefault(key, len(self._numbers) + 1)
            if number > len(self.types):
                sign = 1.0 if board.order is Order.ASC else -1.0
                told = (number, board.id, board.revision, board.pod_id, board.rule.value, sign, board.is_segmented, ids)
                limits = (None,) * 3 if limited is None else (limited[1], limited[0].start, limited[0].end)
                sub_sign = 0 if board.subscore is None else 1 if board.subscore is Order.ASC else -1
                self.types.append((*told, *limits, sub_sign, board.keeps_last))
            # An acknowledged event is stored even if its user has no attempts left, so it has a target of its own.
            self._last = (None if event.acknowledged else board, found, ids, number)
        self.periods.append(ids)
        return number


def _columns(events: Sequence[Event], targets: _Targets) -> tuple[Any, ...]:
    """Return events as the type event_batch_v1."""
    return (
        list(range(1, len(events) + 1)),
        [targets.add(event) for event in events],
        [event.event_id for event in events],
        [event.user_id for event in events],
        [event.score for event in events],
        _or_none([_amount(event) for event in events]),
        [event.at for event in events],
        [event.stamped for event in events],
        [event.received_at for event in events],
        _or_none([event.metadata for event in events]),
        _or_none([event.region for event in events]),
        [
            event.refused is None and (event.acknowledged or bool(periods))
            for event, periods in zip(events, targets.periods, strict=True)
        ],
        [event.subscore for event in events] if any(event.subscore for event in events) else None,
    )


def _or_none(column: list[str | None]) -> list[str | None] | None:
    return column if any(each is not None for each in column) else None


def _amount(event: Event) -> str | None:
    score = event.score
    if event.board.rule is not Rule.INCREMENT or (score.is_integer() and -PLAIN_LIMIT < score < PLAIN_LIMIT):
        return None
    return exact_text(score)


def _outcome(event: Event, result: Any) -> RecordOutcome:
    match result["outcome"]:
        case "erased":
            return RecordOutcome.ERASED
        case "spent":
            return RecordOutcome.SPENT
        case "refused":
            return RecordOutcome.LATE
        case _:
            return compare(event, *result["earlier"])


def _change(result: Any) -> RowChange:
    row = _row_after(result)
    before_version = result["before_version"]
    if before_version == row.version:
        return RowChange(row, row)
    if before_version == 0:
        return RowChange(row, None)
    standing = read_standing(
        result["before_score"],
        result["before_at"],
        result["before_total"],
        result["before_nonzero"],
        result["before_subscore"],
        result["before_last"],
    )
    return RowChange(row, Row(row.period_id, row.user_id, standing, before_version))


def _row_after(result: Any) -> Row:
    segments = result["after_segments"]
    return Row(
        result["period_id"],
        result["user_id"],
        read_standing(
            result["after_score"],
            result["after_at"],
            result["after_total"],
            result["after_nonzero"],
            result["after_subscore"],
            result["after_last"],
        ),
        result["after_version"],
        () if segments is None else tuple(segments.split()),
        *read_hidden(result["after_hidden"]),
    )


def _others(event: Event, resegmented: dict[str, list[Row]], changes: Sequence[RowChange]) -> tuple[Row, ...]:
    if event.region is None or not resegmented:
        return ()
    own = {change.row.period_id for change in changes}
    return tuple(row for row in resegmented.get(event.user_id, ()) if row.period_id not in own)


async def _fetch_stale(connection: Connection, events: Sequence[Event], statement: str, *values: Any) -> list[Any]:
    try:
        return await connection.fetch(statement, *values)
    except asyncpg.PostgresError as error:
        if error.sqlstate in {"LRL02", "LRL03"}:
            raise stale(events[0].board) from None
        raise
