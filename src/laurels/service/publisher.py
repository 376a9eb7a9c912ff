"""Tells Kafka what happened: accepted score changes, period ends and rewards; at least once, keyed so that those of one
user come in order.

The ledger itself is the outbox. Events are followed in the order of their commits, from a cursor that is moved once
Kafka has them; a period is marked once its end and its rewards are there. A repetition has the same `id`.
"""

import time
from collections.abc import Sequence
from typing import Any

import msgspec
import structlog

from laurels.core.board import Board
from laurels.core.instants import to_datetime
from laurels.core.windows import Period
from laurels.errors import NotFound, Unavailable
from laurels.metrics import PUBLISHED
from laurels.ports import Broker, Grant, Ledger, Outgoing, Row, StoredEvent
from laurels.service.boards import Boards
from laurels.service.freezing import grant_id, has_begun
from laurels.service.ingest.topics import Topics

log = structlog.get_logger()

AT_ONCE = 1000
# Then the lease is looked after, and others have their turn.
ROUNDS = 100
FIRST_WAIT_S = 0.5
LAST_WAIT_S = 30.0
SCORE_CHANGED = "score.changed"
PERIOD_FROZEN = "period.frozen"
PERIOD_REFROZEN = "period.refrozen"
REWARD_GRANTED = "reward.granted"


