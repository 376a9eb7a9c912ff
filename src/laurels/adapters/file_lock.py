"""One process at a time on a data folder: an embedded index is only right while nobody else writes to its ledger.

The system frees the lock when its holder dies, however it dies. The file tells where the holder can be reached.
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
        """Raises `Unavailable`, naming the holder, if another process has it."""
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
    """Where the process that holds the lock can be reached; None if nobody holds it, "" if it does not say."""
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
