"""The connection to Redis.

It sends all commands of one event loop tick together, limits every wait, and translates driver errors.

Every command is a script on the keys of one ranking, which share a slot (`tag`). All scripts are idempotent, so a
command whose connection was lost is sent again. A circuit breaker lets callers fail fast while Redis can't be
reached: one breaker for a single Redis, one per ranking in a cluster.
"""

import asyncio
import contextlib
import hashlib
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Sequence
from functools import lru_cache
from importlib.resources import files
from typing import Any, cast

import redis.asyncio as redis
import structlog
from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff
from redis.crc import key_slot
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

from laurels import tracing
from laurels.adapters.redis.urls import RedisUrl
from laurels.errors import Unavailable
from laurels.logs import LogLimit
from laurels.retry import CircuitBreaker

log = structlog.get_logger()

MAX_CONNECTIONS = 16
# What traces say.
DATABASE = {"db.system.name": "redis"}
MAX_WAITING = 20_000
# Pipelines in flight per server. Further commands queue meanwhile, and share the next pipeline.
PIPELINES = 4
PIPELINE_COMMANDS = 500
# Interval between attempts while Redis can't be reached.
TRY_EVERY_S = 0.25
REFRESH_EVERY_S = 0.5
LOG_EVERY_S = 10.0
# Reasons that begin with the same words are the same for the log.
REASON_CHARS = 40
WITHOUT_RANKING = {"claim", "drop", "spend"}

# All errors of the driver, and those that mean that a server is gone or no longer owns the key.
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
    """A Lua script with library.lua prepended.

    `reads` means that it changes nothing, and needs the keys of the live generation only. `uses_ranking` is False if
    no ranking becomes incomplete when the script fails.
    """

    def __init__(self, name: str, text: str, *, reads: bool, uses_ranking: bool) -> None:
        self.name = name
        self.text = text
        self.reads = reads
        self.uses_ranking = uses_ranking
        # Redis identifies a script by its SHA-1.
        self.sha = hashlib.sha1(text.encode()).hexdigest()  # noqa: S324 - not for security


def load_scripts() -> dict[str, Script]:
    """Return all scripts by name: scripts/read/*.lua and scripts/write/*.lua."""
    folder = files("laurels.adapters.redis") / "scripts"
    library = (folder / "library.lua").read_text("utf-8")
    return {
        (name := file.name.removesuffix(".lua")): Script(
            name, library + file.read_text("utf-8"), reads=kind == "read", uses_ranking=name not in WITHOUT_RANKING
        )
        for kind in ("read", "write")
        for file in (folder / kind).iterdir()
    }


class _Command:
    __slots__ = ("args", "done", "keys", "script", "tag")

    def __init__(
        self,
        tag: str,
        script: Script,
        keys: tuple[bytes, ...],
        args: tuple[Any, ...],
        done: "asyncio.Future[Answer]",
    ) -> None:
        self.tag = tag
        self.script = script
        self.keys = keys
        self.args = args
        self.done = done


class _NodeQueue:
    """The commands that wait for one server, and the number of pipelines in flight.

    `node`: the name of a cluster node; '' without a cluster, or if the node is unknown.
    """

    def __init__(self, node: str) -> None:
        self.node = node
        self.queue: deque[_Command] = deque()
        self.flying = 0

    def take(self) -> list[_Command]:
        return [self.queue.popleft() for _ in range(min(len(self.queue), PIPELINE_COMMANDS))]


