"""One process's part of the spool: a queue of items in files of a folder that it holds a lock on.

A lane has segments, `00000001.log` and so on, of records: a magic word, 4 bytes of length, 4 of CRC-32, then the item.
An append is synced before it returns. What is cut off at the end of the last segment was never acknowledged and is left
out. A record that was damaged since is lost, and only that one: the next begins with the next magic word. How far the
lane has been worked off is kept in memory and in a file that may be behind: what comes twice is counted once.

Beside the segments, `aside.log` has the items that were put aside, in the same form. Every process may read it; the one
that holds the lane lets them wait again once there is a file `replay`.
"""

import contextlib
import os
import struct
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import structlog

from laurels.adapters.file_lock import FileLock
from laurels.errors import Unavailable

log = structlog.get_logger()

SEGMENT_BYTES = 16 * 1024 * 1024
MAX_BYTES = 8 * 1024 * 1024 * 1024
# More than an item can have: a length beyond it is damage.
MAX_ITEM_BYTES = 64 * 1024 * 1024
ASIDE = "aside.log"
REPLAY = "replay"
MAGIC = b"\xf5LR\x02"
_HEAD = struct.Struct(">4sII")
# Of records without a magic word, which older versions wrote.
_OLD_HEAD = struct.Struct(">II")


class Segment:
    """A file of a lane. `start`: where the next item to work off begins; `items`: how many there are from there on."""

    def __init__(self, path: Path, start: int = 0, size: int = 0, items: int = 0) -> None:
        self.path = path
        self.start = start
        self.size = size
        self.items = items

    @property
    def number(self) -> int:
        return int(self.path.stem)


class Lane:
    def __init__(self, folder: Path, lock: FileLock) -> None:
        self._folder = folder
        self._lock = lock
        self._done = folder / "done"
        self._aside = folder / ASIDE
        # Those that are not worked off.
        self._segments: deque[Segment] = deque()
        self._last_number = 0
        self._fd: int | None = None
        self._bytes = 0
        # Of each item of the last `peek`, its segment and where it ends.
        self._peeked: list[tuple[Segment, int]] = []
        self.waiting = 0
        self.put_aside = 0
        # Records that were kept and can't be read any more.
        self.damaged = 0

    @classmethod
    def take(cls, folder: Path) -> "Lane | None":
        """None if another process has it."""
        folder.mkdir(mode=0o700, exist_ok=True)
        sync_folder(folder.parent)
        lock = FileLock(folder / "lock")
        try:
            lock.acquire()
        except Unavailable:
            return None
        lane = cls(folder, lock)
        lane._load()
        return lane

    def append(self, items: Sequence[bytes]) -> None:
        data = _encode(items)
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
        segment.items += len(items)
        self._bytes += len(data)
        self.waiting += len(items)

    def peek(self, limit: int) -> list[bytes]:
        self._peeked = []
        items: list[bytes] = []
        for segment in list(self._segments):
            for item, end in _read(segment.path, segment.start, segment.size):
                if item is None and items:
                    # It is passed over when it is the next one.
                    return items
                if item is None:
                    self._pass_over(segment, end)
                    continue
                items.append(item)
                self._peeked.append((segment, end))
                if len(items) == limit:
                    return items
        return items

    def drop(self, count: int) -> None:
        """Forget the first `count` items of the last `peek`."""
        if not count:
            return
        self.waiting -= count
        dropped, self._peeked = self._peeked[:count], self._peeked[count:]
        for segment, end in dropped:
            segment.start = end
            segment.items -= 1
        self._finish_segments()
        if self._segments:
            self._remember(self._segments[0])

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
        self._lock.release()

    # What is put aside

    def set_aside(self, items: Sequence[bytes]) -> None:
        with self._aside.open("ab") as stream:
            stream.write(_encode(items))
            stream.flush()
            os.fdatasync(stream.fileno())
        sync_folder(self._folder)
        self.put_aside += len(items)

    @property
    def wants_replay(self) -> bool:
        return bool(self.put_aside) and (self._folder / REPLAY).exists()

    def replay_aside(self) -> None:
        """Let everything that was put aside wait again."""
        # Of two that are the same one is enough.
        items = list(dict.fromkeys(read_aside(self._folder)))
        if items:
            self.append(items)
        self._aside.unlink(missing_ok=True)
        (self._folder / REPLAY).unlink(missing_ok=True)
        self.put_aside = 0

    # Inside

    def _load(self) -> None:
        number, start = self._read_done()
        self._last_number = number
        for path in sorted(self._folder.glob("[0-9]*.log")):
            segment = Segment(path)
            self._last_number = max(self._last_number, segment.number)
            if segment.number == number:
                segment.start = start
            segment.size = segment.start
            for item, end in _read(path, segment.start):
                # What is damaged in the middle is told of when its turn comes. At the end it was never acknowledged.
                if item is not None:
                    segment.items += 1
                    segment.size = end
            if segment.number < number or not segment.items:
                path.unlink()
                continue
            self._segments.append(segment)
            self._bytes += segment.size
            self.waiting += segment.items
        self.put_aside = len(read_aside(self._folder))

    def _writable(self) -> Segment:
        if self._fd is not None and self._segments and self._segments[-1].size < SEGMENT_BYTES:
            return self._segments[-1]
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
        path = self._folder / f"{self._last_number + 1:08}.log"
        # A new one for each process: an old one may end in a record that was cut off.
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_TRUNC, 0o600)
        try:
            sync_folder(self._folder)
        except OSError:
            # Nothing is in it: it is made again the next time.
            os.close(fd)
            raise
        self._fd = fd
        self._last_number += 1
        self._segments.append(Segment(path))
        return self._segments[-1]

    def _pass_over(self, segment: Segment, end: int) -> None:
        """Leave out what is damaged. How much it was follows from what can still be read."""
        left = sum(item is not None for item, _ in _read(segment.path, end, segment.size))
        lost = max(1, segment.items - left)
        log.error("spool_damaged", path=str(segment.path), start=segment.start, end=end, lost=lost)
        self.damaged += lost
        self.waiting -= segment.items - left
        segment.start, segment.items = end, left
        self._finish_segments()

    def _finish_segments(self) -> None:
        while self._segments and self._segments[0].start >= self._segments[0].size:
            segment = self._segments.popleft()
            if not self._segments and self._fd is not None:
                os.close(self._fd)
                self._fd = None
            self._bytes -= segment.size
            self._remember(segment)
            with contextlib.suppress(OSError):
                segment.path.unlink()

    def _remember(self, segment: Segment) -> None:
        """Where to go on. Not synced, and it may fail: at worst some items come twice."""
        aside = self._done.with_suffix(".new")
        with contextlib.suppress(OSError):
            aside.write_text(f"{segment.number} {segment.start}\n", "ascii")
            aside.rename(self._done)

    def _read_done(self) -> tuple[int, int]:
        try:
            number, start = self._done.read_text("ascii").split()
        except (FileNotFoundError, ValueError):
            return 0, 0
        return int(number), int(start)


