"""The spool in a folder on the local disk.

Every process writes to its own queue in the folder (spool_queue.py). A process that starts takes over the queues of
dead processes.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from laurels.adapters.spool_queue import REPLAY, SpoolQueue, read_aside, sync_folder
from laurels.errors import Unavailable

T = TypeVar("T")

MAX_QUEUES = 1000


class FileSpool:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # One thread, so that appends and drops run in order.
        self._thread = ThreadPoolExecutor(1, "laurels-spool")
        self._queues: list[SpoolQueue] = []
        self._own = folder
        # The queue that the last `peek` read.
        self._peeked: SpoolQueue | None = None

    async def open(self, ledger_id: str) -> None:
        try:
            await self._run(self._open, self._folder / ledger_id)
        except OSError as error:
            raise Unavailable(
                "spool_unavailable", f"The folder {self._folder} can't be used as the spool: {error}"
            ) from error

    async def append(self, items: Sequence[bytes]) -> None:
        await self._write(self._queues[0].append, items)

    async def peek(self, limit: int) -> list[bytes]:
        """Return waiting items of one queue, as `Spool.peek`.

        The queues of dead processes come first, because their items are older. This process's queue is the first in the
        list.
        """
        failure: Unavailable | None = None
        for queue in reversed(self._queues):
            self._peeked = queue
            try:
                if queue.waiting and (items := await self._write(queue.peek, limit)):
                    return items
            except Unavailable as error:
                # This queue can't be read; the other queues may be.
                failure = error
        if failure is not None:
            raise failure
        return []

    async def drop(self, count: int) -> None:
        assert self._peeked is not None, "drop needs a peek before it"
        await self._run(self._peeked.drop, count)

    async def set_aside(self, items: Sequence[bytes]) -> None:
        await self._write(self._queues[0].set_aside, items)

    async def aside(self) -> list[bytes]:
        return await self._write(lambda: [item for queue in self._all_queues() for item in read_aside(queue)])

    async def ask_replay(self) -> None:
        def ask() -> None:
            for queue in self._all_queues():
                if read_aside(queue):
                    (queue / REPLAY).touch()

        await self._write(ask)

    async def replay_aside(self) -> None:
        for queue in self._queues:
            if queue.wants_replay:
                await self._write(queue.replay_aside)

    @property
    def waiting(self) -> int:
        return sum(queue.waiting for queue in self._queues)

    @property
    def put_aside(self) -> int:
        return sum(queue.put_aside for queue in self._queues)

    @property
    def damaged(self) -> int:
        return sum(queue.damaged for queue in self._queues)

    async def close(self) -> None:
        await asyncio.to_thread(self._thread.shutdown)
        for queue in self._queues:
            queue.close()
        self._queues = []

    async def _write(self, work: Callable[..., T], *args: object) -> T:
        try:
            return await self._run(work, *args)
        except OSError as error:
            raise Unavailable("spool_unavailable", f"The spool can't be read or written: {error}") from error

    async def _run(self, work: Callable[..., T], *args: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *args)

    def _all_queues(self) -> list[Path]:
        return sorted(self._own.glob("queue-*"))

    def _open(self, own: Path) -> None:
        """Take the first free queue for this process, and take over later queues that have items but no owner."""
        self._own = own
        own.mkdir(mode=0o700, parents=True, exist_ok=True)
        for parent in (own, self._folder, self._folder.absolute().parent):
            sync_folder(parent)
        for number in range(MAX_QUEUES):
            folder = own / f"queue-{number:03}"
            if self._queues and not folder.exists():
                return
            queue = SpoolQueue.take(folder)
            if queue is None:
                continue
            if self._queues and not queue.waiting and not queue.put_aside:
                queue.close()
            else:
                self._queues.append(queue)
        if not self._queues:
            raise OSError(f"all {MAX_QUEUES} queues are in use")
