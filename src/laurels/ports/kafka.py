"""Kafka: records that are read and sent.

Delivery is at least once. Callers can't rely on the order of records.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from msgspec import Struct

Headers = tuple[tuple[str, bytes | None], ...]
# Topic name and partition number.
TopicPartition = tuple[str, int]


class KafkaRecord(Struct, frozen=True):
    """A record as it was read.

    `at` is its timestamp in Kafka, in microseconds since 1970. `damaged` means that its headers can't be decoded.
    """

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    at: int
    damaged: bool = False

    @property
    def record_id(self) -> str:
        """Return an id that no other record has.

        It contains the timestamp, because offsets start again at 0 when a topic is recreated.
        """
        return f"{self.topic}/{self.partition}/{self.offset}@{self.at // 1000}"


class OutgoingRecord(Struct, frozen=True):
    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


class Undelivered(Struct, frozen=True):
    """Why a record was not stored.

    `too_large` means that a retry is useless. `fatal` means that the client can't send any other record either.
    """

    reason: str
    too_large: bool = False
    fatal: bool = False


class RecordConsumer(Protocol):
    """One member of a consumer group.

    The group shares the topics whose names match a pattern, including those that are created later. Methods raise
    `Unavailable` with `kafka_unavailable` if Kafka can't be reached or a topic was recreated: close the consumer and
    open another one.
    """

    async def poll(self, limit: int, wait_s: float) -> list[KafkaRecord]:
        """Return up to `limit` records. Waits up to `wait_s` seconds for the first; empty if none arrives."""

    async def hold(self) -> None:
        """Fetch no records for a moment, but stay a member of the group. The next `poll` resumes."""

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit the offsets of the next records to read, per partition.

        The group continues from there, whichever member owns the partition. Partitions that another member owns by now
        are ignored: that member reads the records again.
        """

    async def lag(self) -> dict[str, int]:
        """Return the number of records per topic that wait in this member's partitions."""

    async def close(self) -> None:
        """Leave the group, so that other members take over immediately. Idempotent."""


class Broker(Protocol):
    """Kafka. Methods raise `Unavailable` with `kafka_unavailable` if it can't be reached.

    `open_consumer` returns a new member of `group` that reads the topics whose names match `pattern`.
    """

    def open_consumer(self, pattern: str, group: str) -> RecordConsumer: ...

    async def send(self, records: Sequence[OutgoingRecord]) -> list[Undelivered | None]:
        """Send records, and return one answer per record: None once Kafka has stored it, else the reason why not.

        Creates topics that are missing. Some records may be stored and others not.
        """

    async def bounds(self, topic: str) -> dict[int, tuple[int, int]]:
        """Return the first offset and the one after the last, per partition; empty if the topic does not exist."""

    async def read(self, topic: str, partition: int, start: int, end: int) -> list[KafkaRecord]:
        """Return the records with offsets from `start` (included) to `end` (excluded)."""

    async def ping(self) -> None:
        """Return if a broker answers; raise `Unavailable` if not."""

    async def close(self) -> None: ...
