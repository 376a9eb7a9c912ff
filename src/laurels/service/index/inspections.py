"""Inspections of all rankings: verify, rebuild, and the daily check, which rebuilds what differs.

One inspection runs at a time on a server, because each reads everything.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import structlog

from laurels.core.board import Board
from laurels.core.instants import SECOND_US
from laurels.core.limits import DAY_US
from laurels.errors import LaurelsError, TooMany
from laurels.metrics import CHECK_DIFFERENCES
from laurels.ports import Clock, Index, Ledger
from laurels.service.boards.boards import Boards
from laurels.service.index.rebuild import Rebuilt, rebuild_board
from laurels.service.index.repairer import IndexRepairer
from laurels.service.index.updater import IndexUpdater
from laurels.service.index.verify import Checked, Difference, Fault, verify_board

log = structlog.get_logger()

OFF = "off"
MINUTE_US = 60 * SECOND_US
# The pauses of the daily check, as a multiple of its working time, at most MAX_PAUSE_S each.
PAUSE_RATIO = 3
MAX_PAUSE_S = 1.0
# The check compares the complete order of boards with up to this many keys, and of larger ones every user.
CHECKED_KEYS = 1_000_000
# How long `verify` and `rebuild` wait for the check to stop.
STOP_WAIT_S = 10.0
# How many boards and users with differences a report names.
REPORTED_BOARDS = 20
# Boards that could not be compared are tried again after this time, this many times.
AGAIN_AFTER_S = 60.0
ATTEMPTS = 3
REPORTED_USERS = 10
# Faults that a rebuild can't repair: a stored row differs from its events.
_OF_ROWS = {Fault.ROW_MISSING, Fault.ROW_EXTRA, Fault.ROW_DIFFERS, Fault.ROW_MISPLACED}


class _Faults:
    """The number of differences on a board, and the first users."""

    def __init__(self) -> None:
        self.count = self.of_rows = 0
        self._users: dict[str, None] = {}

    def add(self, differences: Sequence[Difference]) -> None:
        self.count += len(differences)
        self.of_rows += sum(each.fault in _OF_ROWS for each in differences)
        for each in differences[:REPORTED_USERS]:
            if len(self._users) < REPORTED_USERS:
                self._users[each.user_id] = None

    def report(self, board: Board) -> dict[str, Any]:
        return {"board": board.uuid, "differences": self.count, "ofRows": self.of_rows, "users": list(self._users)}


class _Report:
    """What the daily check has found so far."""

    def __init__(self) -> None:
        self.users = self.differences = self.rebuilt = 0
        # The reasons, by board.
        self.unchecked: dict[str, str] = {}
        self._found: list[dict[str, Any]] = []

    def add(self, board: Board, faults: _Faults) -> None:
        if faults.of_rows:
            log.error("rows_differ_from_events", board=board.uuid, rows=faults.of_rows)
        if faults.count:
            self.differences += faults.count
            self._found.append(faults.report(board))

    def shown(self) -> dict[str, Any]:
        shown: dict[str, Any] = {
            "users": self.users,
            "differences": self.differences,
            "rebuilt": self.rebuilt,
            "boards": self._found[:REPORTED_BOARDS],
        }
        if self.unchecked:
            shown["unchecked"] = dict(list(self.unchecked.items())[:REPORTED_BOARDS])
        return shown


class Inspections:
    def __init__(
        self,
        ledger: Ledger,
        index: Index,
        updater: IndexUpdater,
        repairer: IndexRepairer,
        boards: Boards,
        clock: Clock,
        check_at: str,
    ) -> None:
        self._ledger = ledger
        self._index = index
        self._updater = updater
        self._repairer = repairer
        self._boards = boards
        self._clock = clock
        self._minute = None if check_at == OFF else _minute_of(check_at)
        self._running = asyncio.Lock()
        self._stop_requested = False
        # Set while no daily check runs.
        self._check_ended = asyncio.Event()
        self._check_ended.set()

    async def verify(self) -> AsyncIterator[Checked]:
        """Verify every board. See verify.py.

        Raises TooMany if another inspection is running on this server.
        """
        await self._stop_check()
        async with self._inspection():
            for board in self._boards.all():
                async for checked in self._verify(board):
                    yield checked

    async def rebuild(self, boards: Sequence[Board]) -> AsyncIterator[Rebuilt]:
        """Rebuild every ranking of these boards. See rebuild.py.

        Raises TooMany if another inspection is running on this server.
        """
        await self._stop_check()
        async with self._inspection():
            for board in boards:
                async for rebuilt in rebuild_board(self._index, self._repairer, board):
                    yield rebuilt

    def last_due_us(self) -> int | None:
        """Return the last instant at which the daily check was due; None if it is off."""
        if self._minute is None:
            return None
        now = self._clock.now_us()
        today = now - now % DAY_US + self._minute * MINUTE_US
        return today if today <= now else today - DAY_US

    async def check(self) -> dict[str, Any]:
        """Compare every ranking with the events, rebuild the rankings of boards that differ, and return a report.

        Rows that differ from their events are only reported and logged: an operator must find out why.
        """
        report = _Report()
        self._stop_requested = False
        async with self._inspection():
            self._check_ended.clear()
            try:
                await self._check_boards(report)
            finally:
                self._check_ended.set()
        CHECK_DIFFERENCES.set(report.differences)
        return report.shown()

    async def _check_boards(self, report: "_Report") -> None:
        """Check all boards; those that can't be compared, for example because a period has just ended, again later."""
        boards = self._boards.all()
        for attempt in range(ATTEMPTS):
            if attempt:
                await self._pause()
            report.unchecked = {}
            for board in boards:
                faults = _Faults()
                try:
                    await self._check_board(board, faults, report)
                except TooMany:
                    raise
                except LaurelsError as error:
                    report.unchecked[board.uuid] = error.message
                report.add(board, faults)
            boards = [board for board in self._boards.all() if board.uuid in report.unchecked]
            if not boards:
                return

    async def _check_board(self, board: Board, faults: _Faults, report: "_Report") -> None:
        async for checked in _with_pauses(self._verify(board, CHECKED_KEYS)):
            report.users += checked.users
            faults.add(checked.differences)
            self._raise_if_stopped()
        if faults.count > faults.of_rows:
            log.error("index_differed", board=board.uuid, users=faults.count - faults.of_rows)
            report.rebuilt += await self._rebuild(board)

    async def _verify(self, board: Board, max_keys: int | None = None) -> AsyncIterator[Checked]:
        await self._updater.buffers.flush()
        async for checked in verify_board(self._ledger, self._index, board.id, self._boards.by_id, max_keys):
            yield checked

    async def _rebuild(self, board: Board) -> int:
        """Rebuild the rankings of a board, and return how many."""
        count = 0
        async for each in rebuild_board(self._index, self._repairer, self._boards.by_id(board.id)):
            count += each.done
        return count

    async def _stop_check(self) -> None:
        """Stop the daily check if it is running, because an operator started another inspection."""
        self._stop_requested = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_WAIT_S):
                await self._check_ended.wait()

    async def _pause(self) -> None:
        ends = time.monotonic() + AGAIN_AFTER_S
        while time.monotonic() < ends:
            self._raise_if_stopped()
            await asyncio.sleep(min(1.0, AGAIN_AFTER_S))

    def _raise_if_stopped(self) -> None:
        """Raise TooMany in the daily check if it must stop."""
        if self._stop_requested:
            raise TooMany("verify_running", "Somebody started a verification or a rebuild meanwhile.")

    @contextlib.asynccontextmanager
    async def _inspection(self) -> AsyncIterator[None]:
        if self._running.locked():
            raise TooMany(
                "verify_running", "A verification or a rebuild is already running. Try again when it is done."
            )
        async with self._running:
            self._updater.require_ready()
            yield


async def _with_pauses(chunks: AsyncIterator[Checked]) -> AsyncIterator[Checked]:
    """Yield chunks with pauses, so that other work has most of the processor and of the ledger."""
    start = time.monotonic()
    async for chunk in chunks:
        yield chunk
        await asyncio.sleep(min(MAX_PAUSE_S, PAUSE_RATIO * (time.monotonic() - start)))
        start = time.monotonic()


def _minute_of(time_of_day: str) -> int:
    """Return the minute of the day of HH:MM."""
    hours, _, minutes = time_of_day.partition(":")
    return 60 * int(hours) + int(minutes)
