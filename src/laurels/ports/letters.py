"""Letters: records of Kafka on their way in and out. Arriving in order and once is not promised to anybody."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from msgspec import Struct

Headers = tuple[tuple[str, bytes | None], ...]
# A topic and a partition.
Lane = tuple[str, int]


class Letter(Struct, frozen=True):
    """A record as it was read. `at`: its time in Kafka, in microseconds. `damaged`: its headers can't be read."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    at: int
    damaged: bool = False

    @property
    def place(self) -> str:
        """What no other record is called; with its time, for offsets begin anew when a topic does."""
        return f"{self.topic}/{self.partition}/{self.offset}@{self.at // 1000}"


class Outgoing(Struct, frozen=True):
    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


class Undelivered(Struct, frozen=True):
    """Why a letter was not stored. `too_large`: it never will be. `fatal`: nor anything else of that client."""

    reason: str
    too_large: bool = False
    fatal: bool = False


class Inbox(Protocol):
    """One member of a group that shares the topics whose names match a pattern, also those that are made later."""

    async def take(self, limit: int, wait_s: float) -> list[Letter]:
        """The next letters; none if none come in time."""

    async def hold(self) -> None:
        """Take nothing for a while and stay a member. The next `take` goes on."""

    async def commit(self, offsets: Mapping[Lane, int]) -> None:
        """From here on the group goes on, whoever takes over. What is another member's by now is left alone."""

    async def lag(self) -> dict[str, int]:
        """How many letters of each topic wait, of the partitions that this member has."""

    async def close(self) -> None:
        """Leave the group, so that others take over at once. Idempotent."""


class Broker(Protocol):
    """Kafka. Unavailable with `kafka_unavailable` where it can't be reached."""

    def open_inbox(self, pattern: str, group: str) -> Inbox: ...

    async def send(self, letters: Sequence[Outgoing]) -> list[Undelivered | None]:
        """Send letters; each answer is None once it is stored, else why not. Topics that are missing are made."""

    async def bounds(self, topic: str) -> dict[int, tuple[int, int]]:
        """Of each partition the first offset and the one after the last; none if there is no such topic."""

    async def read(self, topic: str, partition: int, start: int, end: int) -> list[Letter]:
        """The letters with offsets from `start` up to `end`, which is left out."""

    async def ping(self) -> None:
        """Return if a broker answers."""

    async def close(self) -> None: ...
