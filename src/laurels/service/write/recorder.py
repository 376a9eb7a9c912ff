"""The recorder: records events in the ledger with the current version of their boards.

An event's board decides in which periods the event counts, so the ledger rejects a batch if one of its boards has
changed. The recorder then reloads the boards and retries. It creates missing periods first.
"""

from collections.abc import Sequence

import structlog
from msgspec import Struct
from msgspec.structs import replace

from laurels.core.board import Board
from laurels.errors import Conflict, Invalid, LaurelsError, Stale, Unavailable
from laurels.ports import AsOf, Event, Ledger, RecordedEvent, RecordOutcome
from laurels.service.boards.boards import Boards

log = structlog.get_logger()

ATTEMPTS = 5
ATTEMPTS_ALONE = 20


class Recording(Struct, frozen=True):
    """The events as recorded, the result of each, and the ledger's `as_of` from before they were recorded."""

    events: Sequence[Event]
    results: list[RecordedEvent | LaurelsError]
    as_of: AsOf


class Recorder:
    def __init__(self, ledger: Ledger, boards: Boards) -> None:
        self._ledger = ledger
        self._boards = boards

    @property
    def at_once(self) -> int:
        """Return how many batches the ledger can record at the same time."""
        return self._ledger.batches_at_once

    async def record(self, events: Sequence[Event]) -> Recording:
        """Record a batch and return the result of each event.

        Raises only if the error is the same for all events. A board that can't be prepared, or that keeps changing,
        does not block the events of other boards.
        """
        several = len({event.board.id for event in events}) > 1
        for _ in range(ATTEMPTS if several else ATTEMPTS_ALONE):
            if (recording := await self._try(events)) is not None:
                return recording
        if several:
            return await self._record_apart(events)
        raise Unavailable("overloaded", "The board kept changing while the score was being recorded. Try again.")

    async def record_all(self, events: Sequence[Event]) -> Recording:
        """Record events on several boards in one transaction: all of them or none.

        If not all results are records, nothing was stored. Raises if that is due to no single event.
        """
        for _ in range(ATTEMPTS_ALONE):
            if (recording := await self._try(events, atomic=True)) is not None:
                return recording
        raise Unavailable("overloaded", "The boards kept changing while the score was being recorded. Try again.")

    async def _try(self, events: Sequence[Event], *, atomic: bool = False) -> Recording | None:
        """Record a batch with the current boards; return None if they have changed, after reloading them.

        `atomic`: record all events or none.
        """
        as_of = self._ledger.as_of
        boards = {board_id: await self._prepare(board_id) for board_id in {event.board.id for event in events}}
        if as_of.history != self._boards.history or as_of.history != self._ledger.as_of.history:
            await self._boards.reload()
            return None
        failed = [board for board in boards.values() if isinstance(board, LaurelsError)]
        if atomic and failed:
            raise failed[0]
        fresh = [_with_board(event, boards[event.board.id]) for event in events]
        sent = [event for event in fresh if not isinstance(boards[event.board.id], LaurelsError)]
        try:
            record = self._ledger.record_all if atomic else self._ledger.record
            records = iter(await record(sent, as_of.history) if sent else ())
        except Stale:
            await self._boards.reload(list(boards))
            return None
        results = [
            board if isinstance(board := boards[event.board.id], LaurelsError) else _result(event, next(records))
            for event in fresh
        ]
        return Recording(fresh, results, as_of)

    async def _record_apart(self, events: Sequence[Event]) -> Recording:
        """Record the events of each board separately, so that a board that keeps changing fails alone."""
        as_of = self._ledger.as_of
        fresh = list(events)
        results: dict[int, RecordedEvent | LaurelsError] = {}
        for board_id in dict.fromkeys(event.board.id for event in events):
            numbers = [number for number, event in enumerate(events) if event.board.id == board_id]
            try:
                recording = await self.record([events[number] for number in numbers])
            except LaurelsError as error:
                if not results and error.code == "ledger_unavailable":
                    # Nothing is stored yet, so the whole batch can fail: the caller may spool or retry it.
                    raise
                results |= dict.fromkeys(numbers, error)
                continue
            for number, event, result in zip(numbers, recording.events, recording.results, strict=True):
                fresh[number], results[number] = event, result
        return Recording(fresh, [results[number] for number in range(len(events))], as_of)

    async def _prepare(self, board_id: int) -> Board | LaurelsError:
        try:
            return await self._boards.prepared(board_id)
        except Unavailable:
            # The ledger is unreachable for all boards.
            raise
        except LaurelsError as error:
            return error
        except Exception:
            log.exception("board_not_prepared", board=board_id)
            return Unavailable(
                "internal", "The periods of this board can't be created. See the server's log for the reason."
            )


def _with_board(event: Event, board: Board | LaurelsError) -> Event:
    if isinstance(board, LaurelsError):
        return event
    refused = event.refused or _problem(event, board)
    if event.board is board and refused is event.refused:
        return event
    return replace(event, board=board, refused=refused)


def _result(event: Event, record: RecordedEvent) -> RecordedEvent | LaurelsError:
    """Return the error of a refused event, unless its event id is already stored: then return the record."""
    if isinstance(event.refused, LaurelsError) and record.outcome in {RecordOutcome.LATE, RecordOutcome.ERASED}:
        return event.refused
    return record


def _problem(event: Event, board: Board) -> LaurelsError | None:
    """Return the reason why the current board can't take an event, or None.

    An acknowledged event can always be recorded.
    """
    if event.acknowledged:
        return None
    if board.archived_at is not None:
        return Conflict("board_archived", f"Board {board.uuid!r} is archived and accepts no scores.")
    if board.end_at is not None and event.at >= board.end_at:
        return Conflict("board_ended", f"Board {board.uuid!r} has ended and no longer accepts scores.")
    if board.pruned_before is not None and event.at < board.pruned_before:
        return Invalid(
            "timestamp_out_of_range",
            "The board no longer keeps events of that time, so it can't tell whether this one is a duplicate.",
            field="timestamp",
            rule="within keepEventsDays",
        )
    return None
