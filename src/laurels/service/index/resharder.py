"""The resharder: changes the number of parts of a board's rankings while they are in use.

1. The change of the board (boards.py) sets `reshard`. From then on every write reaches the rankings with the old and
   with the new number of parts, because the ledger refuses batches of servers that don't know of it.
2. The repairer finds the new rankings missing, and builds them from the ledger.
3. When all of them are complete, the board switches: reads use the new ones. The old ones still get every write, for
   the servers that have not heard of it.
4. Some seconds later the old ones are dropped.
"""

import asyncio
from typing import Any

import structlog
from msgspec import Struct
from msgspec.structs import replace

from laurels.core.board import Board, Reshard
from laurels.core.instants import SECOND_US
from laurels.errors import LaurelsError
from laurels.ports import BoardUpdate, Clock, Index, IndexHealth
from laurels.service.boards.boards import Boards
from laurels.service.index.repairer import IndexRepairer

log = structlog.get_logger()

# Every server has heard of a change of a board after this time, unless it can't reach the ledger.
HEARD_US = 5 * SECOND_US
# How long the old rankings get every write after the switch, and how long they stay after the last one.
RETIRE_US = 10 * SECOND_US
DROP_AFTER_S = 3.0


class ReshardProgress(Struct, frozen=True):
    """How many of the new parts are complete, and how many users the others have loaded so far."""

    ready: int
    parts: int
    loaded: int


class Resharder:
    def __init__(self, index: Index, boards: Boards, repairer: IndexRepairer, clock: Clock) -> None:
        self._index = index
        self._boards = boards
        self._repairer = repairer
        self._clock = clock

    async def is_due(self) -> bool:
        """Return True if a change of shards may take its next step."""
        now = self._clock.now_us()
        return any(
            now >= (change.began_at + HEARD_US if change.switched_at is None else change.switched_at + RETIRE_US)
            for board in self._boards.all()
            if (change := board.reshard) is not None
        )

    async def run(self) -> dict[str, Any]:
        """Switch the boards whose new rankings are complete, and drop old rankings."""
        await self._boards.reload()
        now = self._clock.now_us()
        switched = dropped = 0
        for board in self._boards.all():
            change = board.reshard
            if change is None:
                continue
            if change.switched_at is not None:
                if now >= change.switched_at + RETIRE_US:
                    await self._retire(board, change)
                    dropped += 1
            elif now >= change.began_at + HEARD_US and await self._is_complete(board):
                await self._switch(board, change)
                switched += 1
        return {"switched": switched, "dropped": dropped}

    async def progress(self, board: Board) -> ReshardProgress | None:
        """Return how far the new rankings of a board are; None if the index can't tell, or none are being built."""
        if board.reshard is None or board.reshard.switched_at is not None:
            return None
        try:
            states = await self._index.states([board.rankings(period.id)[1] for period in board.periods])
        except LaurelsError:
            return None
        every = [state for parts in states for state in parts]
        ready = sum(state.health is IndexHealth.READY for state in every)
        return ReshardProgress(ready, len(every), sum(state.loaded or 0 for state in every))

    async def _is_complete(self, board: Board) -> bool:
        """Return True if the new rankings lack nothing that was committed before this call."""
        progress = await self.progress(board)
        if progress is None or progress.ready < progress.parts:
            return False
        return await self._repairer.complete_others(board)

    async def _switch(self, board: Board, change: Reshard) -> None:
        def switch(fresh: Board) -> BoardUpdate:
            if fresh.reshard != change or fresh.shards != board.shards:
                return BoardUpdate(fresh)
            return BoardUpdate(
                replace(
                    fresh,
                    shards=change.shards,
                    reshard=Reshard(fresh.shards, change.began_at, self._clock.now_us()),
                )
            )

        # The build of a period that was created meanwhile may not be done.
        known = {period.id for period in board.periods}
        if any(period.id not in known for period in self._boards.by_id(board.id).periods):
            return
        await self._boards.update(board, switch)
        log.info("resharded", board=board.uuid, shards=change.shards)

    async def _retire(self, board: Board, change: Reshard) -> None:
        def forget(fresh: Board) -> BoardUpdate:
            return BoardUpdate(fresh if fresh.reshard != change else replace(fresh, reshard=None))

        old = [board.rankings(period.id)[1] for period in board.periods]
        await self._boards.update(board, forget)
        # Servers that have not heard of it still write to them. What is left after a crash is trimmed later.
        await asyncio.sleep(DROP_AFTER_S)
        for ranking in old:
            await self._index.drop(ranking)
