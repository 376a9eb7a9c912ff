"""Tells Kafka what happened: accepted score changes, period ends and rewards; at least once, keyed so that those of one
user come in order.

The ledger itself is the outbox. Events are followed in the order of their commits, from a cursor that is moved once
Kafka has them; a period is marked once its end and its rewards are there. A repetition has the same `id`. A pod whose
topics can't be written is owed what it was not told, from a cursor of its own: the others go on.
"""

import time
from collections import Counter
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


class _Pauses:
    """When what failed may be tried again: soon, then less and less so. By topic; None is Kafka as a whole."""

    def __init__(self) -> None:
        self._until: dict[str | None, float] = {}
        self._last_s: dict[str | None, float] = {}

    def is_over(self, whose: str | None) -> bool:
        return time.monotonic() >= self._until.get(whose, 0.0)

    def begin(self, whose: str | None) -> None:
        wait_s = min(LAST_WAIT_S, 2 * self._last_s.get(whose, FIRST_WAIT_S / 2))
        self._last_s[whose] = wait_s
        self._until[whose] = time.monotonic() + wait_s

    def forget(self, whose: str | None) -> None:
        self._until.pop(whose, None)
        self._last_s.pop(whose, None)


class Publisher:
    def __init__(self, ledger: Ledger, broker: Broker, topics: Topics, boards: Boards) -> None:
        self._topics = topics
        self._ledger = ledger
        self._streams = ledger.streams
        self._broker = broker
        self._boards = boards
        self._sender = ""
        self._pauses = _Pauses()
        # What was taken of letters that could not be sent as a whole, by topic.
        self._taken: dict[str, set[bytes | None]] = {}

    async def open(self, sender: str) -> None:
        """From the first time on that this is called, all is told."""
        self._sender = sender
        await self._streams.begin_publishing()

    async def is_due(self) -> bool:
        if not self._pauses.is_over(None):
            return False
        events, _ = await self._streams.accepted_after(await self._streams.begin_publishing(), 1)
        if events or any(self._may_catch_up(pod_id) for pod_id in await self._streams.owed()):
            return True
        periods = await self._streams.unpublished_periods(0, AT_ONCE)
        return any([self._may_hear_of_periods(await self._board(board_id)) for board_id, _ in periods])

    async def publish(self) -> dict[str, Any]:
        told: Counter[str] = Counter()
        failures: dict[str, str] = {}
        try:
            owed = await self._streams.owed()
            told[SCORE_CHANGED] += await self._tell_changes(owed, failures)
            for pod_id, cursor in owed.items():
                if self._may_catch_up(pod_id):
                    told[SCORE_CHANGED] += await self._catch_up(pod_id, cursor, failures)
            told += await self._tell_periods(failures)
        except Unavailable as error:
            if error.code == "kafka_unavailable":
                self._pauses.begin(None)
            raise
        self._pauses.forget(None)
        if failures:
            raise Unavailable("kafka_unavailable", "; ".join(f"{topic}: {why}" for topic, why in failures.items()))
        return {
            "scoreChanges": told[SCORE_CHANGED],
            "periods": told[PERIOD_FROZEN],
            "rewards": told[REWARD_GRANTED],
        }

    async def _send(self, kind: str, letters: Sequence[Outgoing]) -> dict[str, str]:
        """All of them; gives the topics to which not all could be written, and why.

        What was taken when others were not is not sent again the next time.
        """
        left = [letter for letter in letters if letter.value not in self._taken.get(letter.topic, ())]
        answers = await self._broker.send(left)
        failed: dict[str, str] = {}
        for letter, answer in zip(left, answers, strict=True):
            if answer is None:
                self._taken.setdefault(letter.topic, set()).add(letter.value)
            else:
                failed.setdefault(letter.topic, answer.reason)
        PUBLISHED.labels(kind).inc(sum(answer is None for answer in answers))
        if failed:
            # If it can't be reached at all, nobody is behind the others.
            await self._broker.ping()
        for topic in {letter.topic for letter in letters}:
            if topic in failed:
                self._pauses.begin(topic)
            else:
                self._pauses.forget(topic)
                self._taken.pop(topic, None)
        return failed

    # Score changes

    async def _tell_changes(self, owed: dict[str, str], failures: dict[str, str]) -> int:
        """To all but those who are owed something; who can't be told joins them."""
        told = 0
        cursor = await self._streams.begin_publishing()
        for _ in range(ROUNDS):
            events, after = await self._streams.accepted_after(cursor, AT_ONCE)
            if not events:
                break
            letters = {pod_id: own for pod_id, own in (await self._changes(events)).items() if pod_id not in owed}
            failed = await self._send(SCORE_CHANGED, [letter for own in letters.values() for letter in own])
            for pod_id, own in letters.items():
                if self._topics.score_changes(pod_id) in failed:
                    await self._streams.owe(pod_id, cursor)
                    owed[pod_id] = cursor
                else:
                    told += len(own)
            failures |= failed
            await self._streams.note_published(after)
            cursor = after
        return told

    def _may_catch_up(self, pod_id: str) -> bool:
        return self._pauses.is_over(self._topics.score_changes(pod_id))

    async def _catch_up(self, pod_id: str, cursor: str, failures: dict[str, str]) -> int:
        """Tell a pod what it is owed. At the end the others are there, too; what came just then it hears twice."""
        told = 0
        for _ in range(ROUNDS):
            events, after = await self._streams.accepted_after(cursor, AT_ONCE)
            if not events:
                await self._streams.owe(pod_id, None)
                break
            if letters := (await self._changes(events)).get(pod_id):
                if failed := await self._send(SCORE_CHANGED, letters):
                    failures |= failed
                    break
                told += len(letters)
            await self._streams.owe(pod_id, after)
            cursor = after
        return told

    async def _changes(self, events: Sequence[tuple[int, StoredEvent]]) -> dict[str, list[Outgoing]]:
        """What is to be told, by pod."""
        boards = {board_id: await self._board(board_id) for board_id in {board_id for board_id, _ in events}}
        rows = {board_id: await self._rows(board, events) for board_id, board in boards.items()}
        letters: dict[str, list[Outgoing]] = {}
        for board_id, event in events:
            board = boards[board_id]
            letters.setdefault(board.pod_id, []).append(self._change(board, event, rows[board_id]))
        return letters

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

    async def _tell_periods(self, failures: dict[str, str]) -> Counter[str]:
        told: Counter[str] = Counter()
        after = 0
        while periods := await self._streams.unpublished_periods(after, AT_ONCE):
            for board_id, period in periods:
                board = await self._board(board_id)
                if self._may_hear_of_periods(board):
                    rewards, failed = await self._publish_period(board, period)
                    told[REWARD_GRANTED] += rewards
                    told[PERIOD_FROZEN] += not failed
                    failures |= failed
            after = periods[-1][1].id
        return told

    def _may_hear_of_periods(self, board: Board) -> bool:
        topics = (self._topics.rewards(board.pod_id), self._topics.period_ends(board.pod_id))
        return all(self._pauses.is_over(topic) for topic in topics)

    async def _publish_period(self, board: Board, period: Period) -> tuple[int, dict[str, str]]:
        """Its rewards first: who hears of the end has heard of them. Gives how many, and why that was not all."""
        told = 0
        if has_begun(board, period):
            after = (0, "")
            while grants := await self._ledger.seasons.grants_of_period(period.id, after, AT_ONCE):
                after = (grants[-1].place, grants[-1].reward)
                letters = [self._reward(board, period, grant) for grant in await self._new(period, grants)]
                if failed := await self._send(REWARD_GRANTED, letters):
                    return told, failed
                told += len(letters)
            if failed := await self._send(PERIOD_FROZEN, [self._end(board, period)]):
                return told, failed
        await self._streams.period_published(period.id)
        return told, {}

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