class Publisher:
    def __init__(self, ledger: Ledger, broker: Broker, topics: Topics, boards: Boards) -> None:
        self._topics = topics
        self._ledger = ledger
        self._streams = ledger.streams
        self._broker = broker
        self._boards = boards
        self._sender = ""
        self._wait_until = 0.0
        # Of the page that could not be sent as a whole.
        self._taken: set[bytes | None] = set()
        self._wait_s = FIRST_WAIT_S

    async def open(self, sender: str) -> None:
        """From the first time on that this is called, all is told."""
        self._sender = sender
        await self._streams.begin_publishing()

    async def is_due(self) -> bool:
        if time.monotonic() < self._wait_until:
            return False
        events, _ = await self._streams.accepted_after(await self._streams.begin_publishing(), 1)
        return bool(events) or bool(await self._streams.unpublished_periods(1))

    async def publish(self) -> dict[str, Any]:
        changes = periods = rewards = 0
        cursor = await self._streams.begin_publishing()
        for _ in range(ROUNDS):
            events, cursor = await self._streams.accepted_after(cursor, AT_ONCE)
            if not events:
                break
            await self._send(SCORE_CHANGED, await self._changes(events))
            await self._streams.note_published(cursor)
            changes += len(events)
        for board_id, period in await self._streams.unpublished_periods(AT_ONCE):
            rewards += await self._publish_period(await self._board(board_id), period)
            periods += 1
        return {"scoreChanges": changes, "periods": periods, "rewards": rewards}

    async def _send(self, kind: str, letters: Sequence[Outgoing]) -> None:
        """All of them. What was taken when others were not is not sent again the next time."""
        self._taken &= {letter.value for letter in letters}
        left = [letter for letter in letters if letter.value not in self._taken]
        answers = await self._broker.send(left)
        failed = [f"{letter.topic}: {answer.reason}" for letter, answer in zip(left, answers, strict=True) if answer]
        self._taken |= {letter.value for letter, answer in zip(left, answers, strict=True) if answer is None}
        if failed:
            # The next try is soon, then less and less so.
            self._wait_until = time.monotonic() + self._wait_s
            self._wait_s = min(LAST_WAIT_S, 2 * self._wait_s)
            raise Unavailable("kafka_unavailable", f"{len(failed)} messages could not be published to {failed[0]}")
        self._taken = set()
        self._wait_s = FIRST_WAIT_S
        PUBLISHED.labels(kind).inc(len(letters))

    # Score changes

    async def _changes(self, events: Sequence[tuple[int, StoredEvent]]) -> list[Outgoing]:
        boards = {board_id: await self._board(board_id) for board_id in {board_id for board_id, _ in events}}
        rows = {board_id: await self._rows(board, events) for board_id, board in boards.items()}
        return [self._change(boards[board_id], event, rows[board_id]) for board_id, event in events]

    async def _rows(self, board: Board, events: Sequence[tuple[int, StoredEvent]]) -> dict[tuple[int, str], Row]:
        """What the users have now, in the periods that go on."""
        own = [event for board_id, event in events if board_id == board.id]
        users: dict[int, set[str]] = {}
        for event in own:
            for period in board.periods_at(event.at):
                users.setdefault(period.id, set()).add(event.user_id)
        found: dict[tuple[int, str], Row] = {}
        for period_id, names in users.items():
            for row in await self._ledger.rows_of_users(period_id, sorted(names)):
                found[period_id, row.user_id] = row
        return found

    def _change(self, board: Board, event: StoredEvent, rows: dict[tuple[int, str], Row]) -> Outgoing:
        shown = [
            {
                "window": period.window,
                "period": period.name,
                "score": None if row.standing is None else row.standing.score,
                "version": row.version,
            }
            for period in board.periods_at(event.at)
            if (row := rows.get((period.id, event.user_id))) is not None
        ]
        data = {
            "podId": board.pod_id,
            "UUID": board.uuid,
            "userId": event.user_id,
            "eventId": event.event_id,
            "submitted": event.score,
            "timestamp": to_datetime(event.at),
            "metadata": None if event.metadata is None else msgspec.Raw(event.metadata.encode()),
            "periods": shown,
        }
        topic = self._topics.score_changes(board.pod_id)
        return self._letter(topic, event.user_id, SCORE_CHANGED, f"event-{event.seq}", event.received_at, data)

    # Period ends

    async def _publish_period(self, board: Board, period: Period) -> int:
        """Its rewards first: who hears of the end has heard of them."""
        told = 0
        if has_begun(board, period):
            after = (0, "")
            while grants := await self._ledger.seasons.grants_of_period(period.id, after, AT_ONCE):
                after = (grants[-1].place, grants[-1].reward)
                new = await self._new(period, grants)
                await self._send(REWARD_GRANTED, [self._reward(board, period, grant) for grant in new])
                told += len(new)
            await self._send(PERIOD_FROZEN, [self._end(board, period)])
        await self._streams.period_published(period.id)
        return told

    async def _new(self, period: Period, grants: list[Grant]) -> list[Grant]:
        """Without those that were told when the final ranks that this period sets right were made."""
        if period.replaces is None:
            return grants
        users = sorted({grant.user_id for grant in grants})
        had = await self._ledger.seasons.grants_of_users(period.replaces, users)
        known = {(grant.user_id, grant.reward) for grant in had}
        return [grant for grant in grants if (grant.user_id, grant.reward) not in known]

    def _end(self, board: Board, period: Period) -> Outgoing:
        data = _whose(board, period) | {
            "startTime": None if period.start is None else to_datetime(period.start),
            "endTime": None if period.end is None else to_datetime(period.end),
            "totalUsers": period.total_users,
        }
        kind = PERIOD_FROZEN if period.replaces is None else PERIOD_REFROZEN
        topic = self._topics.period_ends(board.pod_id)
        return self._letter(topic, board.uuid, kind, f"period-{period.id}", period.frozen_at or 0, data)

    def _reward(self, board: Board, period: Period, grant: Grant) -> Outgoing:
        data = _whose(board, period) | {
            "rewardId": grant_id(grant),
            "userId": grant.user_id,
            "reward": grant.reward,
            "rank": grant.rank,
            "score": grant.score,
            "prize": msgspec.Raw(grant.prize.encode()),
        }
        topic = self._topics.rewards(board.pod_id)
        return self._letter(topic, grant.user_id, REWARD_GRANTED, grant_id(grant), grant.granted_at, data)

    def _letter(self, topic: str, key: str, kind: str, name: str, at: int, data: dict[str, Any]) -> Outgoing:
        # A receiver may hear of several ledgers, and must not take one's message for the other's.
        body = {"id": f"{self._sender}-{name}", "type": kind, "timestamp": to_datetime(at), "data": data}
        return Outgoing(topic, key.encode(), msgspec.json.encode(body))

    async def _board(self, board_id: int) -> Board:
        try:
            return self._boards.by_id(board_id)
        except NotFound:
            # Another server made it a moment ago.
            await self._boards.reload([board_id])
            return self._boards.by_id(board_id)


def _whose(board: Board, period: Period) -> dict[str, Any]:
    return {"podId": board.pod_id, "UUID": board.uuid, "window": period.window, "period": period.name}
