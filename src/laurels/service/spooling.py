"""Writes outlast a ledger that can't be reached, where a spool folder is given: they are kept on the local disk, and
replayed in the order of their coming. Each has its event id before it is kept, so a replay counts it once.
"""

import asyncio
from collections.abc import Callable, Sequence

import msgspec
import structlog
from msgspec import Struct

from laurels.core.board import Board
from laurels.errors import LaurelsError
from laurels.metrics import EVENTS, SPOOL, SPOOLED
from laurels.ports import Event, Record, Recorded, Spool
from laurels.service.follower import Follower
from laurels.service.recorder import Recorder
from laurels.tasks import end_tasks

log = structlog.get_logger()

REPLAY_EVENTS = 500
POLL_S = 0.2
RETRY_S = 0.5


class _Kept(Struct, frozen=True, array_like=True):
    """An event as it lies in the spool. The board is found again by its id."""

    board_id: int
    event_id: str
    user_id: str
    score: float
    at: int
    stamped: bool
    received_at: int
    metadata: str | None
    region: str | None = None


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Kept)


class Spooler:
    def __init__(self, spool: Spool, recorder: Recorder, follower: Follower, board_of: Callable[[int], Board]) -> None:
        self._spool = spool
        self._recorder = recorder
        self._follower = follower
        self._board_of = board_of
        self._replaying: asyncio.Task[None] | None = None

    async def open(self, ledger_id: str) -> None:
        await self._spool.open(ledger_id)

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
        """Keep events until the ledger is back; on the disk once this has returned."""
        await self._spool.append(
            [
                _encoder.encode(
                    _Kept(
                        event.board.id,
                        event.event_id,
                        event.user_id,
                        event.score,
                        event.at,
                        event.stamped,
                        event.received_at,
                        event.metadata,
                        event.region,
                    )
                )
                for event in events
            ]
        )
        SPOOLED.inc(len(events))
        SPOOL.set(self.waiting)

    async def _replay(self) -> None:
        while True:
            try:
                await self._replay_some()
            except LaurelsError as error:
                log.debug("replay_waits", reason=error.message)
                await asyncio.sleep(RETRY_S)
            except Exception:
                log.exception("replay_failed")
                await asyncio.sleep(RETRY_S)
            if not self._spool.waiting:
                await asyncio.sleep(POLL_S)

    async def _replay_some(self) -> None:
        items = await self._spool.peek(REPLAY_EVENTS)
        if not items:
            return
        events, results = await self._recorder.record([self._event(_decoder.decode(item)) for item in items])
        records = [_need_record(result) for result in results]
        await self._follower.apply(row for record in records for row in record.rows)
        for event, record in zip(events, records, strict=True):
            EVENTS.labels(record.outcome.value).inc()
            if record.outcome is Recorded.CONFLICT:
                # Its sender is gone; the first stays, as always.
                log.warning("spooled_event_conflicts", board=event.board.uuid, event_id=event.event_id)
            elif record.outcome is Recorded.ERASED:
                log.info("spooled_event_erased", board=event.board.uuid)
            elif not event.board.periods_at(event.at):
                log.warning("spooled_event_late", board=event.board.uuid, event_id=event.event_id)
        await self._spool.drop(len(items))
        SPOOL.set(self.waiting)
        log.info("replayed", events=len(items), waiting=self.waiting)

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
        )


def _need_record(result: Record | LaurelsError) -> Record:
    """What was acknowledged is not left out: it is tried again."""
    if isinstance(result, LaurelsError):
        raise result
    return result
