"""One process's queue of the spool: a queue of items in files of a folder that the process has locked.

The log files of a queue are `00000001.log` and so on. Each item is stored after a header of three 4-byte fields: a
magic word, the length, and the CRC-32 of the item. An append is synced before it returns. An incomplete item at the end
of a log file was never acknowledged and is ignored. A damaged item is lost, but only that one, because the next item
starts with the magic word. The offset up to which items were dropped is kept in memory and in the file `done`, which
may be behind: an item that is replayed twice is counted once.

The file `aside.log` holds the items that were set aside, in the same format. Every process may read it. The process
that holds the queue moves them back to the queue when a file `replay` exists.
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

FILE_BYTES = 16 * 1024 * 1024
MAX_BYTES = 8 * 1024 * 1024 * 1024
# More than any item has, so a larger length means damage.
MAX_ITEM_BYTES = 64 * 1024 * 1024
ASIDE = "aside.log"
REPLAY = "replay"
MAGIC = b"\xf5LR\x02"
_HEAD = struct.Struct(">4sII")
# The header that older versions wrote, without a magic word.
_OLD_HEAD = struct.Struct(">II")


class SpoolFile:
    """One log file of a queue.

    `start` is the offset of the first item that was not dropped; `items` is the number of items from there on.
    """

    def __init__(self, path: Path, start: int = 0, size: int = 0, items: int = 0) -> None:
        self.path = path
        self.start = start
        self.size = size
        self.items = items

    @property
    def number(self) -> int:
        return int(self.path.stem)


class SpoolQueue:
    def __init__(self, folder: Path, lock: FileLock) -> None:
        self._folder = folder
        self._lock = lock
        self._done = folder / "done"
        self._aside = folder / ASIDE
        # Segments that still have items.
        self._files: deque[SpoolFile] = deque()
        self._last_number = 0
        self._fd: int | None = None
        self._bytes = 0
        # The file and the end offset of each item of the last `peek`.
        self._peeked: list[tuple[SpoolFile, int]] = []
        self.waiting = 0
        self.put_aside = 0
        # Number of acknowledged items that can no longer be read.
        self.damaged = 0

    @classmethod
    def take(cls, folder: Path) -> "SpoolQueue | None":
        """Lock and load a queue; return None if another process holds it."""
        folder.mkdir(mode=0o700, exist_ok=True)
        sync_folder(folder.parent)
        lock = FileLock(folder / "lock")
        try:
            lock.acquire()
        except Unavailable:
            return None
        queue = cls(folder, lock)
        queue._load()
        return queue

    def append(self, items: Sequence[bytes]) -> None:
        data = _encode(items)
        if self._bytes + len(data) > MAX_BYTES:
            raise OSError(f"it is full ({self._bytes} bytes)")
        file = self._writable()
        assert self._fd is not None
        try:
            _write_all(self._fd, data)
            os.fdatasync(self._fd)
        except OSError:
            # Refused items must not be replayed, and an incomplete item could hide those after it.
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, file.size)
            # If the truncation fails, too, the next append is safe in a new file.
            os.close(self._fd)
            self._fd = None
            raise
        file.size += len(data)
        file.items += len(items)
        self._bytes += len(data)
        self.waiting += len(items)

    def peek(self, limit: int) -> list[bytes]:
        self._peeked = []
        items: list[bytes] = []
        for file in list(self._files):
            for item, end in _read(file.path, file.start, file.size):
                if item is None and items:
                    # The next `peek` skips the damaged item.
                    return items
                if item is None:
                    self._pass_over(file, end)
                    continue
                items.append(item)
                self._peeked.append((file, end))
                if len(items) == limit:
                    return items
        return items

    def drop(self, count: int) -> None:
        """Remove the first `count` items of the last `peek`."""
        if not count:
            return
        self.waiting -= count
        dropped, self._peeked = self._peeked[:count], self._peeked[count:]
        for file, end in dropped:
            file.start = end
            file.items -= 1
        self._finish_segments()
        if self._files:
            self._remember(self._files[0])

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
        self._lock.release()

    # Items that were set aside

    def set_aside(self, items: Sequence[bytes]) -> None:
        with open(self._aside, "ab", opener=_open_private) as stream:
            stream.write(_encode(items))
            stream.flush()
            os.fdatasync(stream.fileno())
        sync_folder(self._folder)
        self.put_aside += len(items)

    @property
    def wants_replay(self) -> bool:
        return bool(self.put_aside) and (self._folder / REPLAY).exists()

    def replay_aside(self) -> None:
        """Move all items that were set aside back to the queue."""
        # An item may have been set aside twice.
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
            file = SpoolFile(path)
            self._last_number = max(self._last_number, file.number)
            if file.number == number:
                file.start = start
            file.size = file.start
            for item, end in _read(path, file.start):
                # Damage in the middle is reported by `peek`. Damage at the end was never acknowledged.
                if item is not None:
                    file.items += 1
                    file.size = end
            if file.number < number or not file.items:
                path.unlink()
                continue
            self._files.append(file)
            self._bytes += file.size
            self.waiting += file.items
        self.put_aside = len(read_aside(self._folder))

    def _writable(self) -> SpoolFile:
        if self._fd is not None and self._files and self._files[-1].size < FILE_BYTES:
            return self._files[-1]
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
        path = self._folder / f"{self._last_number + 1:08}.log"
        # Each process starts a new file, because an old one may end in an incomplete item.
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_TRUNC, 0o600)
        try:
            sync_folder(self._folder)
        except OSError:
            # The file is empty; the next append creates it again.
            os.close(fd)
            raise
        self._fd = fd
        self._last_number += 1
        self._files.append(SpoolFile(path))
        return self._files[-1]

    def _pass_over(self, file: SpoolFile, end: int) -> None:
        """Skip damaged bytes up to `end`, and count the items that were lost: those that can no longer be read."""
        left = sum(item is not None for item, _ in _read(file.path, end, file.size))
        lost = max(1, file.items - left)
        log.error("spool_damaged", path=str(file.path), start=file.start, end=end, lost=lost)
        self.damaged += lost
        self.waiting -= file.items - left
        file.start, file.items = end, left
        self._finish_segments()

    def _finish_segments(self) -> None:
        while self._files and self._files[0].start >= self._files[0].size:
            file = self._files.popleft()
            if not self._files and self._fd is not None:
                os.close(self._fd)
                self._fd = None
            self._bytes -= file.size
            self._remember(file)
            with contextlib.suppress(OSError):
                file.path.unlink()

    def _remember(self, file: SpoolFile) -> None:
        """Store the offset to continue from.

        Not synced, and errors are ignored, because at worst some items are replayed twice.
        """
        aside = self._done.with_suffix(".new")
        with contextlib.suppress(OSError):
            aside.write_text(f"{file.number} {file.start}\n", "ascii")
            aside.rename(self._done)

    def _read_done(self) -> tuple[int, int]:
        try:
            number, start = self._done.read_text("ascii").split()
        except (FileNotFoundError, ValueError):
            return 0, 0
        return int(number), int(start)


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def read_aside(folder: Path) -> list[bytes]:
    """Return the items that were set aside in a queue, whichever process holds it."""
    path = folder / ASIDE
    return [item for item, _ in _read(path, 0) if item is not None] if path.exists() else []


def _encode(items: Iterable[bytes]) -> bytes:
    return b"".join(_HEAD.pack(MAGIC, len(item), zlib.crc32(item)) + item for item in items)


def _read(path: Path, start: int, end: int | None = None) -> Iterator[tuple[bytes | None, int]]:
    """Yield the items of a file from an offset on, each with its end offset; None stands for damaged bytes."""
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
    # An item is never empty. Zeros are left by a power failure.
    if not 0 < length <= MAX_ITEM_BYTES or begin + length > size:
        return None, at
    stream.seek(begin)
    item = stream.read(length)
    if len(item) < length or zlib.crc32(item) != checksum:
        return None, at
    return item, begin + length


def _find_next(stream: BinaryIO, at: int, size: int) -> int:
    """Return the offset of the next item that can be read; `size` if there is none."""
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
