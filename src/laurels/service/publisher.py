"""Tells Kafka what happened: accepted score changes, period ends and rewards; at least once, keyed so that those of one
user come in order.

The ledger itself is the outbox. Events are followed in the order of their commits, from a cursor that is moved once
Kafka has them; a period is marked once its end and its rewards are there. A repetition has the same `id`.

A pod whose topics can't be written falls behind: from there on it has a cursor of its own, and is tried less and less
often, while the others go on. When it has caught up it goes with them again. All cursors are moved together, each time
only if they are as they were read, so two servers that publish at once pass over nothing.
"""

import time
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
from laurels.ports import Broker, Cursors, Grant, Ledger, Outgoing, Row, StoredEvent
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
# What a pod may be behind with.
CHANGES = "changes"
PERIODS = "periods"


class _Message(Struct, frozen=True):
    """What is to be told of a pod. `smaller`: the same, for a topic that does not take it whole."""

    pod_id: str
    letter: Outgoing
    smaller: Outgoing | None = None


class _Wait:
    """When to try again: soon, then less and less so."""

    def __init__(self) -> None:
        self._wait_s = FIRST_WAIT_S
        self.until = 0.0

    def grow(self) -> None:
        self.until = time.monotonic() + self._wait_s
        self._wait_s = min(LAST_WAIT_S, 2 * self._wait_s)


class Publisher:
    def __init__(self, ledger: Ledger, broker: Broker, topics: Topics, boards: Boards) -> None:
        self._topics = topics
        self._ledger = ledger
        self._streams = ledger.streams
        self._broker = broker
        self._boards = boards
        self._sender = ""
        # While Kafka can't be reached, and by pod while only its topics can't be written.
        self._wait = _Wait()
        self._waits: dict[tuple[str, str], _Wait] = {}
        # Pods of which it was told that they are behind.
        self._told: set[str] = set()
        # Of pods of which not all could be sent: what was.
        self._taken: dict[str, set[bytes | None]] = {}

    async def open(self, sender: str) -> None:
        """From the first time on that this is called, all is told."""
        self._sender = sender
        await self._streams.begin_publishing()

    async def is_due(self) -> bool:
        if time.monotonic() < self._wait.until:
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
                    # It may have taken as long as a send may take: the others have their turn before the next one.
                    break
        for board_id, period in await self._streams.unpublished_periods(AT_ONCE, self._waiting(PERIODS)):
            board = await self._board(board_id)
            if board.pod_id in self._waiting(PERIODS):
                continue
            if (told := await self._publish_period(board, period)) is not None:
                rewards += told
                periods += 1
        behind = {*(await self._streams.begin_publishing()).behind, *(pod_id for pod_id, _ in self._waits)}
        self._told |= behind
        for pod_id in self._told:
            PUBLISH_BEHIND.labels(pod_id).set(pod_id in behind)
        return {"scoreChanges": changes, "periods": periods, "rewards": rewards, "podsBehind": len(behind)}

    def _waiting(self, what: str) -> list[str]:
        """Pods that are not to be tried yet."""
        now = time.monotonic()
        return [pod_id for (pod_id, which), wait in self._waits.items() if which == what and now < wait.until]

    async def _publish_next(self) -> int | None:
        """Publish the next events of all pods that are not behind; None: there are none, or somebody else does."""
        cursors = await self._streams.begin_publishing()
        events, cursor = await self._streams.accepted_after(cursors.every, AT_ONCE, without=list(cursors.behind))
        if not events:
            return None
        failed = await self._send(SCORE_CHANGED, await self._changes(events))
        behind = cursors.behind | dict.fromkeys(failed, cursors.every)
        return len(events) if await self._streams.move_cursors(cursors, Cursors(cursor, behind)) else None

    async def _catch_up(self, pod_id: str) -> int:
        """Publish what a pod lacks that the others have; gives how many events."""
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
        """Send messages; gives the pods of which some could not be, with the reason. Raises if Kafka is away."""
        left = [each for each in messages if each.letter.value not in self._taken.get(each.pod_id, ())]
        answers = await self._broker.send([each.letter for each in left])
        large = [n for n, answer in enumerate(answers) if answer is not None and answer.too_large]
        smaller = [(number, less) for number in large if (less := left[number].smaller) is not None]
        for (number, _), answer in zip(smaller, await self._broker.send([m for _, m in smaller]), strict=True):
            answers[number] = answer
        failed: dict[str, str] = {}
        for message, answer in zip(left, answers, strict=True):
            if answer is not None:
                failed.setdefault(message.pod_id, f"{message.letter.topic}: {answer.reason}")
        if failed and all(answer is not None for answer in answers):
            await self._need_kafka(failed)
        self._note(kind, left, [answer is None for answer in answers], failed)
        PUBLISHED.labels(kind).inc(sum(answer is None for answer in answers))
        return failed

    async def _need_kafka(self, failed: dict[str, str]) -> None:
        """Nothing could be sent: is it all of Kafka, or these pods alone?"""
        try:
            await self._broker.ping()
        except Unavailable:
            self._wait.grow()
            raise Unavailable(
                "kafka_unavailable", f"Nothing can be published to {next(iter(failed.values()))}"
            ) from None

    def _note(self, kind: str, sent: Sequence[_Message], taken: Sequence[bool], failed: dict[str, str]) -> None:
        """What was taken when others of its pod were not is not sent again the next time."""
        self._wait = _Wait()
        what = CHANGES if kind == SCORE_CHANGED else PERIODS
        for message, is_taken in zip(sent, taken, strict=True):
            if message.pod_id not in failed:
                self._taken.pop(message.pod_id, None)
                self._waits.pop((message.pod_id, what), None)
            elif is_taken:
                self._taken.setdefault(message.pod_id, set()).add(message.letter.value)
        for pod_id, reason in failed.items():
            if (pod_id, what) not in self._waits:
                log.warning("publishing_falls_behind", pod=pod_id, reason=reason)
            self._waits.setdefault((pod_id, what), _Wait()).grow()

    # Score changes

    async def _changes(self, events: Sequence[tuple[int, StoredEvent]]) -> list[_Message]:
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

    def _change(self, board: Board, event: StoredEvent, rows: dict[tuple[int, str], Row]) -> _Message:
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
        whole = self._score_change(board, event, data)
        if event.metadata is None:
            return _Message(board.pod_id, whole)
        omitted = data | {"metadata": None, "metadataOmitted": True}
        return _Message(board.pod_id, whole, self._score_change(board, event, omitted))

    def _score_change(self, board: Board, event: StoredEvent, data: dict[str, Any]) -> Outgoing:
        topic = self._topics.score_changes(board.pod_id)
        return self._letter(topic, event.user_id, SCORE_CHANGED, f"event-{event.seq}", event.received_at, data)

    # Period ends

    async def _publish_period(self, board: Board, period: Period) -> int | None:
        """Its rewards first: who hears of the end has heard of them. Gives how many; None: not all could be sent."""
        told = 0
        if has_begun(board, period):
            after = (0, "")
            while grants := await self._ledger.seasons.grants_of_period(period.id, after, AT_ONCE):
                after = (grants[-1].place, grants[-1].reward)
                new = await self._new(period, grants)
                letters = [self._reward(board, period, grant) for grant in new]
                if letters and await self._send(REWARD_GRANTED, [_Message(board.pod_id, each) for each in letters]):
                    return None
                told += len(new)
            if await self._send(PERIOD_FROZEN, [_Message(board.pod_id, self._end(board, period))]):
                return None
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
