"""The way to Redis: commands of one loop tick go out together, every wait has an end, and driver errors are translated
here, once.

Every command is a script on the keys of one ranking, which share a slot (`tag`). All scripts may be repeated, so a
command that was lost with its connection is sent once more. What can't be reached is left alone for a moment, so that
not every caller waits for a server that is gone: one Redis as a whole, a cluster ranking by ranking.
"""

import asyncio
import contextlib
import hashlib
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Sequence
from importlib.resources import files
from typing import Any, cast

import redis.asyncio as redis
import structlog
from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff
from redis.exceptions import (
    AskError,
    AuthenticationError,
    ClusterError,
    NoScriptError,
    ReadOnlyError,
    RedisClusterException,
    RedisError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as LostConnection
from redis.exceptions import TimeoutError as RedisTimeout

from laurels.adapters.redis.urls import RedisUrl
from laurels.errors import Unavailable

log = structlog.get_logger()

MAX_CONNECTIONS = 16
MAX_WAITING = 20_000
# To one server at once; while they are under way, the next one gathers.
PIPELINES = 4
PIPELINE_COMMANDS = 500
# What can't be reached is tried again this often.
TRY_EVERY_S = 0.25
REFRESH_EVERY_S = 0.5

# Whatever the driver raises; and what of it means that a server is gone, or is no longer the one to ask.
ERRORS = (RedisError, RedisClusterException, OSError, TimeoutError)
LOST = (
    LostConnection,
    RedisTimeout,
    ReadOnlyError,
    ClusterError,
    RedisClusterException,
    AskError,
    TryAgainError,
    OSError,
    TimeoutError,
)

Answer = list[Any]


class Script:
    """A Lua file with the library before it."""

    def __init__(self, name: str) -> None:
        folder = files("laurels.adapters.redis") / "scripts"
        library = (folder / "library.lua").read_text("utf-8")
        self.text = library + (folder / f"{name}.lua").read_text("utf-8")
        # The name that Redis gives to a script.
        self.sha = hashlib.sha1(self.text.encode()).hexdigest()  # noqa: S324 - not for security


class _Command:
    __slots__ = ("args", "done", "script", "tag")

    def __init__(self, tag: str, script: Script, args: tuple[Any, ...], done: "asyncio.Future[Answer]") -> None:
        self.tag = tag
        self.script = script
        self.args = args
        self.done = done

    @property
    def key(self) -> bytes:
        key: bytes = self.args[1]
        return key


class _Lane:
    """The way to one server: a few pipelines under way, and what has come since."""

    def __init__(self) -> None:
        self.queue: deque[_Command] = deque()
        self.flying = 0

    def take(self) -> list[_Command]:
        return [self.queue.popleft() for _ in range(min(len(self.queue), PIPELINE_COMMANDS))]


class _Breaker:
    """For what failed: one try at a time, now and then."""

    def __init__(self) -> None:
        self.trying = False
        self.next_try = 0.0

    def may_try(self) -> bool:
        return not self.trying and time.monotonic() >= self.next_try

    def failed(self) -> None:
        self.next_try = time.monotonic() + TRY_EVERY_S


class RedisConnection:
    def __init__(self, url: RedisUrl, timeout_ms: int) -> None:
        self._url = url
        self.timeout_s = timeout_ms / 1000
        self.is_cluster = url.kind == "cluster"
        self._client: redis.Redis | RedisCluster | None = None
        self._sentinel: Sentinel | None = None
        self._waiting: list[_Command] = []
        self._unanswered = 0
        self._lanes: dict[str, _Lane] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        # Only what fails has one: by tag on a cluster, whose nodes fail one by one.
        self._breakers: dict[str, _Breaker] = {}
        self._refreshed_at = 0.0
        # SPUBLISH where channels are sharded.
        self.publish_command = "PUBLISH"
        # How often something was lost and found again.
        self.outages = 0

    async def open(self) -> None:
        """Nothing is sent yet: a Redis that is away now may come later."""
        if self._client is None:
            self._client = self._make_main_client()

    async def close(self) -> None:
        if self._client is not None:
            client, self._client = self._client, None
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await client.aclose()
        if self._sentinel is not None:
            for each in self._sentinel.sentinels:
                await each.aclose()
            self._sentinel = None

    async def ping(self) -> None:
        await self._translate(cast("Awaitable[Any]", self.client.ping()))

    @property
    def client(self) -> "redis.Redis | RedisCluster":
        if self._client is None:
            raise Unavailable("stopping", "The server is shutting down.")
        return self._client

    def run(self, tag: str, script: Script, keys: Sequence[bytes], args: Sequence[Any]) -> "asyncio.Future[Answer]":
        """What a script answers. Sent at the end of the loop's tick, with all others of this tick."""
        done: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        breaker = self._breakers.get(self._part(tag))
        if breaker is not None and not breaker.may_try():
            done.set_exception(Unavailable("index_unavailable", "Redis can't be reached."))
            return done
        if self._unanswered >= MAX_WAITING:
            done.set_exception(Unavailable("overloaded", "Too many reads are waiting. Try again in a moment."))
            return done
        if breaker is not None:
            breaker.trying = True
        self._unanswered += 1
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._flush)
        self._waiting.append(_Command(tag, script, (len(keys), *keys, *args), done))
        return done

    async def place_of(self, channel: str) -> str:
        """The node of a cluster that a channel belongs to, as host:port; '' where there is only one server."""
        client = self.client
        if not isinstance(client, RedisCluster):
            return ""
        await self._translate(client.initialize())
        return self._place(channel.encode())

    async def publish(self, channel: str, message: str) -> None:
        await self._translate(
            cast("Awaitable[Any]", self.client.execute_command(self.publish_command, channel, message))
        )

    async def scan(self, pattern: str, count: int) -> AsyncIterator[list[bytes]]:
        """Names of keys, of all masters, in chunks; some perhaps twice."""
        names: list[bytes] = []
        scanning = self.client.scan_iter(match=pattern, count=count).__aiter__()
        while (name := await self._translate(anext(scanning, None))) is not None:
            names.append(name)
            if len(names) >= count:
                yield names
                names = []
        if names:
            yield names

    # Inside

    def _part(self, tag: str) -> str:
        """What fails as one."""
        return tag if self.is_cluster else ""

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        for command in waiting:
            self._lanes.setdefault(self._place(command.key), _Lane()).queue.append(command)
        for lane in self._lanes.values():
            self._launch(lane)

    def _place(self, key: bytes) -> str:
        """Which server a key belongs to; '' where there is only one, and while a cluster is not known yet."""
        if not isinstance(self._client, RedisCluster):
            return ""
        try:
            node = self._client.get_node_from_key(key.decode())
        except ERRORS:
            return ""
        return "" if node is None else str(node.name)

    def _launch(self, lane: _Lane) -> None:
        while lane.queue and lane.flying < PIPELINES:
            lane.flying += 1
            task = asyncio.create_task(self._send(lane, lane.take()), name="redis")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _send(self, lane: _Lane, commands: list[_Command]) -> None:
        try:
            results = await self._send_or_repeat(commands)
        except (*ERRORS, Unavailable) as error:
            results = [error] * len(commands)
        except Exception as error:
            # A fault of the driver must not leave the way shut for ever.
            log.exception("redis_fault")
            results = [ConnectionError(_words(error))] * len(commands)
        except asyncio.CancelledError:
            results = [ConnectionError("cancelled")] * len(commands)
        lane.flying -= 1
        self._unanswered -= len(commands)
        lost = [result for result in results if _is_lost(result)]
        if lost:
            await self._refresh()
        self._settle(commands, results)
        self._launch(lane)

    def _settle(self, commands: list[_Command], results: list[Any]) -> None:
        for command, result in zip(commands, results, strict=True):
            part = self._part(command.tag)
            breaker = self._breakers.get(part)
            if breaker is not None:
                breaker.trying = False
            if _is_lost(result):
                if breaker is None:
                    log.warning("index_lost", reason=_words(result))
                    breaker = self._breakers[part] = _Breaker()
                breaker.failed()
            elif breaker is not None:
                del self._breakers[part]
                self.outages += 1
                log.info("index_found")
            if command.done.done():
                continue
            if isinstance(result, BaseException):
                if not _is_lost(result):
                    log.error("redis_refused", reason=_words(result))
                command.done.set_exception(_unavailable(result))
            else:
                command.done.set_result(result)

    async def _send_or_repeat(self, commands: list[_Command]) -> list[Any]:
        try:
            results = await self._pipeline(commands, "EVALSHA")
        except LostConnection as error:
            results = [error] * len(commands)
        # It may have been an old connection to a server that was restarted; and a script is sent with its text once.
        for kind, verb in ((LostConnection, "EVALSHA"), (NoScriptError, "EVAL")):
            numbers = [number for number, result in enumerate(results) if isinstance(result, kind)]
            if numbers:
                again = await self._pipeline([commands[number] for number in numbers], verb)
                for number, result in zip(numbers, again, strict=True):
                    results[number] = result
        return results

    async def _pipeline(self, commands: list[_Command], verb: str) -> list[Any]:
        pipeline: Any = self.client.pipeline(transaction=False)
        for command in commands:
            name = command.script.sha if verb == "EVALSHA" else command.script.text
            pipeline.execute_command(verb, name, *command.args)
        # Three waits: for a connection, for the answer, and for a cluster that sends us to another node.
        async with asyncio.timeout(self.timeout_s * 3):
            return list(await pipeline.execute(raise_on_error=False))

    async def _refresh(self) -> None:
        """Ask a cluster which node serves what, or drop connections to a server that may no longer be the master."""
        now = time.monotonic()
        if now - self._refreshed_at < REFRESH_EVERY_S or self._client is None:
            return
        self._refreshed_at = now
        with contextlib.suppress(*ERRORS):
            async with asyncio.timeout(self.timeout_s * 3):
                if isinstance(self._client, RedisCluster):
                    await self._client.nodes_manager.initialize()
                else:
                    await self._client.connection_pool.disconnect(inuse_connections=False)

    async def _translate(self, work: Awaitable[Any]) -> Any:
        try:
            async with asyncio.timeout(self.timeout_s * 3):
                return await work
        except ERRORS as error:
            log.debug("redis_failed", reason=_words(error))
            raise _unavailable(error) from error

    def make_client(self, place: str | None = None) -> redis.Redis:
        """A client of its own for one server: the only one, the master that Sentinels name, or the one at a place."""
        url = self._url
        if place is None and url.kind == "sentinel":
            return self._master()
        host, port = url.hosts[0] if place is None else (place.rpartition(":")[0], int(place.rpartition(":")[2]))
        tls: dict[str, Any] = {"connection_class": redis.SSLConnection, "ssl_ca_certs": url.ca_file} if url.tls else {}
        pool = redis.BlockingConnectionPool(
            host=host,
            port=port,
            db=url.db,
            max_connections=MAX_CONNECTIONS,
            timeout=self.timeout_s,
            **self._options(),
            **tls,
        )
        return redis.Redis.from_pool(pool)

    def _make_main_client(self) -> "redis.Redis | RedisCluster":
        if not self.is_cluster:
            return self.make_client()
        nodes = [ClusterNode(host, port) for host, port in self._url.hosts]
        return RedisCluster(startup_nodes=nodes, max_connections=MAX_CONNECTIONS, **self._options(), **self._tls())

    def _master(self) -> redis.Redis:
        if self._sentinel is None:
            watch = {
                "socket_timeout": self.timeout_s,
                "socket_connect_timeout": self.timeout_s,
                "username": self._url.sentinel_username,
                "password": self._url.sentinel_password,
            } | self._tls()
            self._sentinel = Sentinel(self._url.hosts, sentinel_kwargs=watch)  # type: ignore[no-untyped-call]
        assert self._url.service is not None, "checked by parse_redis_url"
        client = self._sentinel.master_for(
            self._url.service, db=self._url.db, max_connections=MAX_CONNECTIONS, **self._options(), **self._tls()
        )
        return cast("redis.Redis", client)

    def _options(self) -> dict[str, Any]:
        return {
            "username": self._url.username,
            "password": self._url.password,
            "socket_timeout": self.timeout_s,
            "socket_connect_timeout": self.timeout_s,
            # Repeating is decided here, not in the driver.
            "retry": Retry(NoBackoff(), 0),
            "protocol": 2,
        }

    def _tls(self) -> dict[str, Any]:
        return {"ssl": True, "ssl_ca_certs": self._url.ca_file} if self._url.tls else {}


def _is_lost(result: Any) -> bool:
    """The server is gone, or is no longer the one to ask."""
    if isinstance(result, list):
        return bool(result) and result[0] == b"replica"
    return isinstance(result, LOST)


def _unavailable(error: BaseException) -> Unavailable:
    """What Redis itself says is told; the driver's own words may tell of addresses, and are for the log."""
    if isinstance(error, AuthenticationError | ResponseError):
        return Unavailable("index_unavailable", f"Redis refuses: {_words(error)}.")
    return Unavailable("index_unavailable", "Redis can't be reached.")


def _words(error: Any) -> str:
    return str(error) or type(error).__name__
