"""Hands events to the ledger with their boards as they are now.

Which periods an event counts in follows from its board, so the ledger refuses a batch whose boards were changed
meanwhile: then they are read again, and it is tried again. Periods that are missing are made first.
"""

from collections.abc import Sequence

import structlog
from msgspec import Struct
from msgspec.structs import replace

from laurels.core.board import Board
from laurels.errors import Conflict, Invalid, LaurelsError, Stale, Unavailable
from laurels.ports import AsOf, Event, Ledger, Record, Recorded
from laurels.service.boards import Boards

log = structlog.get_logger()

ATTEMPTS = 5
ATTEMPTS_ALONE = 20


class Recording(Struct, frozen=True):
    """The events as they were recorded, what became of each, and what was known of the ledger before."""

    events: Sequence[Event]
    results: list[Record | LaurelsError]
    as_of: AsOf


class Recorder:
    def __init__(self, ledger: Ledger, boards: Boards) -> None:
        self._ledger = ledger
        self._boards = boards

    async def record(self, events: Sequence[Event]) -> Recording:
        """Record a batch. Raises only where it is the same for all of them.

        A board that can't be prepared, or that is changed again and again, keeps nobody else's events away.
        """
        several = len({event.board.id for event in events}) > 1
        for _ in range(ATTEMPTS if several else ATTEMPTS_ALONE):
            if (recording := await self._try(events)) is not None:
                return recording
        if several:
            return await self._record_apart(events)
        raise Unavailable("overloaded", "The board is being changed all the time. Try again.")

    async def _try(self, events: Sequence[Event]) -> Recording | None:
        """Record a batch with the boards as they are; None: they were changed meanwhile, and read again."""
        as_of = self._ledger.as_of
        boards = {board_id: await self._prepare(board_id) for board_id in {event.board.id for event in events}}
        if as_of.history != self._boards.history or as_of.history != self._ledger.as_of.history:
            await self._boards.reload()
            return None
        fresh = [_with_board(event, boards[event.board.id]) for event in events]
        sent = [event for event in fresh if not isinstance(boards[event.board.id], LaurelsError)]
        try:
            records = iter(await self._ledger.record(sent, as_of.history) if sent else ())
        except Stale:
            await self._boards.reload(list(boards))
            return None
        results = [
            board if isinstance(board := boards[event.board.id], LaurelsError) else _result(event, next(records))
            for event in fresh
        ]
        return Recording(fresh, results, as_of)

    async def _record_apart(self, events: Sequence[Event]) -> Recording:
        """Each board by itself: one that does not come to rest fails alone."""
        as_of = self._ledger.as_of
        fresh = list(events)
        results: dict[int, Record | LaurelsError] = {}
        for board_id in dict.fromkeys(event.board.id for event in events):
            numbers = [number for number, event in enumerate(events) if event.board.id == board_id]
            try:
                recording = await self.record([events[number] for number in numbers])
            except LaurelsError as error:
                if not results and error.code == "ledger_unavailable":
                    # Nothing is stored yet: it is the same for all.
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
            # The ledger is away: so it is for all.
            raise
        except LaurelsError as error:
            return error
        except Exception:
            log.exception("board_not_prepared", board=board_id)
            return Unavailable("internal", "The periods of this board can't be made. The log says why.")


def _with_board(event: Event, board: Board | LaurelsError) -> Event:
    if isinstance(board, LaurelsError):
        return event
    refused = event.refused or _problem(event, board)
    if event.board is board and refused is event.refused:
        return event
    return replace(event, board=board, refused=refused)


def _result(event: Event, record: Record) -> Record | LaurelsError:
    """What is refused is nothing new, unless it was stored before: then it is a repetition of that."""
    if isinstance(event.refused, LaurelsError) and record.outcome in {Recorded.LATE, Recorded.ERASED}:
        return event.refused
    return record


def _problem(event: Event, board: Board) -> LaurelsError | None:
    """Why an event can't be recorded on the board as it is now. What was acknowledged can always be."""
    if event.acknowledged:
        return None
    if board.archived_at is not None:
        return Conflict("board_archived", f"Board {board.uuid!r} is archived and takes no scores.")
    if board.end_at is not None and event.at >= board.end_at:
        return Conflict("board_ended", f"Board {board.uuid!r} takes no scores any more.")
    if board.pruned_before is not None and event.at < board.pruned_before:
        return Invalid(
            "timestamp_out_of_range",
            "The board does not keep events of that time any more, and can't know whether this one came before.",
            field="timestamp",
            rule="within keepEventsDays",
        )
    return None
