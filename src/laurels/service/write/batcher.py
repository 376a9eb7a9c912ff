"""Group commit: events that arrive while a transaction is running share the next one, so no timer is needed.

The batcher answers a sender only after its events are durable and the index is updated (buffered boards: only durable).
The queue is bounded in total and per pod, so that one busy game can't block the others.
"""

import asyncio
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice, repeat
from typing import Any
from weakref import WeakValueDictionary

import structlog
from msgspec import Struct

from laurels import tracing
from laurels.core.fair_queue import FairQueue
from laurels.errors import LaurelsError, TooMany, Unavailable
from laurels.metrics import BATCHES, EVENTS
from laurels.ports import AsOf, Event, RankChange, RanksWanted, RecordedEvent, RecordOutcome, are_stored
from laurels.service.index.updater import IndexUpdater
from laurels.service.write.recorder import Recorder, Recording
from laurels.service.write.spooler import Spooler
from laurels.settings import WriteSettings

log = structlog.get_logger()

# Start a second transaction next to a running one only if this many events wait: otherwise they share the next one.
ADDITIONAL_EVENTS = 100
# A piece with more events is bulk.
BULK_EVENTS = 100
# A queue of so few events is no overload.
SHORT_QUEUE = 32
# What counts for the pace: batches of at least this many events, and at most this time of each, because one may have
# waited for a ledger that was away.
LARGE_BATCH, PAUSE_S = 16, 1.0
# The weight of the earlier batches in the pace, with each batch.
KEPT_PACE = 0.9
# The number of senders to answer per tick of the event loop.
ANSWERS_PER_TICK = 16
# How many writes with a transaction of their own run at the same time.
ATOMIC_AT_ONCE = 2


class WriteResult(Struct, frozen=True):
    """The result of one event, and the rank changes of its user by period id.

    `rank_changes` lacks a period if its ranking is stale or buffered.
    """

    event: Event
    record: RecordedEvent
    rank_changes: dict[int, RankChange]


# The outcomes of events that were not there before.
_NEW = {RecordOutcome.ACCEPTED, RecordOutcome.SPOOLED}

# Called once with the result of each event of a write, in order.
Done = Callable[[Sequence[WriteResult | LaurelsError]], None]


class _Piece(Struct):
    events: Sequence[Event]
    may_spool: bool
    wanted: RanksWanted
    # The time of the event loop by which it must be answered.
    due: float
    # The piece of the same call before this one: the events of a call are recorded in order.
    previous: "_Piece | None"
    # None after the answer, including the answer that the write timed out.
    done: Done | None
    is_recorded: bool = False
    # The span of the request, if it is traced.
    sender: Any = None

    @property
    def is_bulk(self) -> bool:
        """Return True for many events at once, and for those that their sender repeats."""
        return len(self.events) > BULK_EVENTS or not self.may_spool

    @property
    def may_start(self) -> bool:
        return self.previous is None or self.previous.is_recorded

    def answer(self, answers: Sequence[WriteResult | LaurelsError]) -> None:
        done, self.done = self.done, None
        if done is not None:
            try:
                done(answers)
            except Exception:
                # The other senders of the batch must get their answers.
                log.exception("write_not_answered", events=len(self.events))