class RedisConnection:
    def __init__(self, url: RedisUrl, timeout_ms: int) -> None:
        self._url = url
        self.timeout_s = timeout_ms / 1000
        self.is_cluster = url.kind == "cluster"
        self._client: redis.Redis | RedisCluster | None = None
        self._sentinel: Sentinel | None = None
        self._waiting: list[_Command] = []
        self._unanswered = 0
        self._queues: dict[str, _NodeQueue] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        # Breakers exist only during a failure: one per tag in a cluster, because its nodes fail separately.
        self._breakers: dict[str, CircuitBreaker] = {}
        self._refreshed_at = 0.0
        # In a cluster, each ranking is lost and found separately.
        self._lost_log, self._found_log = LogLimit(LOG_EVERY_S), LogLimit(LOG_EVERY_S)
        self._refused_log = LogLimit(LOG_EVERY_S)
        # SPUBLISH if channels are sharded.
        self.publish_command = "PUBLISH"
        # How many times Redis, or a ranking in a cluster, was reached again after a failure.
        self.outages = 0

    async def open(self) -> None:
        """Create the client. It sends nothing yet, so Redis may still be unreachable."""
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
        """Queue a script, and return a future of its answer.

        The script is sent at the end of the event loop's tick, together with all others of this tick. The future raises
        `Unavailable`: with `index_unavailable` if Redis can't be reached or returns an error, with `overloaded` if
        MAX_WAITING commands have no answer yet.
        """
        done: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        breaker = self._breakers.get(self._part(tag))
        if breaker is not None and not breaker.may_try():
            done.set_exception(Unavailable("index_unavailable", "Redis can't be reached."))
            return done
        if self._unanswered >= MAX_WAITING:
            done.set_exception(
                Unavailable("overloaded", "Too many commands are waiting for Redis. Try again in a moment.")
            )
            return done
        if breaker is not None:
            breaker.begin()
        step = tracing.begin(f"redis {script.name}", DATABASE)
        if step is not None:
            done.add_done_callback(lambda _: step.end())
        self._unanswered += 1
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._flush)
        self._waiting.append(_Command(tag, script, tuple(keys), tuple(args), done))
        return done

    async def node_of(self, channel: str) -> str:
        """Return the cluster node that owns a channel, as host:port; '' without a cluster."""
        client = self.client
        if not isinstance(client, RedisCluster):
            return ""
        await self._translate(client.initialize())
        return self._node_name(channel.encode())

    async def publish(self, channel: str, message: str) -> None:
        await self._translate(
            cast("Awaitable[Any]", self.client.execute_command(self.publish_command, channel, message))
        )

    async def scan(self, pattern: str, count: int) -> AsyncIterator[list[bytes]]:
        """Yield the names of matching keys on all masters, in chunks, some possibly twice."""
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
        """Return the name of the circuit breaker for a tag."""
        return tag if self.is_cluster else ""

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        for command in waiting:
            name = self._node_name(command.keys[0])
            if name not in self._queues:
                self._queues[name] = _NodeQueue(name)
            self._queues[name].queue.append(command)
        for queue in self._queues.values():
            self._launch(queue)

    def _node_name(self, key: bytes) -> str:
        """Return the cluster node that owns a key; '' without a cluster, or before its nodes are known."""
        if not isinstance(self._client, RedisCluster):
            return ""
        nodes = self._client.nodes_manager.slots_cache.get(_slot_of(key))
        return str(nodes[0].name) if nodes else ""

    def _launch(self, queue: _NodeQueue) -> None:
        while queue.queue and queue.flying < PIPELINES:
            queue.flying += 1
            task = asyncio.create_task(self._send(queue, queue.take()), name="redis")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _send(self, queue: _NodeQueue, commands: list[_Command]) -> None:
        try:
            results = await self._send_or_repeat(queue.node, commands)
        except (*ERRORS, Unavailable) as error:
            results = [error] * len(commands)
        except Exception as error:
            # An unexpected error in the driver must not block the queue forever.
            log.exception("redis_fault")
            results = [ConnectionError(_words(error))] * len(commands)
        except asyncio.CancelledError:
            results = [ConnectionError("cancelled")] * len(commands)
        queue.flying -= 1
        self._unanswered -= len(commands)
        lost = [result for result in results if _is_lost(result)]
        if lost:
            await self._refresh()
        self._settle(commands, results)
        self._launch(queue)

    def _settle(self, commands: list[_Command], results: list[Any]) -> None:
        for command, result in zip(commands, results, strict=True):
            if _is_lost(result):
                self._note_lost(command, result)
            else:
                self._note_found(command)
            if command.done.done():
                continue
            if isinstance(result, BaseException):
                if not _is_lost(result) and (count := self._refused_log.count(_words(result)[:REASON_CHARS])):
                    log.error("redis_refused", reason=_words(result), count=count)
                command.done.set_exception(_unavailable(result))
            else:
                command.done.set_result(result)

    def _note_lost(self, command: _Command, result: Any) -> None:
        part = self._part(command.tag)
        breaker = self._breakers.get(part)
        if breaker is None:
            count = self._lost_log.count()
            # The first one, which is the only one without a cluster, is always logged.
            if count is not None or not self._breakers:
                log.warning("index_lost", reason=_words(result), rankings=count or 1)
            breaker = self._breakers[part] = CircuitBreaker(TRY_EVERY_S)
        breaker.failed()

    def _note_found(self, command: _Command) -> None:
        if self._breakers.pop(self._part(command.tag), None) is None:
            return
        # A single Redis has one breaker, so the first answer of any script ends an outage of all rankings.
        if command.script.uses_ranking or not self.is_cluster:
            self.outages += 1
        count = self._found_log.count()
        if count is not None or not self._breakers:
            log.info("index_found", rankings=count or 1)

    async def _send_or_repeat(self, node: str, commands: list[_Command]) -> list[Any]:
        results = await self._try(commands, "EVALSHA", node)
        # The driver follows redirections to other nodes of a cluster, and learns from them.
        await self._repeat(commands, results, AskError, "EVALSHA")
        # A lost connection may be an old one to a restarted server. So may be all idle ones of a cluster, which its
        # driver hands out in turn.
        end = time.monotonic() + self.timeout_s
        await self._repeat(commands, results, LostConnection, "EVALSHA")
        for _ in range(PIPELINES if self.is_cluster else 0):
            if time.monotonic() < end:
                await self._repeat(commands, results, LostConnection, "EVALSHA")
        # A script that Redis lacks is sent with its text.
        await self._repeat(commands, results, NoScriptError, "EVAL")
        return results

    async def _repeat(self, commands: list[_Command], results: list[Any], kind: type[Exception], verb: str) -> None:
        """Send the commands again that failed with an error of this kind, and replace their results."""
        numbers = [number for number, result in enumerate(results) if isinstance(result, kind)]
        if numbers:
            again = await self._try([commands[number] for number in numbers], verb)
            for number, result in zip(numbers, again, strict=True):
                results[number] = result

    async def _try(self, commands: list[_Command], verb: str, node: str = "") -> list[Any]:
        try:
            if node or not self.is_cluster:
                return await self.send_to(node, commands, verb)
            return await self.send_pipeline(commands, verb)
        except LostConnection as error:
            return [error] * len(commands)

    async def send_to(self, node: str, commands: list[_Command], verb: str) -> list[Any]:
        """Send commands to one server, without the work that the driver does for each command."""
        packed = _pack(commands, verb)
        # Two waits: for a connection, and for the answer.
        async with asyncio.timeout(self.timeout_s * 2):
            async with self._connection_to(node) as connection:
                await connection.send_packed_command(packed)
                first = await _read(connection)
                # The answers come together, so one timer is enough. This function's own limits all of them.
                return [first, *[await _read(connection, math.inf) for _ in commands[1:]]]

    @contextlib.asynccontextmanager
    async def _connection_to(self, name: str) -> AsyncIterator[Any]:
        client: Any = self.client
        if not isinstance(client, RedisCluster):
            connection = await client.connection_pool.get_connection()
            try:
                yield connection
            finally:
                await client.connection_pool.release(connection)
            return
        node = client.get_node(node_name=name)
        if node is None:
            raise LostConnection(f"The node {name} has left the cluster.")
        connection = node.acquire_connection()
        try:
            await node.disconnect_if_needed(connection)
            yield connection
        finally:
            node.release(connection)

    async def send_pipeline(self, commands: list[_Command], verb: str) -> list[Any]:
        """Send commands through the driver, which finds the node of each, and follows redirections."""
        pipeline: Any = self.client.pipeline(transaction=False)
        for command in commands:
            name = command.script.sha if verb == "EVALSHA" else command.script.text
            pipeline.execute_command(verb, name, len(command.keys), *command.keys, *command.args)
        # Three waits: for a connection, for the answer, and for a redirection to another node of a cluster.
        async with asyncio.timeout(self.timeout_s * 3):
            return list(await pipeline.execute(raise_on_error=False))

    async def _refresh(self) -> None:
        """Reload the slot map of a cluster, or drop idle connections to a server that may no longer be the master.

        Runs at most once per REFRESH_EVERY_S.
        """
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

    def make_client(self, node: str | None = None) -> redis.Redis:
        """Build a client for one server.

        The server is `node` (host:port) if given, else the master that the Sentinels name, else the first host.
        """
        url = self._url
        if node is None and url.kind == "sentinel":
            return self._master()
        host, port = url.hosts[0] if node is None else (node.rpartition(":")[0], int(node.rpartition(":")[2]))
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
            # This class retries; the driver must not.
            "retry": Retry(NoBackoff(), 0),
            "protocol": 2,
        }

    def _tls(self) -> dict[str, Any]:
        return {"ssl": True, "ssl_ca_certs": self._url.ca_file} if self._url.tls else {}