def read_aside(folder: Path) -> list[bytes]:
    """What was put aside in a lane, whoever holds it."""
    path = folder / ASIDE
    return [item for item, _ in _read(path, 0) if item is not None] if path.exists() else []


def _encode(items: Iterable[bytes]) -> bytes:
    return b"".join(_HEAD.pack(MAGIC, len(item), zlib.crc32(item)) + item for item in items)


def _read(path: Path, start: int, end: int | None = None) -> Iterator[tuple[bytes | None, int]]:
    """The items of a file from a place on, each with where it ends; None: something that can't be read."""
    with path.open("rb") as stream:
        size = os.fstat(stream.fileno()).st_size if end is None else end
        at = start
        while at < size:
            item, after = _read_item(stream, at, size)
            if item is None:
                after = _find_next(stream, at + 1, size)
            yield item, after
            at = after


def _read_item(stream: BinaryIO, at: int, size: int) -> tuple[bytes | None, int]:
    stream.seek(at)
    head = stream.read(_HEAD.size)
    if head[:4] == MAGIC and len(head) == _HEAD.size:
        _, length, checksum = _HEAD.unpack(head)
        begin = at + _HEAD.size
    elif head[:4] != MAGIC and len(head) >= _OLD_HEAD.size:
        length, checksum = _OLD_HEAD.unpack(head[: _OLD_HEAD.size])
        begin = at + _OLD_HEAD.size
    else:
        return None, at
    # An item is never empty: these are zeros that a power cut left.
    if not 0 < length <= MAX_ITEM_BYTES or begin + length > size:
        return None, at
    stream.seek(begin)
    item = stream.read(length)
    if len(item) < length or zlib.crc32(item) != checksum:
        return None, at
    return item, begin + length


def _find_next(stream: BinaryIO, at: int, size: int) -> int:
    """Where the next record begins that can be read; the end, if there is none."""
    stream.seek(at)
    data = stream.read(size - at)
    found = data.find(MAGIC)
    while found >= 0:
        if _read_item(stream, at + found, size)[0] is not None:
            return at + found
        found = data.find(MAGIC, found + 1)
    return size


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
