"""The Feed on Redis, as publish/subscribe.

In a cluster of Redis 7 or newer, a channel belongs to the shard that owns its name (sharded publish/subscribe). In
older clusters every node receives every message.

There is one connection per server that has subscribed channels, and it is pinged every second. After a lost connection
or the move of a channel, subscribers are notified that they may have missed messages.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import redis.asyncio as redis
import structlog

from laurels.adapters.redis.connection import ERRORS, RedisConnection
from laurels.adapters.redis.keys import channel_of, tags_of
from laurels.errors import LaurelsError
from laurels.tasks import end_tasks

log = structlog.get_logger()

Hear = Callable[[str | None], None]

LOOK_S = 0.2
PING_S = 1.0
SILENCE_S = 2.0
RETRY_S = 0.5
SHARDED_SINCE = 7


class RedisFeed:
    def __init__(self, connection: RedisConnection) -> None:
        self._connection = connection
        self._ledger_id = ""
        self._hearers: dict[str, list[Hear]] = {}
        self._running: asyncio.Task[None] | None = None
        self._listeners: dict[str, asyncio.Task[None]] = {}
        # The node that owns each channel.
        self._nodes: dict[str, str] = {}

    async def open(self, ledger_id: str) -> None:
        self._ledger_id = ledger_id
        await self._connection.open()
        self._running = asyncio.create_task(self._run(), name="feed")

    async def close(self) -> None:
        await end_tasks([*self._listeners.values(), *([self._running] if self._running else [])])

    async def publish(self, topic: str, message: str) -> None:
        try:
            for channel in self._channels(topic):
                await self._connection.publish(channel, message)
        except LaurelsError as error:
            log.debug("feed_not_published", reason=error.message)

    def subscribe(self, topic: str, hear: Hear) -> Callable[[], None]:
        channels = self._channels(topic)
        for channel in channels:
            self._hearers.setdefault(channel, []).append(hear)

        def end() -> None:
            for channel in channels:
                hearers = self._hearers[channel]
                hearers.remove(hear)
                if not hearers:
                    del self._hearers[channel]

        return end

    # Inside

    def _channels(self, topic: str) -> Sequence[str]:
        """Return the channels of a topic: several for a ranking of several parts.

        The scripts of the index publish the changes of a part, so its channel is in the slot of the part.
        """
        kind, _, name = topic.partition("/")
        if kind == "ranking":
            period_id, _, parts = name.partition("/")
            return [channel_of(tag) for tag in tags_of(self._ledger_id, int(period_id), int(parts or 1))]
        return [f"laurels:{{{self._ledger_id}}}:{topic}"]

    def _tell(self, channel: str, message: str | None) -> None:
        for hear in list(self._hearers.get(channel, ())):
            hear(message)

    async def _run(self) -> None:
        """Keep one listener running per node that owns a subscribed channel."""
        while True:
            try:
                self._nodes = {channel: await self._connection.node_of(channel) for channel in list(self._hearers)}
            except (*ERRORS, LaurelsError) as error:
                log.debug("feed_node_unknown", reason=str(error))
                self._nodes = {}
            nodes = set(self._nodes.values())
            for node, task in list(self._listeners.items()):
                if task.done() or node not in nodes:
                    task.cancel()
                    del self._listeners[node]
            for node in nodes - set(self._listeners):
                self._listeners[node] = asyncio.create_task(self._listen(node), name=f"feed {node}")
            await asyncio.sleep(LOOK_S)

    async def _listen(self, node: str) -> None:
        client = self._connection.make_client(node or None)
        try:
            sharded = await self._is_sharded(client, node)
            pubsub: Any = client.pubsub()
            async with contextlib.aclosing(pubsub):
                await self._hear(pubsub, node, sharded=sharded)
        except (*ERRORS, LaurelsError) as error:
            log.debug("feed_lost", reason=str(error))
            await asyncio.sleep(RETRY_S)
        finally:
            await client.aclose()

    async def _is_sharded(self, client: redis.Redis, node: str) -> bool:
        if not node:
            return False
        version = str((await client.info("server"))["redis_version"])
        sharded = int(version.split(".", maxsplit=1)[0]) >= SHARDED_SINCE
        self._connection.publish_command = "SPUBLISH" if sharded else "PUBLISH"
        return sharded

    async def _hear(self, pubsub: Any, node: str, *, sharded: bool) -> None:
        subscribed: set[str] = set()
        pinged_at = time.monotonic()
        # When the unanswered ping was sent.
        silent_since: float | None = None
        while True:
            wanted = {channel for channel in self._hearers if self._nodes.get(channel) == node}
            # One command per channel, because a shard rejects channels of several slots in one command.
            for channel in wanted - subscribed:
                await (pubsub.ssubscribe if sharded else pubsub.subscribe)(channel)
            for channel in subscribed - wanted:
                await (pubsub.sunsubscribe if sharded else pubsub.unsubscribe)(channel)
            subscribed = wanted
            if not subscribed:
                return
            now = time.monotonic()
            if silent_since is None and now - pinged_at > PING_S:
                silent_since = pinged_at = now
                await pubsub.ping()
            message = await pubsub.get_message(timeout=LOOK_S)
            if message is not None:
                silent_since = None
                self._take(message, subscribed)
            elif silent_since is not None and now - silent_since > SILENCE_S:
                # Raised only after one more read, because this process itself may have been paused.
                raise TimeoutError("Redis did not answer a ping in time")

    def _take(self, message: dict[str, Any], subscribed: set[str]) -> None:
        if message["type"] == "pong":
            return
        channel = message["channel"].decode()
        if message["type"] in {"message", "smessage"}:
            self._tell(channel, message["data"].decode())
        elif message["type"] in {"subscribe", "ssubscribe"}:
            # Messages that were published before the subscription were missed.
            self._tell(channel, None)
        elif message["type"] == "sunsubscribe" and channel in subscribed:
            raise ConnectionError("the channel moved to another node")
