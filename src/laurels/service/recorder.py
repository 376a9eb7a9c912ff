"""Hands events to the ledger with their boards as they are now.

Which periods an event counts in follows from its board, so the ledger refuses a batch whose boards were changed
meanwhile: then they are read again, and it is tried again. Periods that are missing are made first.
"""

from collections.abc import Sequence

import structlog
from msgspec.structs import replace

from laurels.core.board import Board
from laurels.errors import Conflict, Invalid, LaurelsError, Stale, Unavailable
from laurels.ports import Event, Ledger, Record
from laurels.service.boards import Boards

log = structlog.get_logger()

ATTEMPTS = 20


class Recorder:
    def __init__(self, ledger: Ledger, boards: Boards) -> None:
        self._ledger = ledger
        self._boards = boards

    async def record(self, events: Sequence[Event]) -> tuple[list[Event], list[Record | LaurelsError]]:
        """The events as they were recorded, and what became of each.

        Raises only where it is the same for all of them. A board that can't be prepared keeps nobody else's away.
        """
        for _ in range(ATTEMPTS):
            boards = {board_id: await self._prepare(board_id) for board_id in {event.board.id for event in events}}
            fresh = [_with_board(event, boards[event.board.id]) for event in events]
            problems = [_problem(event, boards[event.board.id]) for event in fresh]
            good = [event for event, problem in zip(fresh, problems, strict=True) if problem is None]
            try:
                records = iter(await self._ledger.record(good) if good else ())
            except Stale:
                await self._boards.reload(list(boards))
                continue
            return fresh, [next(records) if problem is None else problem for problem in problems]
        raise Unavailable("overloaded", "The board is being changed all the time. Try again.")

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
    return event if isinstance(board, LaurelsError) or event.board is board else replace(event, board=board)


def _problem(event: Event, board: Board | LaurelsError) -> LaurelsError | None:
    """Why an event can't be recorded on the board as it is now. What was acknowledged can always be."""
    if isinstance(board, LaurelsError):
        return board
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
