"""Boards that are deleted for good.

A deletion takes effect at once and on every server: the ledger no longer knows the board, and its UUID is free. What
the board had is removed afterwards, in steps, by the job `deletions`.
"""

import asyncio
import contextlib
from typing import Any

from laurels.core.board import Board
from laurels.core.instants import SECOND_US
from laurels.errors import Invalid, LaurelsError
from laurels.ports import Clock, Index, Ledger
from laurels.service.boards.boards import Boards

ROWS_PER_STEP = 2000
# Minimum interval between queries to the ledger for boards that another server deleted.
LOOK_EVERY_US = 60 * SECOND_US


class Deletions:
    def __init__(self, ledger: Ledger, index: Index, boards: Boards, clock: Clock) -> None:
        self._ledger = ledger
        self._index = index
        self._boards = boards
        self._clock = clock
        self._looked_at = 0

    async def delete(self, board: Board, confirmed: str) -> int:
        """Delete a board for good, and return when. `confirmed`: its UUID again, so that nobody does it by mistake."""
        if confirmed != board.uuid:
            raise Invalid(
                "not_confirmed",
                f"To delete the board {board.uuid!r} with all its scores, send its UUID as 'confirm'.",
                field="confirm",
                rule=f"= {board.uuid}",
            )
        deleted = await self._boards.delete(board)
        for period in deleted.periods:
            for ranking in deleted.rankings(period.id):
                # If the index can't be reached, the job `trim` drops them later.
                with contextlib.suppress(LaurelsError):
                    await self._index.drop(ranking)
        self._looked_at = 0
        return self._clock.now_us()

    async def is_due(self) -> bool:
        now = self._clock.now_us()
        if now < self._looked_at + LOOK_EVERY_US:
            return False
        self._looked_at = now
        return bool(await self._ledger.boards_to_purge())

    async def purge(self) -> dict[str, Any]:
        """Remove what deleted boards had."""
        boards = rows = 0
        for board_id in await self._ledger.boards_to_purge():
            while removed := await self._ledger.purge_board(board_id, ROWS_PER_STEP):
                rows += removed
                await asyncio.sleep(0)
            boards += 1
        return {"boards": boards, "rows": rows}
