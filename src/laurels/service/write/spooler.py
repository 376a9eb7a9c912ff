"""The spooler: accepts writes while the ledger is unreachable, if a spool folder is configured.

It stores events on the local disk and replays them in order of arrival. Each event has its event id before it is
spooled, so a replay counts it once.

An event that can't be replayed, for example because its board is gone, is set aside with the reason, and the replay
continues with the next one. It stays set aside until an operator replays it.
"""

import asyncio
from collections.abc import Callable, Sequence

import msgspec
import structlog
from msgspec import Struct

from laurels.core.board import Board
from laurels.core.scores import Operation
from laurels.errors import LaurelsError
from laurels.logs import LogLimit
from laurels.metrics import EVENTS, SPOOL, SPOOL_ASIDE, SPOOL_DAMAGED, SPOOLED
from laurels.ports import Clock, Event, RecordedEvent, RecordOutcome, Spool
from laurels.service.index.updater import IndexUpdater
from laurels.service.write.recorder import Recorder
from laurels.tasks import end_tasks

log = structlog.get_logger()
_log_limit = LogLimit()

REPLAY_EVENTS = 500
POLL_S = 0.2
RETRY_S = 0.5
# Retries of an event that fails alone with a retryable error, before it is set aside, too.
TRIES = 20


class _Kept(Struct, frozen=True, array_like=True):
    """An event as stored in the spool. The replay looks up the board by its id."""

    board_id: int
    event_id: str
    user_id: str
    score: float
    at: int
    stamped: bool
    received_at: int
    metadata: str | None
    region: str | None = None
    subscore: int = 0
    operation: Operation | None = None


class _Aside(Struct, frozen=True, array_like=True):
    """An item that was set aside, as it was stored in the spool, with the reason."""

    item: bytes
    code: str
    reason: str
    at: int


class PutAside(Struct, frozen=True):
    """An event that was set aside. The fields from `board_id` on are None if it can't be decoded."""

    code: str
    reason: str
    put_aside_at: int
    board_id: int | None = None
    event_id: str | None = None
    user_id: str | None = None
    score: float | None = None
    at: int | None = None


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Kept)
_aside_decoder = msgspec.msgpack.Decoder(_Aside)


