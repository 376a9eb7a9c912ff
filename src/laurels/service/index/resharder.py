"""The resharder: changes the number of parts of a board's rankings while they are in use.

1. The change of the board (boards.py) sets `reshard`. From then on every write reaches the rankings with the old and
   with the new number of parts, because the ledger refuses batches of servers that don't know of it.
2. The repairer finds the new rankings missing, and builds them from the ledger.
3. When all of them are complete, the board switches: reads use the new ones. The old ones still get every write, for
   the servers that have not heard of it.
4. Some seconds later writes leave the old ones out, and then they are dropped.
"""

from collections.abc import Callable
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
DROP_AFTER_US = 3 * SECOND_US


class ReshardProgress(Struct, frozen=True):
    """How many of the new parts are complete, and how many users the others have loaded so far."""

    ready: int
    parts: int
    loaded: int


def _due_at(change: Reshard) -> int:
    """Return when the next step of a change may be taken."""
    if change.switched_at is None:
        return change.began_at + HEARD_US
    return change.switched_at + RETIRE_US if change.retired_at is None else change.retired_at + DROP_AFTER_US


class Resharder:
    def __init__(self, index: Index, boards: Boards, repairer: IndexRepairer, clock: Clock) -> None:
        self._index = index
        self._boards = boards
        self._repairer = repairer
        self._clock = clock

    async def is_due(self) -> bool:
        """Return True if a change of shards may take its next step."""
        now = self._clock.now_us()
        return any(now >= _due_at(board.reshard) for board in self._boards.all() if board.reshard is not None)

    async def run(self) -> dict[str, Any]:
        """Switch the boards whose new rankings are complete, and drop old rankings."""
        await self._boards.reload()
        now = self._clock.now_us()
        switched = dropped = 0
        for board in self._boards.all():
            change = board.reshard
            if change is None or now < _due_at(change):
                continue
            if change.switched_at is not None:
                dropped += await self._retire(board, change)
            elif await self._is_complete(board):
                switched += await self._switch(board, change)
        return {"switched": switched, "dropped": dropped}

    async def progress(self, board: Board) -> ReshardProgress | None:
        """Return how far the new rankings of a board are; None if the index can't tell, or none are being built."""
        if board.reshard is None or board.reshard.switched_at is not None:
            return None
        try:
            states = await self._index.states(
                [board.other_ranking(period.id, board.reshard) for period in board.periods]
            )
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

    async def _switch(self, board: Board, change: Reshard) -> bool:
        known = {period.id for period in board.periods}

        def switch(fresh: Board) -> BoardUpdate:
            if fresh.reshard != change or fresh.shards != board.shards:
                return BoardUpdate(fresh)
            if not {period.id for period in fresh.periods} <= known:
                # The ranking of a period that was created meanwhile may not be built.
                return BoardUpdate(fresh)
            old = Reshard(fresh.shards, change.began_at, self._clock.now_us())
            return BoardUpdate(replace(fresh, shards=change.shards, reshard=old))

        switched = (await self._boards.update(board, switch)).shards == change.shards
        if switched:
            log.info("resharded", board=board.uuid, shards=change.shards)
        return switched

    async def _retire(self, board: Board, change: Reshard) -> bool:
        """Drop the old rankings in two steps; return True after the last one.

        A server that dies in between leaves the state of the board, so the next run goes on.
        """

        def set_to(change_now: Reshard | None) -> Callable[[Board], BoardUpdate]:
            return lambda fresh: BoardUpdate(fresh if fresh.reshard != change else replace(fresh, reshard=change_now))

        if change.retired_at is None:
            # Servers that have not heard of it still write to the old rankings.
            await self._boards.update(board, set_to(replace(change, retired_at=self._clock.now_us())))
            return False
        for period in board.periods:
            await self._index.drop(board.other_ranking(period.id, change))
        await self._boards.update(board, set_to(None))
        return True
