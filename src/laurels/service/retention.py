"""How long things are kept: events and final ranks, as each board says. What is removed is counted and told.

What the events of a user added up to is kept when they go, so scores stay, and a check still adds up. While an event is
kept, its id is known; after that a repetition with its timestamp is too old to be taken.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from laurels.core.board import Board
from laurels.core.limits import AHEAD_US, DAY_US
from laurels.ports import BoardChange, Clock, Ledger
from laurels.service.boards import Boards

CHUNK = 2000
# So many changes that came from no event are known, to those who follow: an index that lags behind more is built anew.
KEEP_CHANGES = 1_000_000
FORGET_AT_ONCE = 50_000


class _Progress(Struct, frozen=True):
    """Up to where the events of these boards were looked at."""

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
            events += await self._prune_events(days, boards)
        periods = places = 0
        for board in self._boards.all():
            if board.keep_periods_days is not None:
                before = self._clock.now_us() - board.keep_periods_days * DAY_US
                for period in await self._ledger.seasons.prunable_periods(board.id, before):
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
        """Boards that keep equally long are looked through together, from where the last run stopped."""
        # By the time of their coming; an event may lie a little ahead of it.
        before = self._clock.now_us() - days * DAY_US - AHEAD_US
        # From here on an event of that time is refused, for nobody could tell whether it came before.
        boards = [
            await self._boards.update(board, lambda fresh: BoardChange(_pruned(fresh, before))) for board in boards
        ]
        if await self._ledger.seasons.refreezing():
            # It needs them; and it does not begin any more now that the boards say what is pruned.
            return 0
        name, ids = f"pruned/{days}", sorted(board.id for board in boards)
        noted = await self._ledger.seasons.prune_progress(name)
        progress = _Progress([], 0) if noted is None else msgspec.json.decode(noted, type=_Progress)
        # Another board keeps this long now: its events may lie anywhere.
        seq = progress.seq if progress.boards == ids else 0
        removed = 0
        while True:
            count, last = await self._ledger.seasons.prune_events(boards, before, seq, CHUNK)
            removed += count
            if last is None:
                break
            seq = last
            await asyncio.sleep(0)
        await self._ledger.seasons.note_prune_progress(name, msgspec.json.encode(_Progress(ids, seq)).decode())
        return removed

    async def _prune_finals(self, period_id: int) -> int:
        removed = 0
        while count := await self._ledger.seasons.prune_finals(period_id, CHUNK):
            removed += count
            if count < CHUNK:
                break
            await asyncio.sleep(0)
        return removed


def _pruned(board: Board, received_before: int) -> Board:
    # What came then may be ahead of its time by as much as events may be.
    before = received_before + AHEAD_US
    return replace(board, pruned_before=max(before, board.pruned_before or 0))
