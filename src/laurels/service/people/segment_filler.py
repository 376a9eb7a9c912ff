"""Segments that are added to a board later.

The change of the board (boards.py) adds the kinds to `segments` and to `filling`. From then on new users, and users
whose profile changes, are ranked in them, because the ledger refuses batches of servers that don't know of the change.
The job `segments` moves all other users of the open periods, in steps; then it ends the filling. Rankings of these
kinds can't be read before that.
"""

import asyncio
from typing import Any

import structlog
from msgspec.structs import replace

from laurels.core.board import Board
from laurels.errors import LaurelsError
from laurels.ports import BoardUpdate, Ledger
from laurels.service.boards.boards import Boards
from laurels.service.index.updater import IndexUpdater

log = structlog.get_logger()

USERS_PER_STEP = 500


class SegmentFiller:
    def __init__(self, ledger: Ledger, boards: Boards, updater: IndexUpdater) -> None:
        self._ledger = ledger
        self._boards = boards
        self._updater = updater

    async def is_due(self) -> bool:
        return any(board.filling for board in self._boards.all())

    async def fill(self) -> dict[str, Any]:
        """Move the users of boards that got segments.

        If this server dies meanwhile, `filling` stays, and another one goes on.
        """
        await self._boards.reload()
        boards = users = 0
        for board in self._boards.all():
            if board.filling:
                users += await self._fill(board)
                boards += 1
        return {"boards": boards, "users": users}

    async def _fill(self, board: Board) -> int:
        users = 0
        for period in board.open_periods:
            try:
                async for rows in self._ledger.rows(period.id):
                    for start in range(0, len(rows), USERS_PER_STEP):
                        some = [row.user_id for row in rows[start : start + USERS_PER_STEP]]
                        as_of = self._ledger.as_of
                        moved = await self._ledger.profiles.move_users(board.pod_id, some)
                        await self._updater.apply(moved, as_of, at_once=True)
                        users += len(some)
                        await asyncio.sleep(0)
            except LaurelsError as error:
                # The rows of a period that was frozen meanwhile are gone; its final ranks are what they are.
                if error.code != "changed_meanwhile":
                    raise
        filled = board.filling

        def end(fresh: Board) -> BoardUpdate:
            return BoardUpdate(replace(fresh, filling=tuple(kind for kind in fresh.filling if kind not in filled)))

        await self._boards.update(board, end)
        log.info("segments_added", board=board.uuid, segments=filled)
        return users
