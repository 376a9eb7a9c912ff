"""The publisher of score changes, period ends and rewards to Kafka.

Delivery is at least once, keyed so that the records of one user stay in order. A repeated record has the same `id`.

The ledger is the outbox. The publisher reads accepted events in commit order from a cursor, and moves the cursor once
Kafka has stored them. It marks a period as published once Kafka has stored its rewards and its end.

A pod whose topics can't be written falls behind: it gets a separate cursor and is retried with backoff, while the other
pods continue. When it has caught up it shares their cursor again. All cursors are moved together, by compare-and-set,
so two servers that publish at the same time skip nothing.
"""

import contextlib
from collections.abc import Sequence
from typing import Any

import msgspec
import structlog
from msgspec import Struct

from laurels.core.board import Board
from laurels.core.instants import to_datetime
from laurels.core.windows import Period
from laurels.errors import NotFound, Unavailable
from laurels.metrics import PUBLISH_BEHIND, PUBLISHED
from laurels.ports import Broker, Cursors, Grant, Ledger, OutgoingRecord, Row, StoredEvent
from laurels.retry import Backoff
from laurels.service.boards.boards import Boards
from laurels.service.ingest.topics import Topics
from laurels.service.seasons.freezer import grant_id, has_begun

log = structlog.get_logger()

AT_ONCE = 1000
# Batches per run and cursor; then the rest of the job has its turn.
ROUNDS = 100
FIRST_WAIT_S = 0.5
LAST_WAIT_S = 30.0
SCORE_CHANGED = "score.changed"
PERIOD_FROZEN = "period.frozen"
PERIOD_REFROZEN = "period.refrozen"
REWARD_GRANTED = "reward.granted"
# The kinds of records with which a pod can be behind.
CHANGES = "changes"
PERIODS = "periods"


class _Message(Struct, frozen=True):
    """A record to publish for a pod.

    `smaller`: a shorter version, sent if the topic rejects the record as too large.
    """

    pod_id: str
    record: OutgoingRecord
    smaller: OutgoingRecord | None = None


