"""A cache of encoded pages, each valid until its ranking changes.

Building and encoding the entries of a page costs more than sending it.
"""

from collections.abc import Hashable

MAX_BYTES = 32 * 1024 * 1024
# Approximate size of a key and its slot in the dict, counted because pages can be empty.
ENTRY_BYTES = 500


class PageCache:
    """A cache limited by bytes, overhead included.

    When it is full, it drops all pages: those in demand are cached again soon.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self.size_bytes = 0
        self.pages: dict[Hashable, tuple[Hashable, bytes]] = {}

    def get(self, key: Hashable, revision: Hashable) -> bytes | None:
        held = self.pages.get(key)
        return held[1] if held is not None and held[0] == revision else None

    def put(self, key: Hashable, revision: Hashable, page: bytes) -> None:
        old = self.pages.pop(key, None)
        self.size_bytes += ENTRY_BYTES + len(page) - (ENTRY_BYTES + len(old[1]) if old else 0)
        if self.size_bytes > self._max_bytes:
            self.pages.clear()
            self.size_bytes = ENTRY_BYTES + len(page)
        self.pages[key] = (revision, page)