class Spooler:
    def __init__(
        self, spool: Spool, recorder: Recorder, updater: IndexUpdater, board_of: Callable[[int], Board], clock: Clock
    ) -> None:
        self._spool = spool
        self._recorder = recorder
        self._updater = updater
        self._board_of = board_of
        self._clock = clock
        self._replaying: asyncio.Task[None] | None = None
        self._tries = 0
        self._told_damaged = 0

    async def open(self, ledger_id: str) -> None:
        await self._spool.open(ledger_id)
        self._tell()

    def start(self) -> None:
        self._replaying = asyncio.create_task(self._replay(), name="replay the spool")

    async def close(self) -> None:
        if self._replaying is not None:
            await end_tasks([self._replaying])
        await self._spool.close()

    @property
    def waiting(self) -> int:
        return self._spool.waiting

    async def keep(self, events: Sequence[Event]) -> None:
        """Spool events until the ledger is reachable; they are on disk when this returns."""
        await self._spool.append([_encoder.encode(_keep(event)) for event in events])
        SPOOLED.inc(len(events))
        self._tell()

    async def put_aside(self) -> list[PutAside]:
        """Return the events that were set aside, each once."""
        found = [_aside_decoder.decode(item) for item in await self._spool.aside()]
        return list({aside.item: _read_aside(aside) for aside in found}.values())

    async def replay_put_aside(self) -> int:
        """Request a replay of all events that were set aside, and return their number."""
        found = await self.put_aside()
        await self._spool.ask_replay()
        return len(found)

    async def _replay(self) -> None:
        while True:
            some = False
            try:
                some = await self._replay_some()
                if not some:
                    # Nothing else waits, so the spool has room for them.
                    await self._spool.replay_aside()
            except LaurelsError as error:
                log.debug("replay_waits", reason=error.message)
                await asyncio.sleep(RETRY_S)
            except Exception:
                log.exception("replay_failed")
                await asyncio.sleep(RETRY_S)
            if not some:
                await asyncio.sleep(POLL_S)

    async def _replay_some(self) -> bool:
        """Replay the oldest waiting events; return False if none wait."""
        items = await self._spool.peek(REPLAY_EVENTS)
        if not items:
            self._tell()
            return False
        aside: list[_Aside] = []
        found: list[tuple[bytes, Event]] = []
        for item in map(_item, items):
            try:
                found.append((item, self._event(_decoder.decode(item))))
            except LaurelsError as error:
                aside.append(self._aside(item, error.code, error.message))
            except msgspec.DecodeError as error:
                aside.append(self._aside(item, "internal", f"The event can't be decoded: {error}."))
        if found:
            recording = await self._recorder.record([event for _, event in found])
            records = [result for result in recording.results if isinstance(result, RecordedEvent)]
            await self._updater.apply([row for record in records for row in record.rows], recording.as_of)
            for event, result in zip(recording.events, recording.results, strict=True):
                if isinstance(result, RecordedEvent):
                    _tell_outcome(event, result)
            aside += self._failed(found, recording.results)
        if aside:
            await self._spool.set_aside([_encoder.encode(each) for each in aside])
        await self._spool.drop(len(items))
        self._tries = 0
        self._tell()
        log.info("replayed", events=len(items) - len(aside), put_aside=len(aside), waiting=self.waiting)
        return True

    def _failed(
        self, found: Sequence[tuple[bytes, Event]], results: Sequence[RecordedEvent | LaurelsError]
    ) -> list[_Aside]:
        """Return the items to set aside; raise if an event failed with an error that a retry may fix."""
        failed = [
            (item, event, result)
            for (item, event), result in zip(found, results, strict=True)
            if isinstance(result, LaurelsError)
        ]
        for _, _, error in failed:
            if error.retryable and self._tries < TRIES:
                self._tries += 1
                raise error
        for _, event, error in failed:
            if (count := _log_limit.count(error.code)) is not None:
                log.warning(
                    "spooled_event_put_aside",
                    last_event_id=event.event_id,
                    code=error.code,
                    reason=error.message,
                    count=count,
                )
        return [self._aside(item, error.code, error.message) for item, _, error in failed]

    def _aside(self, item: bytes, code: str, reason: str) -> _Aside:
        return _Aside(item, code, reason, self._clock.now_us())

    def _tell(self) -> None:
        SPOOL.set(self.waiting)
        SPOOL_ASIDE.set(self._spool.put_aside)
        SPOOL_DAMAGED.inc(self._spool.damaged - self._told_damaged)
        self._told_damaged = self._spool.damaged

    def _event(self, kept: _Kept) -> Event:
        return Event(
            board=self._board_of(kept.board_id),
            event_id=kept.event_id,
            user_id=kept.user_id,
            score=kept.score,
            at=kept.at,
            stamped=kept.stamped,
            received_at=kept.received_at,
            metadata=kept.metadata,
            acknowledged=True,
            region=kept.region,
            subscore=kept.subscore,
            operation=kept.operation,
        )


def _item(item: bytes) -> bytes:
    """Unwrap an item that was set aside and waits again; return any other item unchanged."""
    try:
        return _aside_decoder.decode(item).item
    except msgspec.DecodeError:
        return item


def _keep(event: Event) -> _Kept:
    return _Kept(
        event.board.id,
        event.event_id,
        event.user_id,
        event.score,
        event.at,
        event.stamped,
        event.received_at,
        event.metadata,
        event.region,
        event.subscore,
        event.operation,
    )


def _read_aside(aside: _Aside) -> PutAside:
    try:
        kept = _decoder.decode(aside.item)
    except msgspec.DecodeError:
        return PutAside(aside.code, aside.reason, aside.at)
    told = (kept.board_id, kept.event_id, kept.user_id, kept.score, kept.at)
    return PutAside(aside.code, aside.reason, aside.at, *told)


def _tell_outcome(event: Event, record: RecordedEvent) -> None:
    EVENTS.labels(record.outcome.value).inc()
    if record.outcome is RecordOutcome.CONFLICT:
        # The sender already has its answer. The first event with this id stays.
        told = "spooled_event_conflicts"
    elif record.outcome is RecordOutcome.ERASED:
        told = "spooled_event_erased"
    elif not event.board.periods_at(event.at):
        told = "spooled_event_late"
    else:
        return
    if (count := _log_limit.count(told)) is not None:
        log.warning(told, last_board=event.board.uuid, last_event_id=event.event_id, count=count)