@lru_cache(maxsize=100_000)
def _slot_of(key: bytes) -> int:
    return key_slot(key)


def _pack(commands: Sequence[_Command], verb: str) -> bytes:
    """Encode commands as Redis reads them."""
    packed = []
    # The commands for the parts of a ranking often have the same arguments.
    known: dict[tuple[Any, ...], bytes] = {}
    for command in commands:
        packed.append(b"*%d\r\n" % (3 + len(command.keys) + len(command.args)))
        if verb == "EVALSHA":
            packed.append(_head(command.script.sha, command.keys))
        else:
            packed.append(_bulks((verb, command.script.text, len(command.keys), *command.keys)))
        args = known.get(command.args)
        if args is None:
            args = known[command.args] = _bulks(command.args)
        packed.append(args)
    return b"".join(packed)


@lru_cache(maxsize=10_000)
def _head(sha: str, keys: tuple[bytes, ...]) -> bytes:
    return _bulks(("EVALSHA", sha, len(keys), *keys))


def _bulks(args: Sequence[Any]) -> bytes:
    values = [arg if isinstance(arg, bytes) else str(arg).encode() for arg in args]
    return b"".join([b"$%d\r\n%b\r\n" % (len(value), value) for value in values])


async def _read(connection: Any, timeout_s: float | None = None) -> Any:
    """Return the next answer, or the error that is the answer. None: the timeout of the connection."""
    try:
        return await connection.read_response(timeout=timeout_s)
    except ResponseError as error:
        return error


def _is_lost(result: Any) -> bool:
    """Return True if the server is gone or no longer owns the key."""
    if isinstance(result, list):
        return bool(result) and result[0] == b"replica"
    return isinstance(result, LOST)


def _unavailable(error: BaseException) -> Unavailable:
    """Translate a driver error.

    The message contains only what Redis itself answered. The driver's messages may contain addresses, so they are only
    logged.
    """
    if isinstance(error, AuthenticationError | ResponseError):
        return Unavailable("index_unavailable", f"Redis returned an error: {_words(error)}.")
    return Unavailable("index_unavailable", "Redis can't be reached.")


def _words(error: Any) -> str:
    return str(error) or type(error).__name__
