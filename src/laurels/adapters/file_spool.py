"""What waits for the ledger, in files of a folder. One process at a time writes to a part of the folder, a lane, which
it holds a lock on; what a dead process left in its lane is taken over by the next that starts.

A lane has segments, `00000001.log` and so on, of records: 4 bytes of length, 4 of CRC-32, then the item. An append is
synced before it returns. What is cut off at the end of a segment was never acknowledged and is left out. How far the
lane has been worked off is kept in memory and in a file that may be behind: what comes twice is counted once.
"""

import asyncio
import contextlib
import os
import struct
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import TypeVar

import structlog

from laurels.adapters.file_lock import FileLock
from laurels.errors import Unavailable

log = structlog.get_logger()

T = TypeVar("T")

MAX_LANES = 1000
SEGMENT_BYTES = 16 * 1024 * 1024
MAX_BYTES = 8 * 1024 * 1024 * 1024
_HEAD = struct.Struct(">II")


class FileSpool:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # One thread: appends and drops follow each other.
        self._thread = ThreadPoolExecutor(1, "laurels-spool")
        self._lanes: list[_Lane] = []

    async def open(self, ledger_id: str) -> None:
        try:
            await self._run(self._open, self._folder / ledger_id)
        except OSError as error:
            raise Unavailable("spool_unavailable", f"{self._folder} can't be the spool: {error}") from error

    async def append(self, items: Sequence[bytes]) -> None:
        try:
            await self._run(self._lanes[0].append, items)
        except OSError as error:
            raise Unavailable("spool_unavailable", f"The spool can't be written: {error}") from error

    async def peek(self, limit: int) -> list[bytes]:
        lane = self._waiting_lane()
        return [] if lane is None else await self._run(lane.peek, limit)

    async def drop(self, count: int) -> None:
        lane = self._waiting_lane()
        assert lane is not None, "what is dropped was peeked at"
        await self._run(lane.drop, count)

    @property
    def waiting(self) -> int:
        return sum(lane.waiting for lane in self._lanes)

    async def close(self) -> None:
        await asyncio.to_thread(self._thread.shutdown)
        for lane in self._lanes:
            lane.close()
        self._lanes = []

    async def _run(self, work: Callable[..., T], *args: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *args)

    def _waiting_lane(self) -> "_Lane | None":
        """Those of dead processes are older than our own, which is the first."""
        return next((lane for lane in reversed(self._lanes) if lane.waiting), None)

    def _open(self, own: Path) -> None:
        """Take the first free lane for ourselves, and those beyond it that have something left and no owner."""
        own.mkdir(mode=0o700, parents=True, exist_ok=True)
        for parent in (own, self._folder, self._folder.absolute().parent):
            _sync_folder(parent)
        for number in range(MAX_LANES):
            folder = own / f"lane-{number:03}"
            if self._lanes and not folder.exists():
                return
            lane = _Lane.take(folder)
            if lane is None:
                continue
            if self._lanes and not lane.waiting:
                lane.close()
            else:
                self._lanes.append(lane)
        if not self._lanes:
            raise OSError(f"all {MAX_LANES} lanes are in use")


