"""Hands events to the ledger with their boards as they are now.

Which periods an event counts in follows from its board, so the ledger refuses a batch whose boards were changed
meanwhile: then they are read again, and it is tried again. Periods that are missing are made first.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from laurels.errors import Stale, Unavailable
from laurels.ports import Event, Ledger, Record
from laurels.service.boards import Boards

ATTEMPTS = 20


class Recorder:
    def __init__(self, ledger: Ledger, boards: Boards) -> None:
        self._ledger = ledger
        self._boards = boards

    async def record(self, events: Sequence[Event]) -> tuple[list[Event], list[Record]]:
        """The events as they were recorded, and what the ledger made of each."""
        for _ in range(ATTEMPTS):
            fresh = await self._with_fresh_boards(events)
            try:
                return fresh, await self._ledger.record(fresh)
            except Stale:
                await self._boards.reload()
        raise Unavailable("overloaded", "The board is being changed all the time. Try again.")

    async def _with_fresh_boards(self, events: Sequence[Event]) -> list[Event]:
        boards = {board_id: await self._boards.prepared(board_id) for board_id in {event.board.id for event in events}}
        return [
            event if event.board is boards[event.board.id] else replace(event, board=boards[event.board.id])
            for event in events
        ]
