"""A lock that lets only one process use a folder.

The data folder needs it because the index in memory is correct only if no other process writes to the ledger. The
operating system releases the lock when its holder ends, even by a crash. The file contains the address of the holder.
"""

import fcntl
import os
from pathlib import Path

from laurels.errors import Unavailable


class FileLock:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None

    def acquire(self) -> None:
        """Take the lock, or raise `Unavailable` with the address of the process that holds it."""
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            holder = self.path.read_text("utf-8").strip() or "another laurels command"
            raise Unavailable("ledger_unavailable", f"{self.path.parent} is in use by {holder}.") from None
        os.ftruncate(fd, 0)
        self._fd = fd

    def announce(self, address: str) -> None:
        assert self._fd is not None, "the lock is not held"
        os.pwrite(self._fd, address.encode(), 0)

    def release(self) -> None:
        if self._fd is not None:
            os.ftruncate(self._fd, 0)
            os.close(self._fd)
            self._fd = None


def holder_address(path: Path) -> str | None:
    """Return the address of the process that holds the lock; None if no process does, "" if its address is unknown."""
    if not path.exists():
        return None
    fd = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return os.pread(fd, 1000, 0).decode("utf-8", "replace").strip()
    else:
        return None
    finally:
        os.close(fd)
