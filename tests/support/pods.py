"""Three pods whose games write Kafka events of three shapes, and services that consume them.

The shapes are those of the design that Laurels replaces.
"""

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from confluent_kafka import KafkaException, Message

from laurels.adapters.kafka import KafkaBroker
from laurels.core.board import Board
from laurels.core.schemas import (
    FieldMappings,
    SchemaState,
    SchemaTerms,
    ScoreType,
    TimestampFormat,
)
from laurels.core.scores import Rule
from laurels.errors import LaurelsError
from laurels.ports import Role
from laurels.service.boards.caller import Caller
from laurels.service.ingest.topics import Topics
from laurels.service.laurels import Laurels
from laurels.service.read.reads import Selection
from support.kafka import Game, shared_kafka
from support.services import Stage
from support.waiting import until_async

ADMIN = Caller(Role.ADMIN, None, "test")
PATIENCE_S = 30

# The example event of the design that Laurels replaces.
EVENT = {
    "matchId": "match-abc-123",
    "playerId": "player-789",
    "points": 2500,
    "gameTime": "2024-01-15T10:30:00.000Z",
    "leaderboardUuid": "lb-uuid-123",
    "gameMode": "ranked",
}

TERMS = {
    "pod-1": SchemaTerms(
        FieldMappings("playerId", "points", "leaderboardUuid", "gameTime"), score_type=ScoreType.INTEGER
    ),
    "pod-2": SchemaTerms(
        FieldMappings("customerId", "rewardPoints", "leaderboardId", "transactionTimestamp"),
        TimestampFormat.EPOCH_MILLIS,
    ),
    "pod-3": SchemaTerms(FieldMappings("user.id", "score.value", "context.leaderboardUuid", "eventTime")),
}


def event_of(shape: str, user: str, score: float, board: str) -> dict[str, Any]:
    """Return an event with the current time, in the shape that the game of a pod writes."""
    now_ms = int(time.time() * 1000)
    iso = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime())
    if shape == "pod-1":
        return {"playerId": user, "points": int(score), "gameTime": iso, "leaderboardUuid": board, "gameMode": "ranked"}
    if shape == "pod-2":
        return {"customerId": user, "rewardPoints": score, "leaderboardId": board, "transactionTimestamp": now_ms}
    return {
        "user": {"id": user, "guild": "owls"},
        "score": {"value": score},
        "eventTime": iso,
        "context": {"leaderboardUuid": board},
    }


class Arena:
    """A Kafka, and services that consume scores from it."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        stage.clock.now = time.time_ns() // 1000
        self.kafka = shared_kafka()
        self.game = Game(self.kafka.servers)
        # Tests share one Kafka, so each test uses its own topics.
        self.mark = uuid.uuid4().hex[:8]
        self.topics = Topics(f"{self.mark}.")
        self.pods: dict[str, str] = {}

    @contextlib.asynccontextmanager
    async def running(self, *, batch: int = 1000, **settings: Any) -> AsyncIterator[Laurels]:
        broker = settings.pop("broker", None) or KafkaBroker(self.kafka.servers, {"session.timeout.ms": "6000"})
        kafka = {"ingest": 1, "kafka_group": f"laurels-{self.mark}", "ingest_batch": batch}
        async with self.stage.running(
            broker=broker, kafka_topic_prefix=self.topics.prefix, jobs_interval_ms=50, **kafka, **settings
        ) as laurels:
            yield laurels

    async def make_pod(self, laurels: Laurels, shape: str, *, topic: bool = True, **fields: Any) -> Board:
        """Create a pod with a schema, a topic and a board with the rule `increment`, and return the board."""
        pod_id = self.pods.setdefault(shape, f"{shape}-{self.mark}")
        await laurels.access.create_pod(pod_id, pod_id)
        if shape in TERMS:
            await laurels.schemas.put(pod_id, "1.0", TERMS[shape], SchemaState.ACTIVE)
        if topic:
            self.game.make_topic(self.topics.updates(pod_id))
        fields = {"rule": Rule.INCREMENT} | fields
        board = Board(id=0, uuid=f"board-{pod_id}", pod_id=pod_id, name="A board", created_at=0, **fields)
        return await laurels.boards.create(board, None)

    def topic(self, shape: str) -> str:
        return self.topics.updates(self.pods[shape])


def told_by(message: Message) -> dict[str, Any]:
    """Return the headers of a dead letter, without the prefix `laurels-`."""
    headers: Any = message.headers() or []
    return {name.removeprefix("laurels-"): (value or b"").decode("utf-8", "replace") for name, value in headers}


async def totals(laurels: Laurels, board: Board) -> dict[str, float]:
    page = (await laurels.reads.top(laurels.boards.to_read(ADMIN, board.uuid), Selection(), 0, 1000)).value
    return {place.user_id: place.score for place in page.entries}


async def has(laurels: Laurels, board: Board, expected: dict[str, float]) -> bool:
    return await totals(laurels, board) == expected


async def dead(arena: Arena, shape: str) -> list[dict[str, Any]]:
    """Return the dead letters of a pod: the headers, and the value.

    Reads in a thread: the servers under test run in this event loop, and a read takes a second or more.
    """
    letters = await asyncio.to_thread(arena.game.read, arena.topics.dead_letters(arena.pods[shape]))
    return [told_by(message) | {"value": message.value()} for message in letters]


async def until(ready: Callable[[], Awaitable[bool]], what: str) -> None:
    async def answers() -> bool:
        # A new topic may have no leader yet.
        with contextlib.suppress(LaurelsError, KafkaException):
            return await ready()
        return False

    await until_async(answers, what)
