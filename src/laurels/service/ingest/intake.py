"""The intake of records: each is read with a schema of its pod and submitted like any other score."""

import asyncio
from collections.abc import Sequence

import structlog
from msgspec import Struct

from laurels.core.board import Board
from laurels.errors import InternalError, LaurelsError
from laurels.ports import KafkaRecord, RanksWanted
from laurels.service.boards.boards import Boards
from laurels.service.boards.registry import Registry
from laurels.service.boards.templates import Templates
from laurels.service.ingest.schemas import Schemas
from laurels.service.ingest.transformer import Transformed
from laurels.service.write.submissions import Accepted, Submission, Submissions

log = structlog.get_logger()

# Another server may have created the missing object a moment ago: reload before giving up.
MAY_BE_NEW = {"pod_not_found", "schema_not_found", "board_not_found"}


class Outcome(Struct, frozen=True):
    """A record with its outcome.

    `version`: the version of the schema that it was read with, if one was found.
    """

    pod_id: str
    record: KafkaRecord
    answer: Accepted | LaurelsError
    version: str | None = None

    @property
    def error(self) -> LaurelsError | None:
        return self.answer if isinstance(self.answer, LaurelsError) else None


class _Read(Struct):
    pod_id: str
    record: KafkaRecord
    version: str | None
    said: Transformed | LaurelsError
    board: Board | None = None
    # The UUID that the record names, if there is no such board.
    missing: str | None = None


class Intake:
    def __init__(
        self,
        boards: Boards,
        templates: Templates,
        schemas: Schemas,
        submissions: Submissions,
        registry: Registry,
    ) -> None:
        self._boards = boards
        self._templates = templates
        self._schemas = schemas
        self._submissions = submissions
        self._registry = registry

    async def count(self, records: Sequence[tuple[str, KafkaRecord]]) -> list[Outcome]:
        """Count records, and return one outcome per record, in order.

        A retryable error says nothing about the record: count it again later.
        """
        reads = [self._read(pod_id, record) for pod_id, record in records]
        if any(isinstance(read.said, LaurelsError) and read.said.code in MAY_BE_NEW for read in reads):
            try:
                await self._registry.refresh()
                await self._schemas.reload()
            except LaurelsError as error:
                return [Outcome(pod_id, record, error) for pod_id, record in records]
            reads = [await self._read_again(read) if isinstance(read.said, LaurelsError) else read for read in reads]
        by_board: dict[int, list[int]] = {}
        for number, read in enumerate(reads):
            if read.board is not None:
                by_board.setdefault(read.board.id, []).append(number)
        answers: list[Accepted | LaurelsError | None] = [
            read.said if isinstance(read.said, LaurelsError) else None for read in reads
        ]
        submitted = await asyncio.gather(*(self._submit([reads[n] for n in ns]) for ns in by_board.values()))
        for numbers, given in zip(by_board.values(), submitted, strict=True):
            for number, each in zip(numbers, given, strict=True):
                answers[number] = each
        outcomes = []
        for read, answer in zip(reads, answers, strict=True):
            assert answer is not None, "every record that was read belongs to a board"
            outcomes.append(Outcome(read.pod_id, read.record, answer, read.version))
        return outcomes

    async def _read_again(self, read: _Read) -> _Read:
        """Read a record again after a reload; create its board if a template of the pod says so."""
        again = self._read(read.pod_id, read.record)
        if again.missing is None:
            return again
        try:
            created = await self._templates.create_for_record(again.pod_id, again.missing)
        except LaurelsError as error:
            return _Read(again.pod_id, again.record, again.version, error)
        return again if created is None else self._read(read.pod_id, read.record)

    def _read(self, pod_id: str, record: KafkaRecord) -> _Read:
        version: str | None = None
        said: Transformed | LaurelsError | None = None
        try:
            said, version = self._schemas.read(pod_id, record)
            board = None if isinstance(said, LaurelsError) else self._boards.of_pod(pod_id, said.uuid)
        except LaurelsError as error:
            missing = said.uuid if isinstance(said, Transformed) and error.code == "board_not_found" else None
            return _Read(pod_id, record, version, error, missing=missing)
        except Exception:
            log.exception("record_not_read", record=record.record_id)
            fault = InternalError("internal", "Internal error. The server log has the details.")
            return _Read(pod_id, record, version, fault)
        return _Read(pod_id, record, version, said, board)

    async def _submit(self, reads: list[_Read]) -> Sequence[Accepted | LaurelsError]:
        board = reads[0].board
        assert board is not None, "the caller groups records by board"
        submissions: list[Submission | LaurelsError] = [
            read.said.submission if isinstance(read.said, Transformed) else read.said for read in reads
        ]
        try:
            # No spool: Kafka keeps the records while the ledger is unreachable.
            return await self._submissions.submit_many(board, submissions, may_spool=False, wanted=RanksWanted.NONE)
        except LaurelsError as error:
            return [error] * len(reads)
