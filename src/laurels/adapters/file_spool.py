"""What waits for the ledger, in files of a folder. One process at a time writes to a part of the folder, a lane
(spool_lane.py); what a dead process left in its lane is taken over by the next that starts.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from laurels.adapters.spool_lane import REPLAY, Lane, read_aside, sync_folder
from laurels.errors import Unavailable

T = TypeVar("T")

MAX_LANES = 1000


class FileSpool:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # One thread: appends and drops follow each other.
        self._thread = ThreadPoolExecutor(1, "laurels-spool")
        self._lanes: list[Lane] = []
        self._own = folder
        # That the last `peek` was of.
        self._peeked: Lane | None = None

    async def open(self, ledger_id: str) -> None:
        try:
            await self._run(self._open, self._folder / ledger_id)
        except OSError as error:
            raise Unavailable("spool_unavailable", f"{self._folder} can't be the spool: {error}") from error

    async def append(self, items: Sequence[bytes]) -> None:
        await self._write(self._lanes[0].append, items)

    async def peek(self, limit: int) -> list[bytes]:
        """Those of dead processes first: they are older than our own lane, which is the first."""
        failure: Unavailable | None = None
        for lane in reversed(self._lanes):
            self._peeked = lane
            try:
                if lane.waiting and (items := await self._write(lane.peek, limit)):
                    return items
            except Unavailable as error:
                # The disk can't be read there: the others go on.
                failure = error
        if failure is not None:
            raise failure
        return []

    async def drop(self, count: int) -> None:
        assert self._peeked is not None, "what is dropped was peeked at"
        await self._run(self._peeked.drop, count)

    async def set_aside(self, items: Sequence[bytes]) -> None:
        await self._write(self._lanes[0].set_aside, items)

    async def aside(self) -> list[bytes]:
        return await self._write(lambda: [item for lane in self._all_lanes() for item in read_aside(lane)])

    async def ask_replay(self) -> None:
        def ask() -> None:
            for lane in self._all_lanes():
                if read_aside(lane):
                    (lane / REPLAY).touch()

        await self._write(ask)

    async def replay_aside(self) -> None:
        for lane in self._lanes:
            if lane.wants_replay:
                await self._write(lane.replay_aside)

    @property
    def waiting(self) -> int:
        return sum(lane.waiting for lane in self._lanes)

    @property
    def put_aside(self) -> int:
        return sum(lane.put_aside for lane in self._lanes)

    @property
    def damaged(self) -> int:
        return sum(lane.damaged for lane in self._lanes)

    async def close(self) -> None:
        await asyncio.to_thread(self._thread.shutdown)
        for lane in self._lanes:
            lane.close()
        self._lanes = []

    async def _write(self, work: Callable[..., T], *args: object) -> T:
        try:
            return await self._run(work, *args)
        except OSError as error:
            raise Unavailable("spool_unavailable", f"The spool can't be used: {error}") from error

    async def _run(self, work: Callable[..., T], *args: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *args)

    def _all_lanes(self) -> list[Path]:
        return sorted(self._own.glob("lane-*"))

    def _open(self, own: Path) -> None:
        """Take the first free lane for ourselves, and those beyond it that have something left and no owner."""
        self._own = own
        own.mkdir(mode=0o700, parents=True, exist_ok=True)
        for parent in (own, self._folder, self._folder.absolute().parent):
            sync_folder(parent)
        for number in range(MAX_LANES):
            folder = own / f"lane-{number:03}"
            if self._lanes and not folder.exists():
                return
            lane = Lane.take(folder)
            if lane is None:
                continue
            if self._lanes and not lane.waiting and not lane.put_aside:
                lane.close()
            else:
                self._lanes.append(lane)
        if not self._lanes:
            raise OSError(f"all {MAX_LANES} lanes are in use")
