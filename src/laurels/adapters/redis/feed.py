"""The Feed on Redis: publish and subscribe. On a cluster of Redis 7 or newer a channel lives on the shard that its name
belongs to; elsewhere every node hears of it.

There is one connection for each server that has channels of ours. It is asked for a sign of life every second. When it
is lost, and when a channel moves, whoever hears is told that something may have been missed.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any

import redis.asyncio as redis
import structlog

from laurels.adapters.redis.connection import ERRORS, RedisConnection
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
        # Where each channel lives.
        self._places: dict[str, str] = {}

    async def open(self, ledger_id: str) -> None:
        self._ledger_id = ledger_id
        await self._connection.open()
        self._running = asyncio.create_task(self._run(), name="feed")

    async def close(self) -> None:
        await end_tasks([*self._listeners.values(), *([self._running] if self._running else [])])

    async def publish(self, topic: str, message: str) -> None:
        channel = self._channel(topic)
        try:
            await self._connection.publish(channel, message)
        except LaurelsError as error:
            log.debug("feed_not_published", reason=error.message)

    def subscribe(self, topic: str, hear: Hear) -> Callable[[], None]:
        channel = self._channel(topic)
        self._hearers.setdefault(channel, []).append(hear)

        def end() -> None:
            hearers = self._hearers[channel]
            hearers.remove(hear)
            if not hearers:
                del self._hearers[channel]

        return end

    # Inside

    def _channel(self, topic: str) -> str:
        """The topic `ranking/PERIOD` is published by the index itself, in the slot of that period."""
        kind, _, name = topic.partition("/")
        if kind == "ranking":
            return f"laurels:{{{self._ledger_id}/{name}}}:feed"
        return f"laurels:{{{self._ledger_id}}}:{topic}"

    def _tell(self, channel: str, message: str | None) -> None:
        for hear in list(self._hearers.get(channel, ())):
            hear(message)

    async def _run(self) -> None:
        """See to it that every channel is listened to, where it lives now."""
        while True:
            try:
                self._places = {channel: await self._connection.place_of(channel) for channel in list(self._hearers)}
            except (*ERRORS, LaurelsError) as error:
                log.debug("feed_not_placed", reason=str(error))
                self._places = {}
            places = set(self._places.values())
            for place, task in list(self._listeners.items()):
                if task.done() or place not in places:
                    task.cancel()
                    del self._listeners[place]
            for place in places - set(self._listeners):
                self._listeners[place] = asyncio.create_task(self._listen(place), name=f"feed {place}")
            await asyncio.sleep(LOOK_S)

    async def _listen(self, place: str) -> None:
        client = self._connection.make_client(place or None)
        try:
            sharded = await self._is_sharded(client, place)
            pubsub: Any = client.pubsub()
            async with contextlib.aclosing(pubsub):
                await self._hear(pubsub, place, sharded=sharded)
        except (*ERRORS, LaurelsError) as error:
            log.debug("feed_lost", reason=str(error))
            await asyncio.sleep(RETRY_S)
        finally:
            await client.aclose()

    async def _is_sharded(self, client: redis.Redis, place: str) -> bool:
        if not place:
            return False
        version = str((await client.info("server"))["redis_version"])
        sharded = int(version.split(".", maxsplit=1)[0]) >= SHARDED_SINCE
        self._connection.publish_command = "SPUBLISH" if sharded else "PUBLISH"
        return sharded

    async def _hear(self, pubsub: Any, place: str, *, sharded: bool) -> None:
        subscribed: set[str] = set()
        pinged_at = time.monotonic()
        # Since when a ping has no answer.
        silent_since: float | None = None
        while True:
            wanted = {channel for channel in self._hearers if self._places.get(channel) == place}
            # One by one: a shard refuses channels of several slots in one command.
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
                # Looked for after the time was over: it may be this process that stood still.
                raise TimeoutError("no sign of life")

    def _take(self, message: dict[str, Any], subscribed: set[str]) -> None:
        if message["type"] == "pong":
            return
        channel = message["channel"].decode()
        if message["type"] in {"message", "smessage"}:
            self._tell(channel, message["data"].decode())
        elif message["type"] in {"subscribe", "ssubscribe"}:
            # What was published before this moment was not heard.
            self._tell(channel, None)
        elif message["type"] == "sunsubscribe" and channel in subscribed:
            raise ConnectionError("the channel moved")
