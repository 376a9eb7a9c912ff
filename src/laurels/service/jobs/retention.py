"""Retention of events and final ranks, as configured per board.

When a user's events are removed, the ledger keeps what they added up to, so scores stay and a verification still
passes. The id of an event is known as long as the event is kept; after that, a repetition is refused because its
timestamp is too old. The job's result reports how much was removed.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from laurels.core.board import Board
from laurels.core.limits import AHEAD_US, DAY_US
from laurels.ports import BoardUpdate, Clock, Ledger
from laurels.service.boards.boards import Boards

CHUNK = 2000
# How many changes without an event the ledger keeps. An index that is further behind is rebuilt.
KEEP_CHANGES = 1_000_000
FORGET_AT_ONCE = 50_000


class _Progress(Struct, frozen=True):
    """The last sequence number up to which the events of these boards were checked."""

    boards: list[int]
    seq: int


class Retention:
    def __init__(self, ledger: Ledger, boards: Boards, clock: Clock) -> None:
        self._ledger = ledger
        self._boards = boards
        self._clock = clock

    def is_wanted(self) -> bool:
        return any(
            board.keep_events_days is not None or board.keep_periods_days is not None for board in self._boards.all()
        )

    async def prune(self) -> dict[str, Any]:
        by_days: dict[int, list[Board]] = {}
        for board in self._boards.all():
            if board.keep_events_days is not None:
                by_days.setdefault(board.keep_events_days, []).append(board)
        events = 0
        for days, boards in by_days.items():
            removed = await self._prune_events(days, boards)
            events += removed
            for board in boards if removed else ():
                # Other scores may count now than those whose metadata was kept before.
                await self._ledger.forget_metadata(board.id)
        periods = places = 0
        for board in self._boards.all():
            if board.keep_periods_days is not None:
                before = self._clock.now_us() - board.keep_periods_days * DAY_US
                for period in await self._ledger.periods.prunable_periods(board.id, before):
                    places += await self._prune_finals(period.id)
                    periods += 1
        return {"events": events, "periods": periods, "finalRanks": places}

    async def forget_changes(self) -> int:
        forgotten = 0
        while count := await self._ledger.forget_changes(KEEP_CHANGES, FORGET_AT_ONCE):
            forgotten += count
            await asyncio.sleep(0)
        return forgotten

    async def _prune_events(self, days: int, boards: Sequence[Board]) -> int:
        """Remove old events of boards with the same retention time, and return how many.

        Scans all of these boards together, from where the last run stopped.
        """
        # By arrival time, because the timestamp of an event may be up to AHEAD_US later.
        before = self._clock.now_us() - days * DAY_US - AHEAD_US
        # From here on events of that time are refused, because duplicates could not be detected.
        boards = [
            await self._boards.update(board, lambda fresh: BoardUpdate(_pruned(fresh, before))) for board in boards
        ]
        if await self._ledger.periods.refreezing():
            # A refreeze needs the events. No other one can start, because the boards are now marked as pruned.
            return 0
        name, ids = f"pruned/{days}", sorted(board.id for board in boards)
        noted = await self._ledger.periods.prune_progress(name)
        progress = _Progress([], 0) if noted is None else msgspec.json.decode(noted, type=_Progress)
        # The set of boards changed: start over, because the events of a new board may be anywhere.
        seq = progress.seq if progress.boards == ids else 0
        removed = 0
        while True:
            count, last = await self._ledger.periods.prune_events(boards, before, seq, CHUNK)
            removed += count
            if last is None:
                break
            seq = last
            await asyncio.sleep(0)
        await self._ledger.periods.note_prune_progress(name, msgspec.json.encode(_Progress(ids, seq)).decode())
        return removed

    async def _prune_finals(self, period_id: int) -> int:
        removed = 0
        while count := await self._ledger.periods.prune_finals(period_id, CHUNK):
            removed += count
            if count < CHUNK:
                break
            await asyncio.sleep(0)
        return removed


def _pruned(board: Board, received_before: int) -> Board:
    # The timestamp of an event may be up to AHEAD_US later than its arrival.
    before = received_before + AHEAD_US
    return replace(board, pruned_before=max(before, board.pruned_before or 0))
