"""The whole service as one value: what an entry point needs, opened and closed in the right order."""

import asyncio
from collections.abc import AsyncIterator

import structlog

from laurels.core.board import DEFAULT_POD
from laurels.errors import LaurelsError, TooMany
from laurels.ports import Clock, Index, Ledger
from laurels.service.access import Access
from laurels.service.batcher import Batcher
from laurels.service.boards import Boards
from laurels.service.follower import Follower, Progress
from laurels.service.reads import Reads
from laurels.service.submit import Submissions
from laurels.service.verify import Checked, verify_board

log = structlog.get_logger()


class Laurels:
    """`open`, then `load` (reads and writes answer 503 until it is done), then `close`, whatever happened."""

    def __init__(
        self,
        ledger: Ledger,
        index: Index,
        clock: Clock,
        *,
        admin_key: str,
        max_boards: int,
        max_batch: int,
        max_pending: int,
        write_timeout_ms: int,
    ) -> None:
        self.clock = clock
        self._ledger = ledger
        self._index = index
        self._follower = Follower(ledger, index)
        self._batcher = Batcher(
            ledger, self._follower, max_batch=max_batch, max_pending=max_pending, timeout_ms=write_timeout_ms
        )
        self.access = Access(ledger, clock, admin_key)
        self.boards = Boards(ledger, self._follower, clock, max_boards)
        self.submissions = Submissions(ledger, self._follower, self._batcher, clock)
        self.reads = Reads(ledger, index, self._follower, clock)
        self._verifying = asyncio.Lock()

    async def open(self) -> list[str]:
        """Open the ledger and what is kept of it in memory; gives the migrations that were applied."""
        migrations = await self._ledger.open()
        await self.access.open()
        await self.access.create_pod(DEFAULT_POD, "Default")
        await self.boards.open()
        self._batcher.start()
        return migrations

    async def load(self, progress: Progress = lambda _done, _total: None) -> None:
        """Fill the index from the ledger."""
        await self._follower.load_all(self.boards.all(), progress)

    async def close(self) -> None:
        """Finish what was taken, refuse what is new."""
        await self._batcher.close()
        await self._follower.close()
        await self._ledger.close()

    @property
    def is_loaded(self) -> bool:
        return self._follower.is_ready

    async def dependencies(self) -> dict[str, str]:
        """'ok', or why not, for everything that an answer needs."""
        try:
            await self._ledger.ping()
            ledger = "ok"
        except LaurelsError as error:
            ledger = error.message
        return {"ledger": ledger, "index": "ok" if self.is_loaded else "loading"}

    async def count_rows(self) -> int:
        """How many rows a check will look at."""
        return await self._ledger.count_rows()

    async def verify(self) -> AsyncIterator[Checked]:
        """Check every board, one run at a time. See service/verify.py."""
        if self._verifying.locked():
            raise TooMany("verify_running", "A check is already running. Try again when it is done.")
        async with self._verifying:
            self._follower.require_ready()
            for board in self.boards.all():
                async for checked in verify_board(self._ledger, self._index, board):
                    yield checked