class _Pace:
    """How fast large batches are written: the time per event, of the last ones, and the shortest time of a batch."""

    def __init__(self) -> None:
        self._spent_s = self._events = 0.0
        self._last = 0.0
        self.per_event_s = 0.0
        # The shortest times of this minute and of the last one, because a disk can become slower.
        self._shortest = [math.inf, math.inf]
        self._minute = 0

    @property
    def shortest_s(self) -> float:
        """Return the shortest time of a batch; 0 if there was none."""
        return 0.0 if (shortest := min(self._shortest)) == math.inf else shortest

    def note(self, events: int, began: float, ended: float) -> None:
        """Count a batch. One that began before the last one had ended took the time since then."""
        took_s, self._last = ended - max(began, self._last), ended
        if (minute := int(ended // 60)) != self._minute:
            self._shortest, self._minute = [math.inf, self._shortest[0]], minute
        self._shortest[0] = min(self._shortest[0], ended - began)
        # A transaction of a few events takes as long as one of many.
        if events >= LARGE_BATCH:
            self._spent_s = KEPT_PACE * self._spent_s + min(took_s, PAUSE_S)
            self._events = KEPT_PACE * self._events + events
            self.per_event_s = self._spent_s / self._events


class Batcher:
    def __init__(
        self,
        recorder: Recorder,
        updater: IndexUpdater,
        spooler: Spooler | None,
        settings: WriteSettings,
        note: Callable[[Counter[str]], None],
    ) -> None:
        """`note` is called with the number of accepted events of each batch, by pod."""
        self._note = note
        self._recorder = recorder
        self._updater = updater
        self._spooler = spooler
        self._max_batch = settings.max_batch
        self._max_pending = settings.max_pending
        self._timeout_s = settings.write_timeout_ms / 1000
        # What waits to be recorded. The pods take turns, and within a pod its bulk with its other writes.
        self._queue: FairQueue[_Piece] = FairQueue()
        # All unanswered pieces, oldest first; answered ones are removed later. And the timer of the oldest one.
        self._unanswered: deque[_Piece] = deque()
        self._expiry: asyncio.TimerHandle | None = None
        # The number of events that are not answered yet, by pod and in total.
        self._pending: Counter[str] = Counter()
        self._waiting = 0
        # The events that are not answered yet, without bulk, by pod and in total.
        self._refusable: Counter[str] = Counter()
        self._refusable_events = 0
        self._pace = _Pace()
        # The number of batches that are being recorded, and the tasks that record batches or finish them.
        self._recording = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        # Writes that have a transaction of their own.
        self._atomic_slots = asyncio.Semaphore(ATOMIC_AT_ONCE)
        self._pod_slots: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._closing = False
        self._worker: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._worker = asyncio.create_task(self._run(), name="batcher")

    async def close(self) -> None:
        """Reject new writes and finish the queued ones."""
        self._closing = True
        self._wake.set()
        if self._worker is not None:
            await self._worker
        if self._expiry is not None:
            self._expiry.cancel()

    def queued_s(self, pod_id: str | None = None) -> float:
        """Return about how long a write would wait for the writes that are queued, beyond the time of a transaction.

        `pod_id`: a write of this pod, which waits for its own pod's writes, and for as many of the others. Bulk does
        not count: it takes turns with the other writes of its pod.
        """
        waiting = self._refusable_events
        if pod_id is not None:
            own = self._refusable[pod_id]
            waiting = min(waiting, own * max(1, len(self._refusable)))
        if waiting <= SHORT_QUEUE:
            return 0.0
        return max(0.0, waiting * self._pace.per_event_s - 2 * self._pace.shortest_s)

    async def write(
        self, events: Sequence[Event], *, may_spool: bool = True, wanted: RanksWanted = RanksWanted.BOTH
    ) -> list[WriteResult | LaurelsError]:
        """Record events of one pod and return one result per event, in order.

        The results have at least the `wanted` ranks.

        Raises only before anything is stored. Events that don't fit into one batch are recorded in several
        transactions, and each of them can fail or time out alone.
        """
        self._admit(events)
        loop = asyncio.get_running_loop()
        futures: list[asyncio.Future[Sequence[WriteResult | LaurelsError]]] = []
        piece: _Piece | None = None
        for start in range(0, len(events), self._max_batch):
            futures.append(loop.create_future())
            done = partial(_resolve, futures[-1])
            piece = self._enqueue(events[start : start + self._max_batch], may_spool, wanted, piece, done)
        return [answer for future in futures for answer in await future]

    async def write_atomic(
        self, events: Sequence[Event], *, wanted: RanksWanted = RanksWanted.BOTH
    ) -> list[WriteResult | LaurelsError]:
        """Record events of one pod on several boards in a transaction of their own: all of them or none.

        If a result is an error, or a record of an event that can't be stored, nothing was stored.
        """
        self._admit(events)
        answered: asyncio.Future[list[WriteResult | LaurelsError]] = asyncio.get_running_loop().create_future()
        self._start(self._record_atomic(events, wanted, answered))
        try:
            async with asyncio.timeout(self._timeout_s):
                return await asyncio.shield(answered)
        except TimeoutError:
            raise _may_be_stored(events, f"The write took longer than {self._timeout_s:g} s.") from None

    async def _record_atomic(
        self, events: Sequence[Event], wanted: RanksWanted, answered: "asyncio.Future[list[WriteResult | LaurelsError]]"
    ) -> None:
        pod_id = events[0].board.pod_id
        pod_slot = self._pod_slots.setdefault(pod_id, asyncio.Semaphore(1))
        try:
            # One of each pod at a time, so that the others wait for at most one of it.
            async with pod_slot, self._atomic_slots:
                recording = await self._recorder.record_all(events)
            records = [each for each in recording.results if isinstance(each, RecordedEvent)]
            if len(records) == len(events) and are_stored(records):
                self._count(recording)
            try:
                answers = await self._rank(recording, wanted)
            except Exception:
                log.exception("rank_failed", events=len(events))
                raise _may_be_stored(events, "The score was stored, but its rank is unknown.") from None
            _settle(answered, answers)
        except LaurelsError as error:
            if isinstance(error, Unavailable) and error.outcome_unknown and error.code != "write_timeout":
                error = _may_be_stored(events, "The connection to the ledger was lost.")
            _settle(answered, error)
        except Exception:
            log.exception("record_failed", events=len(events))
            _settle(answered, _may_be_stored(events, "The write failed. See the server's log for the reason."))
        finally:
            self._waiting -= len(events)
            self._pending[pod_id] -= len(events)

    def send(self, event: Event, done: Done, wanted: RanksWanted = RanksWanted.BOTH) -> None:
        """Record one event like `write`, and call `done` with its result later, from the event loop."""
        self._admit((event,))
        self._enqueue((event,), True, wanted, None, done)

    def _enqueue(
        self, events: Sequence[Event], may_spool: bool, wanted: RanksWanted, previous: _Piece | None, done: Done
    ) -> _Piece:
        loop = asyncio.get_running_loop()
        due = loop.time() + self._timeout_s
        piece = _Piece(events, may_spool, wanted, due, previous, done, sender=tracing.current())
        pod_id = events[0].board.pod_id
        self._queue.add(f"{pod_id} bulk" if piece.is_bulk else pod_id, len(events), piece)
        if not piece.is_bulk:
            self._refusable[pod_id] += len(events)
            self._refusable_events += len(events)
        self._unanswered.append(piece)
        if self._expiry is None:
            self._expiry = loop.call_at(piece.due, self._expire)
        self._wake.set()
        return piece

    def _expire(self) -> None:
        """Answer the writes that timed out. One timer is enough, because writes time out in order of arrival."""
        loop = asyncio.get_running_loop()
        self._expiry = None
        while self._unanswered:
            piece = self._unanswered[0]
            if piece.done is not None:
                if piece.due > loop.time():
                    self._expiry = loop.call_at(piece.due, self._expire)
                    return
                error = _may_be_stored(piece.events, f"The write took longer than {self._timeout_s:g} s.")
                piece.answer([error] * len(piece.events))
            self._unanswered.popleft()

    def _admit(self, events: Sequence[Event]) -> None:
        if self._closing:
            raise Unavailable("stopping", "The server is shutting down. Try again in a moment.")
        pod_id = events[0].board.pod_id
        waiting = self._waiting
        if waiting + len(events) > self._max_pending and waiting:
            raise Unavailable("overloaded", f"{waiting} writes are waiting. Try again in a moment.")
        own = self._pending[pod_id]
        if own + len(events) > self._max_pending // 2 and own:
            raise TooMany("too_many_pending", f"This pod has {own} writes waiting. Try again in a moment.")
        self._pending[pod_id] = own + len(events)
        self._waiting += len(events)

    async def _run(self) -> None:
        """Start recording whenever the ledger can record one more batch."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._queue and self._may_record():
                self._recording += 1
                self._start(self._record_batches(self._take()))
            if self._closing and not self._queue:
                while self._tasks:
                    await asyncio.gather(*self._tasks)
                return

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work, name="write a batch")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _may_record(self) -> bool:
        """Return True if no transaction is running, or if the ledger can run one more and enough events wait."""
        if self._recording == 0:
            return True
        return (
            self._recording < self._recorder.at_once
            and self._queue.cost >= ADDITIONAL_EVENTS
            and self._queue.peek().may_start
        )

    async def _record_batches(self, pieces: list[_Piece]) -> None:
        """Record a batch, and the next ones as long as events wait.

        The next batch starts at once, so that the ledger does not wait for the event loop. The last one is ranked and
        answered meanwhile.
        """
        while pieces:
            began = time.monotonic()
            events = [event for piece in pieces for event in piece.events]
            trace = tracing.batch(len(events), (piece.sender for piece in pieces))
            try:
                with trace.active():
                    recorded = await self._record(events, may_spool=pieces[0].may_spool)
            finally:
                for piece in pieces:
                    piece.is_recorded = True
                    piece.previous = None
                self._recording -= 1
                self._wake.set()
            self._start(self._finish(pieces, events, recorded, began, trace))
            pieces = []
            if self._queue and self._may_record():
                self._recording += 1
                pieces = self._take()

    def _take(self) -> list[_Piece]:
        pieces = [self._next()]
        size = len(pieces[0].events)
        while self._queue:
            piece = self._queue.peek()
            if (
                size + len(piece.events) > self._max_batch
                or piece.may_spool is not pieces[0].may_spool
                or not piece.may_start
            ):
                break
            pieces.append(self._next())
            size += len(piece.events)
        return pieces

    def _next(self) -> _Piece:
        _, _, piece = self._queue.take()
        if not self._queue:
            self._queue.forget()
        return piece

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
            # An internal error must not stop the worker: it fails this batch only.
            log.exception("record_failed", events=len(events))
            return Unavailable(
                "internal", "The write failed and nothing was stored. See the server's log for the reason."
            )
        self._count(recording)
        return recording

    def _count(self, recording: Recording) -> None:
        outcomes = Counter(record.outcome for record in recording.results if isinstance(record, RecordedEvent))
        BATCHES.inc(bool(outcomes) and RecordOutcome.SPOOLED not in outcomes)
        for outcome, count in outcomes.items():
            EVENTS.labels(outcome.value).inc(count)
        self._note(
            Counter(
                [
                    event.board.pod_id
                    for event, record in zip(recording.events, recording.results, strict=True)
                    if isinstance(record, RecordedEvent) and record.outcome in _NEW
                ]
            )
        )

    async def _spool(self, spooler: Spooler, events: list[Event], error: Unavailable) -> Recording:
        """Append events to the spool.

        Refused events get `error` as their result: without the ledger, it is unknown whether they repeat a stored one.
        """
        kept = [event for event in events if event.refused is None]
        if kept:
            await spooler.keep(kept)
        return Recording(
            events,
            [RecordedEvent(RecordOutcome.SPOOLED) if event.refused is None else error for event in events],
            AsOf(),
        )

    async def _finish(
        self,
        pieces: list[_Piece],
        events: list[Event],
        recorded: Recording | LaurelsError,
        began: float,
        trace: tracing.Step,
    ) -> None:
        """Rank a recorded batch and answer its senders."""
        answers: Iterator[WriteResult | LaurelsError]
        try:
            wanted = _wanted(pieces)
            with trace.active():
                answers = (
                    repeat(recorded) if isinstance(recorded, LaurelsError) else iter(await self._rank(recorded, wanted))
                )
        except Exception:
            # As in `_record`, but the events are already stored.
            log.exception("rank_failed", events=len(events))
            failure = Unavailable(
                "internal", "The score was stored, but its rank is unknown. See the server's log for the reason."
            )
            failure.outcome_unknown = True
            answers = repeat(failure)
        trace.end()
        if not isinstance(recorded, LaurelsError):
            self._pace.note(len(events), began, time.monotonic())
        self._waiting -= len(events)
        for piece in pieces:
            pod_id = piece.events[0].board.pod_id
            self._pending[pod_id] -= len(piece.events)
            if not piece.is_bulk:
                self._refusable_events -= len(piece.events)
                self._refusable[pod_id] -= len(piece.events)
                if not self._refusable[pod_id]:
                    del self._refusable[pod_id]
        for number, piece in enumerate(pieces, 1):
            if isinstance(recorded, Unavailable) and recorded.outcome_unknown:
                piece.answer(
                    [_may_be_stored(piece.events, "The connection to the ledger was lost.")] * len(piece.events)
                )
            else:
                piece.answer(list(islice(answers, len(piece.events))))
            if number % ANSWERS_PER_TICK == 0:
                # Send responses and read requests, so that the next transaction starts before all are answered.
                await asyncio.sleep(0)
        # Remove answered pieces here, too, because the timer runs rarely.
        while self._unanswered and self._unanswered[0].done is None:
            self._unanswered.popleft()

    async def _rank(
        self, recording: Recording, wanted: RanksWanted | Mapping[tuple[int, str], RanksWanted]
    ) -> list[WriteResult | LaurelsError]:
        rows = [row for record in recording.results if isinstance(record, RecordedEvent) for row in record.rows]
        rank_changes = await self._updater.apply(rows, recording.as_of, wanted=wanted)
        return [
            record
            if isinstance(record, LaurelsError)
            else WriteResult(
                event,
                record,
                {
                    change.row.period_id: rank_change
                    for change in record.changes
                    if (rank_change := rank_changes.get((change.row.period_id, event.user_id))) is not None
                },
            )
            # The recorded events, not the submitted ones: the recorder may have reloaded their boards.
            for event, record in zip(recording.events, recording.results, strict=True)
        ]


def _wanted(pieces: Sequence[_Piece]) -> RanksWanted | Mapping[tuple[int, str], RanksWanted]:
    """Return the ranks that all pieces want or, if they differ, those that are wanted by board id and user."""
    first = pieces[0].wanted
    if all(piece.wanted is first for piece in pieces):
        return first
    wanted: dict[tuple[int, str], RanksWanted] = {}
    for piece in pieces:
        for event in piece.events:
            key = (event.board.id, event.user_id)
            wanted[key] = max(piece.wanted, wanted.get(key, RanksWanted.NONE))
    return wanted


def _settle(
    answered: "asyncio.Future[list[WriteResult | LaurelsError]]",
    answer: list[WriteResult | LaurelsError] | LaurelsError,
) -> None:
    if answered.done():
        return
    if isinstance(answer, LaurelsError):
        answered.set_exception(answer)
        # A caller that timed out does not read the error.
        answered.exception()
    else:
        answered.set_result(answer)


def _resolve(
    future: "asyncio.Future[Sequence[WriteResult | LaurelsError]]", answers: Sequence[WriteResult | LaurelsError]
) -> None:
    # The sender may have been cancelled.
    if not future.done():
        future.set_result(answers)


def _may_be_stored(events: Sequence[Event], why: str) -> Unavailable:
    ids = ", ".join(event.event_id for event in events[:3])
    more = ", …" if len(events) > 3 else ""
    told = f"{why} It may still be stored: retry it with the same eventId ({ids}{more})."
    error = Unavailable("write_timeout", told)
    error.outcome_unknown = True
    return error
