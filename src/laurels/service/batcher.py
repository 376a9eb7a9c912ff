"""Group commit: whatever arrives while a transaction is under way shares the next one. No timer is needed.

Every event is durable, and in the index, before its sender gets an answer. The queue is bounded as a whole and for
each pod, so that one busy game can't shut the others out.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from itertools import islice, repeat

import structlog
from msgspec import Struct

from laurels.errors import LaurelsError, TooMany, Unavailable
from laurels.metrics import BATCHES, EVENTS
from laurels.ports import AsOf, Event, Placement, Record, Recorded
from laurels.service.follower import Follower
from laurels.service.recorder import Recorder, Recording
from laurels.service.spooling import Spooler

log = structlog.get_logger()


class Written(Struct, frozen=True):
    """What became of one event, and the ranks of its user by period (none: the index is behind)."""

    event: Event
    record: Record
    placements: dict[int, Placement]


class _Piece(Struct):
    events: Sequence[Event]
    may_spool: bool
    done: asyncio.Future[Sequence[Written | LaurelsError]]

    def answer(self, answers: Sequence[Written | LaurelsError]) -> None:
        # Its sender may have given up waiting.
        if not self.done.done():
            self.done.set_result(answers)


class Batcher:
    def __init__(
        self,
        recorder: Recorder,
        follower: Follower,
        spooler: Spooler | None,
        *,
        max_batch: int,
        max_pending: int,
        timeout_ms: int,
    ) -> None:
        self._recorder = recorder
        self._follower = follower
        self._spooler = spooler
        self._max_batch = max_batch
        self._max_pending = max_pending
        self._timeout_s = timeout_ms / 1000
        self._queue: deque[_Piece] = deque()
        self._pending: Counter[str] = Counter()
        self._wake = asyncio.Event()
        self._closing = False
        self._worker: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._worker = asyncio.create_task(self._run(), name="batcher")

    async def close(self) -> None:
        """Refuse what is new, finish what was taken."""
        self._closing = True
        self._wake.set()
        if self._worker is not None:
            await self._worker

    async def write(self, events: Sequence[Event], *, may_spool: bool = True) -> list[Written | LaurelsError]:
        """Record events of one pod; one answer an event. Raises only before anything is stored.

        More than fit into one batch are several transactions, of which one may fail alone, or take too long.
        """
        self._admit(events)
        loop = asyncio.get_running_loop()
        pieces = [
            _Piece(events[start : start + self._max_batch], may_spool, loop.create_future())
            for start in range(0, len(events), self._max_batch)
        ]
        self._queue.extend(pieces)
        self._wake.set()
        deadline = loop.call_later(self._timeout_s, _expire, pieces, self._timeout_s)
        try:
            return [answer for piece in pieces for answer in await piece.done]
        finally:
            deadline.cancel()

    def _admit(self, events: Sequence[Event]) -> None:
        if self._closing:
            raise Unavailable("stopping", "The server is shutting down.")
        pod_id = events[0].board.pod_id
        waiting = self._pending.total()
        if waiting + len(events) > self._max_pending and waiting:
            raise Unavailable("overloaded", f"{waiting} writes are waiting. Try again in a moment.")
        own = self._pending[pod_id]
        if own + len(events) > self._max_pending // 2 and own:
            raise TooMany("too_many_pending", f"This pod has {own} writes waiting. Try again in a moment.")
        self._pending[pod_id] += len(events)

    async def _run(self) -> None:
        """One batch is being recorded while the one before it is being ranked; both in order."""
        ranking = asyncio.create_task(asyncio.sleep(0))
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._queue:
                pieces = self._take()
                events = [event for piece in pieces for event in piece.events]
                recorded = await self._record(events, may_spool=pieces[0].may_spool)
                await ranking
                ranking = asyncio.create_task(self._finish(pieces, events, recorded), name="rank a batch")
            if self._closing:
                await ranking
                return

    def _take(self) -> list[_Piece]:
        pieces = [self._queue.popleft()]
        size = len(pieces[0].events)
        while (
            self._queue
            and size + len(self._queue[0].events) <= self._max_batch
            and self._queue[0].may_spool is pieces[0].may_spool
        ):
            pieces.append(self._queue.popleft())
            size += len(pieces[-1].events)
        return pieces

    async def _record(self, events: list[Event], *, may_spool: bool) -> Recording | LaurelsError:
        try:
            try:
                recording = await self._recorder.record(events)
            except Unavailable as error:
                if self._spooler is None or not may_spool or error.code not in {"ledger_unavailable", "overloaded"}:
                    return error
                recording = await self._spool(self._spooler, events, error)
        except LaurelsError as error:
            return error
        except Exception:
            # A fault of ours must not stop the lane: these senders are told, the next batch is tried.
            log.exception("record_failed", events=len(events))
            return Unavailable("internal", "The write failed, and the log says why. Nothing of it was stored.")
        outcomes = Counter(record.outcome for record in recording.results if isinstance(record, Record))
        BATCHES.inc(bool(outcomes) and Recorded.SPOOLED not in outcomes)
        for outcome, count in outcomes.items():
            EVENTS.labels(outcome.value).inc(count)
        return recording

    async def _spool(self, spooler: Spooler, events: list[Event], error: Unavailable) -> Recording:
        """Keep events on the disk. Whether a refused one is the repetition of a stored one can't be known now."""
        kept = [event for event in events if event.refused is None]
        if kept:
            await spooler.keep(kept)
        return Recording(
            events, [Record(Recorded.SPOOLED) if event.refused is None else error for event in events], AsOf()
        )

    async def _finish(self, pieces: list[_Piece], events: list[Event], recorded: Recording | LaurelsError) -> None:
        """Rank what was recorded, and answer."""
        answers: Iterator[Written | LaurelsError]
        try:
            answers = repeat(recorded) if isinstance(recorded, LaurelsError) else iter(await self._rank(recorded))
        except Exception:
            # As in `_record`; here the events are stored.
            log.exception("rank_failed", events=len(events))
            failure = Unavailable("internal", "The score was stored, its rank is not known. The log says why.")
            failure.outcome_unknown = True
            answers = repeat(failure)
        for piece in pieces:
            if isinstance(recorded, Unavailable) and recorded.outcome_unknown:
                piece.answer([_may_be_stored(piece, "The ledger was lost.")] * len(piece.events))
            else:
                piece.answer(list(islice(answers, len(piece.events))))
        for event in events:
            self._pending[event.board.pod_id] -= 1

    async def _rank(self, recording: Recording) -> list[Written | LaurelsError]:
        rows = [row for record in recording.results if isinstance(record, Record) for row in record.rows]
        placements = await self._follower.apply(rows, recording.as_of)
        return [
            record
            if isinstance(record, LaurelsError)
            else Written(
                event,
                record,
                {
                    change.row.period_id: placement
                    for change in record.changes
                    if (placement := placements.get((change.row.period_id, event.user_id))) is not None
                },
            )
            # As they were recorded: the boards may have been read again meanwhile.
            for event, record in zip(recording.events, recording.results, strict=True)
        ]


def _expire(pieces: list[_Piece], timeout_s: float) -> None:
    for piece in pieces:
        error = _may_be_stored(piece, f"The write took longer than {timeout_s:g} s.")
        piece.answer([error] * len(piece.events))


def _may_be_stored(piece: _Piece, why: str) -> Unavailable:
    ids = ", ".join(event.event_id for event in piece.events[:3])
    more = ", …" if len(piece.events) > 3 else ""
    told = f"{why} It may still be stored: repeat it with the same eventId ({ids}{more})."
    error = Unavailable("write_timeout", told)
    error.outcome_unknown = True
    return error
