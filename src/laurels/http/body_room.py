"""The memory for request bodies that have not arrived completely: a bound in total and per client address.

A body is only read after the guard of its call, but public boards have calls with a body that need no key.
"""

from collections import Counter
from types import TracebackType
from typing import Self

from laurels.core.addresses import limited_address
from laurels.errors import Unavailable

TOTAL_BYTES = 512 * 2**20
ADDRESS_BYTES = 32 * 2**20


class BodyRoom:
    def __init__(self) -> None:
        self._used = 0
        self._by_address: Counter[str] = Counter()

    @property
    def used(self) -> int:
        return self._used

    def open(self, address: str) -> "ArrivingBody":
        return ArrivingBody(self, limited_address(address))

    def take(self, address: str | None, size: int) -> None:
        """Count bytes that have arrived. Raises Unavailable, and counts nothing, if there is no room for them."""
        used = 0 if address is None else self._by_address[address]
        if self._used + size > TOTAL_BYTES or used + size > ADDRESS_BYTES:
            raise Unavailable("overloaded", "The server is receiving too many large bodies. Try again later.")
        self._used += size
        if address is not None:
            self._by_address[address] = used + size

    def give_back(self, address: str | None, size: int) -> None:
        self._used -= size
        if address is not None:
            self._by_address[address] -= size
            if self._by_address[address] <= 0:
                del self._by_address[address]


class ArrivingBody:
    """A body that is arriving. It takes room until the end of the `with` block."""

    def __init__(self, room: BodyRoom, address: str | None) -> None:
        self._room = room
        self._address = address
        self.content = bytearray()

    def add(self, chunk: bytes) -> None:
        self._room.take(self._address, len(chunk))
        self.content += chunk

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._room.give_back(self._address, len(self.content))
