"""What becomes of letters: each is read with its pod's schema and goes the way of every other score."""

import asyncio
from collections.abc import Sequence

import structlog
from msgspec import Struct

from laurels.core.board import Board
from laurels.errors import InternalError, LaurelsError
from laurels.ports import Letter
from laurels.service.boards import Boards
from laurels.service.ingest.schemas import Schemas
from laurels.service.ingest.transformer import Transformed
from laurels.service.registry import Registry
from laurels.service.submit import Accepted, Submission, Submissions

log = structlog.get_logger()

# Somebody may have made it a moment ago, on another server.
MAY_BE_NEW = {"pod_not_found", "schema_not_found", "board_not_found"}


class Outcome(Struct, frozen=True):
    """A letter, and what came of it. `version`: of the schema that it was read with, if one was found."""

    pod_id: str
    letter: Letter
    answer: Accepted | LaurelsError
    version: str | None = None

    @property
    def error(self) -> LaurelsError | None:
        return self.answer if isinstance(self.answer, LaurelsError) else None


class _Read(Struct):
    pod_id: str
    letter: Letter
    version: str | None
    said: Transformed | LaurelsError
    board: Board | None = None


class Intake:
    def __init__(self, boards: Boards, schemas: Schemas, submissions: Submissions, registry: Registry) -> None:
        self._boards = boards
        self._schemas = schemas
        self._submissions = submissions
        self._registry = registry

    async def count(self, letters: Sequence[tuple[str, Letter]]) -> list[Outcome]:
        """Count letters of pods; one outcome each, in order. An error that is retryable says nothing of the letter."""
        reads = [self._read(pod_id, letter) for pod_id, letter in letters]
        if any(isinstance(read.said, LaurelsError) and read.said.code in MAY_BE_NEW for read in reads):
            try:
                await self._registry.refresh()
                await self._schemas.reload()
            except LaurelsError as error:
                return [Outcome(pod_id, letter, error) for pod_id, letter in letters]
            reads = [
                self._read(read.pod_id, read.letter) if isinstance(read.said, LaurelsError) else read for read in reads
            ]
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
            assert answer is not None, "whoever was read has a board that answers"
            outcomes.append(Outcome(read.pod_id, read.letter, answer, read.version))
        return outcomes

    def _read(self, pod_id: str, letter: Letter) -> _Read:
        version: str | None = None
        try:
            said, version = self._schemas.read(pod_id, letter)
            board = None if isinstance(said, LaurelsError) else self._boards.of_pod(pod_id, said.uuid)
        except LaurelsError as error:
            return _Read(pod_id, letter, version, error)
        except Exception:
            log.exception("record_not_read", place=letter.place)
            fault = InternalError("internal", "A fault in Laurels. The log has the details.")
            return _Read(pod_id, letter, version, fault)
        return _Read(pod_id, letter, version, said, board)

    async def _submit(self, reads: list[_Read]) -> Sequence[Accepted | LaurelsError]:
        board = reads[0].board
        assert board is not None, "they were chosen for it"
        submissions: list[Submission | LaurelsError] = [
            read.said.submission if isinstance(read.said, Transformed) else read.said for read in reads
        ]
        try:
            # Kafka keeps what the ledger can't take now, so nothing else need.
            return await self._submissions.submit_many(board, submissions, may_spool=False)
        except LaurelsError as error:
            return [error] * len(reads)
