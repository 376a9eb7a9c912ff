"""Encoded pages, kept until their ranking changes: building entries and encoding them costs more than sending them."""

from collections.abc import Hashable

MAX_BYTES = 32 * 1024 * 1024
# What a key and its place in the dict take, roughly: pages may be empty.
ENTRY_BYTES = 500


class PageCache:
    """Bounded by bytes, its own included; when it is full it starts again: what is asked for is soon back."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._pages: dict[Hashable, tuple[Hashable, bytes]] = {}

    def get(self, key: Hashable, revision: Hashable) -> bytes | None:
        held = self._pages.get(key)
        return held[1] if held is not None and held[0] == revision else None

    def put(self, key: Hashable, revision: Hashable, page: bytes) -> None:
        old = self._pages.pop(key, None)
        self._bytes += ENTRY_BYTES + len(page) - (ENTRY_BYTES + len(old[1]) if old else 0)
        if self._bytes > self._max_bytes:
            self._pages.clear()
            self._bytes = ENTRY_BYTES + len(page)
        self._pages[key] = (revision, page)