class _Lane:
    """A queue of items on the disk, for one process."""

    def __init__(self, folder: Path, lock: FileLock) -> None:
        self._folder = folder
        self._lock = lock
        self._done = folder / "done"
        # Each segment that is not worked off: its number, and where in it the next item to work off begins.
        self._segments: deque[_Segment] = deque()
        self._fd: int | None = None
        self._bytes = 0
        self.waiting = 0

    @classmethod
    def take(cls, folder: Path) -> "_Lane | None":
        """None if another process has it."""
        folder.mkdir(mode=0o700, exist_ok=True)
        _sync_folder(folder.parent)
        lock = FileLock(folder / "lock")
        try:
            lock.acquire()
        except Unavailable:
            return None
        lane = cls(folder, lock)
        lane._load()
        return lane

    def append(self, items: Sequence[bytes]) -> None:
        data = b"".join(_HEAD.pack(len(item), zlib.crc32(item)) + item for item in items)
        if self._bytes + len(data) > MAX_BYTES:
            raise OSError(f"it holds {self._bytes} bytes, as many as it may")
        segment = self._writable()
        assert self._fd is not None
        try:
            _write_all(self._fd, data)
            os.fdatasync(self._fd)
        except OSError:
            # What was refused must not come back, and half a record would hide those after it.
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, segment.size)
            # If that failed, too, the next one is safe in a segment of its own.
            os.close(self._fd)
            self._fd = None
            raise
        segment.size += len(data)
        self._bytes += len(data)
        self.waiting += len(items)

    def peek(self, limit: int) -> list[bytes]:
        items: list[bytes] = []
        for segment in self._segments:
            for item in _read(segment.path, segment.start, segment.size):
                items.append(item)
                if len(items) == limit:
                    return items
        return items

    def drop(self, count: int) -> None:
        self.waiting -= count
        while count:
            segment = self._segments[0]
            some = list(islice(_read(segment.path, segment.start, segment.size), count))
            segment.start += sum(_HEAD.size + len(item) for item in some)
            count -= len(some)
            # None left in it, or none that can be read: it is done with.
            if segment.start >= segment.size or not some:
                self._finish(self._segments.popleft())
        if self._segments:
            self._remember(self._segments[0])

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
        self._lock.release()

    # Inside

    def _load(self) -> None:
        number, start = self._read_done()
        for path in sorted(self._folder.glob("*.log")):
            segment = _Segment(path, 0, 0)
            if segment.number == number:
                segment.start = start
            sizes = [_HEAD.size + len(item) for item in _read(path, segment.start)]
            segment.size = segment.start + sum(sizes)
            if segment.number < number or not sizes:
                path.unlink()
                continue
            self._segments.append(segment)
            self._bytes += segment.size
            self.waiting += len(sizes)

    def _writable(self) -> "_Segment":
        if self._fd is not None and self._segments and self._segments[-1].size < SEGMENT_BYTES:
            return self._segments[-1]
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
        last = self._segments[-1].number if self._segments else self._read_done()[0]
        path = self._folder / f"{last + 1:08}.log"
        # A new one for each process: an old one may end in a record that was cut off.
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_TRUNC, 0o600)
        _sync_folder(self._folder)
        self._segments.append(_Segment(path, 0, 0))
        return self._segments[-1]

    def _finish(self, segment: "_Segment") -> None:
        if not self._segments and self._fd is not None:
            os.close(self._fd)
            self._fd = None
        self._remember(_Segment(segment.path, segment.size, segment.size))
        self._bytes -= segment.size
        segment.path.unlink()

    def _remember(self, segment: "_Segment") -> None:
        """Where to go on. Not synced: at worst some items come twice."""
        aside = self._done.with_suffix(".new")
        aside.write_text(f"{segment.number} {segment.start}\n", "ascii")
        aside.rename(self._done)

    def _read_done(self) -> tuple[int, int]:
        try:
            number, start = self._done.read_text("ascii").split()
        except (FileNotFoundError, ValueError):
            return 0, 0
        return int(number), int(start)


class _Segment:
    def __init__(self, path: Path, start: int, size: int) -> None:
        self.path = path
        self.start = start
        self.size = size

    @property
    def number(self) -> int:
        return int(self.path.stem)


def _read(path: Path, start: int, end: int | None = None) -> Iterator[bytes]:
    """The whole items of a segment from a place on. What lies beyond its end was never acknowledged."""
    with path.open("rb") as stream:
        stream.seek(start)
        while (end is None or stream.tell() < end) and len(head := stream.read(_HEAD.size)) == _HEAD.size:
            length, checksum = _HEAD.unpack(head)
            item = stream.read(length)
            if len(item) < length or zlib.crc32(item) != checksum:
                log.warning("spool_cut_off", path=str(path))
                return
            yield item


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