class Publisher:
    def __init__(self, ledger: Ledger, broker: Broker, topics: Topics, boards: Boards) -> None:
        self._topics = topics
        self._ledger = ledger
        self._streams = ledger.streams
        self._broker = broker
        self._boards = boards
        self._sender = ""
        # Backoff while Kafka is unreachable, and per pod while only its topics can't be written.
        self._backoff = _backoff()
        self._backoffs: dict[tuple[str, str], Backoff] = {}
        # Pods that the metric has reported as behind.
        self._reported_pods: set[str] = set()
        # Per pod with failed records: the values that Kafka did store.
        self._taken: dict[str, set[bytes | None]] = {}

    async def open(self, sender: str) -> None:
        """Set the sender id and start publishing.

        The first call ever on a ledger fixes the start: earlier events are not published.
        """
        self._sender = sender
        await self._streams.begin_publishing()

    async def is_due(self) -> bool:
        if self._backoff.is_pausing:
            return False
        cursors = await self._streams.begin_publishing()
        if any(pod_id not in self._waiting(CHANGES) for pod_id in cursors.behind):
            return True
        events, _ = await self._streams.accepted_after(cursors.every, 1, without=list(cursors.behind))
        return bool(events) or bool(await self._streams.unpublished_periods(1, self._waiting(PERIODS)))

    async def publish(self) -> dict[str, Any]:
        changes = periods = rewards = 0
        while (sent := await self._publish_next()) is not None and changes < ROUNDS * AT_ONCE:
            changes += sent
        for pod_id in (await self._streams.begin_publishing()).behind:
            if pod_id not in self._waiting(CHANGES):
                changes += await self._catch_up(pod_id)
                if pod_id in self._waiting(CHANGES):
                    # The failed send may have taken its full timeout: other pods have their turn first.
                    break
        for board_id, period in await self._streams.unpublished_periods(AT_ONCE, self._waiting(PERIODS)):
            board = await self._board(board_id)
            if board is None or board.pod_id in self._waiting(PERIODS):
                continue
            if (told := await self._publish_period(board, period)) is not None:
                rewards += told
                periods += 1
        behind = {*(await self._streams.begin_publishing()).behind, *(pod_id for pod_id, _ in self._backoffs)}
        self._reported_pods |= behind
        for pod_id in self._reported_pods:
            PUBLISH_BEHIND.labels(pod_id).set(pod_id in behind)
        return {"scoreChanges": changes, "periods": periods, "rewards": rewards, "podsBehind": len(behind)}

    def _waiting(self, what: str) -> list[str]:
        """Return the pods whose backoff is not over."""
        return [pod_id for (pod_id, which), each in self._backoffs.items() if which == what and each.is_pausing]

    async def _publish_next(self) -> int | None:
        """Publish the next events of all pods that are not behind, and return how many.

        Returns None if there are none, or if another server moved the cursors.
        """
        cursors = await self._streams.begin_publishing()
        events, cursor = await self._streams.accepted_after(cursors.every, AT_ONCE, without=list(cursors.behind))
        if not events:
            return None
        failed = await self._send(SCORE_CHANGED, await self._changes(events))
        behind = cursors.behind | dict.fromkeys(failed, cursors.every)
        return len(events) if await self._streams.move_cursors(cursors, Cursors(cursor, behind)) else None

    async def _catch_up(self, pod_id: str) -> int:
        """Publish the events by which a pod is behind the others, and return how many."""
        changes = 0
        for _ in range(ROUNDS):
            cursors = await self._streams.begin_publishing()
            if pod_id not in cursors.behind:
                break
            events, cursor = await self._streams.accepted_after(
                cursors.behind[pod_id], AT_ONCE, pod_id=pod_id, up_to=cursors.every
            )
            if events and await self._send(SCORE_CHANGED, await self._changes(events)):
                break
            behind = {name: its for name, its in cursors.behind.items() if name != pod_id}
            after = Cursors(cursors.every, behind | {pod_id: cursor} if events else behind)
            if not await self._streams.move_cursors(cursors, after):
                break
            changes += len(events)
        return changes

    async def _send(self, kind: str, messages: Sequence[_Message]) -> dict[str, str]:
        """Send messages and return the pods with failures, each with the reason.

        Raises Unavailable if Kafka is unreachable.
        """
        left = [each for each in messages if each.record.value not in self._taken.get(each.pod_id, ())]
        answers = await self._broker.send([each.record for each in left])
        large = [n for n, answer in enumerate(answers) if answer is not None and answer.too_large]
        smaller = [(number, less) for number in large if (less := left[number].smaller) is not None]
        for (number, _), answer in zip(smaller, await self._broker.send([m for _, m in smaller]), strict=True):
            answers[number] = answer
        failed: dict[str, str] = {}
        for message, answer in zip(left, answers, strict=True):
            if answer is not None:
                failed.setdefault(message.pod_id, f"{message.record.topic}: {answer.reason}")
        if failed and all(answer is not None for answer in answers):
            await self._need_kafka(failed)
        self._note(kind, left, [answer is None for answer in answers], failed)
        PUBLISHED.labels(kind).inc(sum(answer is None for answer in answers))
        return failed

    async def _need_kafka(self, failed: dict[str, str]) -> None:
        """Raise Unavailable if Kafka is unreachable.

        Called when no message could be sent, to tell an outage of Kafka from a fault of these pods' topics.
        """
        try:
            await self._broker.ping()
        except Unavailable:
            self._backoff.next_s()
            raise Unavailable(
                "kafka_unavailable", f"Kafka is unreachable, so nothing can be published: {next(iter(failed.values()))}"
            ) from None

    def _note(self, kind: str, sent: Sequence[_Message], taken: Sequence[bool], failed: dict[str, str]) -> None:
        """Update the backoff of each pod, and remember stored records so that a retry does not send them again."""
        self._backoff.reset()
        what = CHANGES if kind == SCORE_CHANGED else PERIODS
        for message, is_taken in zip(sent, taken, strict=True):
            if message.pod_id not in failed:
                self._taken.pop(message.pod_id, None)
                self._backoffs.pop((message.pod_id, what), None)
            elif is_taken:
                self._taken.setdefault(message.pod_id, set()).add(message.record.value)
        for pod_id, reason in failed.items():
            if (pod_id, what) not in self._backoffs:
                log.warning("publishing_falls_behind", pod=pod_id, reason=reason)
            self._backoffs.setdefault((pod_id, what), _backoff()).next_s()

    # Score changes

    async def _changes(self, events: Sequence[tuple[int, StoredEvent]]) -> list[_Message]:
        found = {board_id: await self._board(board_id) for board_id in {board_id for board_id, _ in events}}
        # The events of boards that were deleted meanwhile are not published.
        boards = {board_id: board for board_id, board in found.items() if board is not None}
        rows = {board_id: await self._rows(board, events) for board_id, board in boards.items()}
        return [
            self._change(boards[board_id], event, rows[board_id]) for board_id, event in events if board_id in boards
        ]

    async def _rows(self, board: Board, events: Sequence[tuple[int, StoredEvent]]) -> dict[tuple[int, str], Row]:
        """Return the current rows of the events' users, by period and user."""
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

    def _change(self, board: Board, event: StoredEvent, rows: dict[tuple[int, str], Row]) -> _Message:
        shown = [
            {
                "window": period.window,
                "period": period.name,
                "score": None if row.standing is None else row.standing.score,
                "version": row.version,
                **_subscore(board, None if row.standing is None else row.standing.subscore),
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
            **_subscore(board, event.subscore),
            **({} if event.operation is None else {"operation": event.operation}),
        }
        whole = self._score_change(board, event, data)
        if event.metadata is None:
            return _Message(board.pod_id, whole)
        omitted = data | {"metadata": None, "metadataOmitted": True}
        return _Message(board.pod_id, whole, self._score_change(board, event, omitted))

    def _score_change(self, board: Board, event: StoredEvent, data: dict[str, Any]) -> OutgoingRecord:
        topic = self._topics.score_changes(board.pod_id)
        return self._record(topic, event.user_id, SCORE_CHANGED, f"event-{event.seq}", event.received_at, data)

    # Period ends

    async def _publish_period(self, board: Board, period: Period) -> int | None:
        """Publish the rewards and then the end of a period, and return the number of rewards.

        Rewards come first: when the end is published, Kafka has all of them. Returns None if not all could be sent.
        """
        told = 0
        if has_begun(board, period):
            after = (0, "")
            while grants := await self._ledger.periods.grants_of_period(period.id, after, AT_ONCE):
                after = (grants[-1].place, grants[-1].reward)
                new = await self._new(period, grants)
                records = [self._reward(board, period, grant) for grant in new]
                if records and await self._send(REWARD_GRANTED, [_Message(board.pod_id, each) for each in records]):
                    return None
                told += len(new)
            if await self._send(PERIOD_FROZEN, [_Message(board.pod_id, self._end(board, period))]):
                return None
        await self._streams.period_published(period.id)
        return told

    async def _new(self, period: Period, grants: list[Grant]) -> list[Grant]:
        """Return the grants that were not published before, for the period that this one replaces."""
        if period.replaces is None:
            return grants
        users = sorted({grant.user_id for grant in grants})
        had = await self._ledger.periods.grants_of_users(period.replaces, users)
        known = {(grant.user_id, grant.reward) for grant in had}
        return [grant for grant in grants if (grant.user_id, grant.reward) not in known]

    def _end(self, board: Board, period: Period) -> OutgoingRecord:
        data = _whose(board, period) | {
            "startTime": None if period.start is None else to_datetime(period.start),
            "endTime": None if period.end is None else to_datetime(period.end),
            "totalUsers": period.total_users,
        }
        kind = PERIOD_FROZEN if period.replaces is None else PERIOD_REFROZEN
        topic = self._topics.period_ends(board.pod_id)
        return self._record(topic, board.uuid, kind, f"period-{period.id}", period.frozen_at or 0, data)

    def _reward(self, board: Board, period: Period, grant: Grant) -> OutgoingRecord:
        data = _whose(board, period) | {
            "rewardId": grant_id(grant),
            "userId": grant.user_id,
            "reward": grant.reward,
            "rank": grant.rank,
            "segment": grant.segment,
            "score": grant.score,
            "prize": msgspec.Raw(grant.prize.encode()),
        }
        topic = self._topics.rewards(board.pod_id)
        return self._record(topic, grant.user_id, REWARD_GRANTED, grant_id(grant), grant.granted_at, data)

    def _record(self, topic: str, key: str, kind: str, name: str, at: int, data: dict[str, Any]) -> OutgoingRecord:
        # The sender is part of the id, because one receiver may get records from several ledgers.
        body = {"id": f"{self._sender}-{name}", "type": kind, "timestamp": to_datetime(at), "data": data}
        return OutgoingRecord(topic, key.encode(), msgspec.json.encode(body))

    async def _board(self, board_id: int) -> Board | None:
        """Return a board; None if it was deleted."""
        try:
            return self._boards.by_id(board_id)
        except NotFound:
            # Another server created it a moment ago.
            await self._boards.reload([board_id])
            with contextlib.suppress(NotFound):
                return self._boards.by_id(board_id)
            return None


def _whose(board: Board, period: Period) -> dict[str, Any]:
    return {"podId": board.pod_id, "UUID": board.uuid, "window": period.window, "period": period.name}


def _backoff() -> Backoff:
    return Backoff(FIRST_WAIT_S, LAST_WAIT_S)


def _subscore(board: Board, subscore: int | None) -> dict[str, int | None]:
    return {} if board.subscore is None else {"subscore": subscore}
