"""The index on Redis, beyond the contract: kinds of connection, failovers and moved slots."""

import asyncio
import subprocess
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from msgspec.structs import replace

from laurels.adapters.redis import RedisConnection, RedisIndex, parse_redis_url
from laurels.adapters.redis.connection import PIPELINES
from laurels.adapters.redis.urls import RedisUrl
from laurels.core.board import Ranking, RankStyle
from laurels.core.order import Order, Ties
from laurels.core.scores import Standing
from laurels.errors import Invalid, Unavailable
from laurels.ports import IndexHealth, Position, Row
from support.rankings import RANKING, chunks, fill, make_rows
from support.running import free_port
from support.stores import (
    HOST,
    Process,
    RedisClusterServers,
    RedisServer,
    end_claim,
    need,
    shared_cluster,
    shared_redis,
    temporary_folder,
)
from support.waiting import until, until_so


@pytest.fixture
def folder() -> Iterator[Path]:
    with temporary_folder() as made:
        yield made


def use(url: str, timeout_ms: int = 10_000) -> RedisIndex:
    return RedisIndex(RedisConnection(parse_redis_url(url), timeout_ms))


async def fill_and_close(url: str) -> None:
    index = use(url)
    await index.open("test")
    try:
        await index.ping()
        await fill(index)
        applied = await index.apply(RANKING, make_rows(1, version=2), RankStyle.ORDINAL)
        assert applied.rank_changes is not None
    finally:
        await index.close()


# URLs


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://h", RedisUrl("", (("h", 6379),), False, None, None, None, 0, None)),
        ("redis://:p%40ss@h:1/3", RedisUrl("", (("h", 1),), False, None, "p@ss", None, 3, None)),
        ("rediss://u:p@h?ca=/x.pem", RedisUrl("", (("h", 6379),), True, "u", "p", None, 0, "/x.pem")),
        (
            "redis+sentinel://:p@a:1,b/main/2?sentinel_password=s%26x",
            RedisUrl("sentinel", (("a", 1), ("b", 26379)), False, None, "p", "main", 2, None, None, "s&x"),
        ),
        ("rediss+cluster://a:1,b:2", RedisUrl("cluster", (("a", 1), ("b", 2)), True, None, None, None, 0, None)),
        ("redis://[::1]:7", RedisUrl("", (("::1", 7),), False, None, None, None, 0, None)),
    ],
)
def test_redis_url_is_parsed_into_its_parts(url: str, expected: RedisUrl) -> None:
    assert parse_redis_url(url) == expected


@pytest.mark.parametrize(
    "url",
    [
        "http://h",
        "redis://",
        "redis://a,b",
        "redis+sentinel://a",
        "redis+cluster://a/1",
        "redis://h/x",
        "redis://h?odd=1",
        "redis://h?sentinel_password=1",
        "redis://h:port",
        "redis+odd://h",
    ],
)
def test_invalid_redis_url_error_does_not_contain_the_password(url: str) -> None:
    with pytest.raises(Invalid) as caught:
        parse_redis_url(url.replace("//", "//:secret@"))
    assert "redis+cluster://" in caught.value.message
    assert "secret" not in caught.value.message


# Kinds of connection


def test_redis_connection_requires_the_password(folder: Path) -> None:
    with RedisServer(folder / "redis", requirepass="secret") as server:
        asyncio.run(fill_and_close(f"redis://:secret@{HOST}:{server.port}"))
        with pytest.raises(Unavailable):
            asyncio.run(fill_and_close(server.url))


def test_redis_tls_connection_verifies_the_certificate(folder: Path) -> None:
    certificate, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        [
            need("openssl"), "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
            "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate),
        ],
        check=True,
        capture_output=True,
    )  # fmt: skip
    options = {"tls_cert_file": str(certificate), "tls_key_file": str(key), "tls_ca_cert_file": str(certificate)}
    tls_port = free_port()
    options |= {"tls_auth_clients": "no"}
    with RedisServer(folder / "redis", None, tls_port=str(tls_port), **options):
        asyncio.run(fill_and_close(f"rediss://{HOST}:{tls_port}?ca={certificate}"))
        lines = [f"{name.replace('_', '-')} {value}" for name, value in options.items()]
        more = ("port 0", "tls-port PORT", "tls-replication yes", *lines)
        sentinel_port, sentinel = start_sentinel(folder / "sentinel", tls_port, *more)
        try:
            through = f"rediss+sentinel://{HOST}:{sentinel_port}/main?ca={certificate}"
            asyncio.run(until_taken(lambda: fill_and_close(through)))
        finally:
            sentinel.kill()
        with pytest.raises(Unavailable) as caught:
            asyncio.run(fill_and_close(f"rediss://{HOST}:{tls_port}"))
        assert "certificate verify failed" in reasons(caught.value)


def reasons(error: BaseException | None) -> str:
    """Return the messages of an error and of its causes."""
    return "" if error is None else f"{error} {reasons(error.__cause__ or error.__context__)}"


def test_sentinel_failover_makes_the_ranking_stale_until_confirmed(folder: Path) -> None:
    with (
        RedisServer(folder / "first") as first,
        RedisServer(folder / "second", replicaof=f"{HOST} {first.port}") as second,
    ):
        until(lambda: second.client().info("replication")["master_link_status"] == "up", "the replica")
        sentinels = [start_sentinel(folder / f"sentinel-{number}", first.port) for number in range(3)]
        try:
            until(lambda: all(knows_everybody(port) for port, _ in sentinels), "the sentinels")
            hosts = ",".join(f"{HOST}:{port}" for port, _ in sentinels)
            with pytest.raises(Unavailable):
                asyncio.run(fill_and_close(f"redis+sentinel://{hosts}/main"))
            asyncio.run(follow_failover(f"redis+sentinel://{hosts}/main?sentinel_password=watch", first, second))
        finally:
            for _, process in sentinels:
                process.kill()


def knows_everybody(port: int) -> bool:
    try:
        with redis.Redis(host=HOST, port=port, password="watch", socket_timeout=5) as client:
            found = client.sentinel_master("main")
    except redis.exceptions.RedisError:
        return False
    return (found["num-slaves"], found["num-other-sentinels"]) == (1, 2)


def start_sentinel(folder: Path, master_port: int, *more: str) -> tuple[int, Process]:
    folder.mkdir()
    port = free_port()
    config = folder / "sentinel.conf"
    lines = [
        *(more or [f"port {port}", "requirepass watch", "sentinel sentinel-pass watch"]),
        f"bind {HOST}",
        f"dir {folder}",
        f"sentinel monitor main {HOST} {master_port} 2",
        "sentinel down-after-milliseconds main 500",
        "sentinel failover-timeout main 3000",
    ]
    config.write_text("\n".join(lines).replace("PORT", str(port)) + "\n")
    return port, Process([need("redis-server"), str(config), "--sentinel"], folder / "log")


async def follow_failover(url: str, first: RedisServer, second: RedisServer) -> None:
    index = use(url, timeout_ms=2000)
    await index.open("test")
    try:
        await until_taken(lambda: fill(index))
        await index.apply(RANKING, [Row(1, "last", Standing(99.0, 0), 9)], RankStyle.ORDINAL)
        # The replica has the row.
        assert first.call("WAIT", 1, 5000) == 1
        first.kill()
        await until_taken(lambda: is_stale(index), within_s=60)
        assert second.client().info("replication")["role"] == "master"
        with pytest.raises(Unavailable) as caught:
            await index.top(RANKING, 0, 1, RankStyle.ORDINAL)
        assert caught.value.code == "catching_up"
        ((state,),) = await index.states([RANKING])
        assert state.position == Position(at="5")
        await index.confirm(RANKING, state, Position(at="7"))
        assert (await index.top(RANKING, 0, 1, RankStyle.ORDINAL)).entries[0].user_id == "last"
    finally:
        await index.close()


async def is_stale(index: RedisIndex) -> None:
    ((state,),) = await index.states([RANKING])
    if state.health is not IndexHealth.STALE:
        raise Unavailable("catching_up", state.health)


async def until_taken(work: Any, within_s: float = 10) -> None:
    end = time.monotonic() + within_s
    while True:
        try:
            await work()
        except Unavailable:
            assert time.monotonic() < end
            await asyncio.sleep(0.05)
        else:
            return


def test_calls_in_one_event_loop_tick_share_a_pipeline_and_ranks_a_script(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    send_to = RedisConnection.send_to

    async def counting(self: RedisConnection, node: str, commands: list[Any], verb: str) -> list[Any]:
        sent.append(len(commands))
        return await send_to(self, node, commands, verb)

    monkeypatch.setattr(RedisConnection, "send_to", counting)

    async def run() -> None:
        index = use(shared_redis().url)
        await index.open(f"tick-{time.time_ns()}")
        await fill(index)
        # One call each, so that Redis has the scripts cached.
        await index.find(RANKING, "u1", RankStyle.ORDINAL)
        await index.top(RANKING, 0, 5, RankStyle.ORDINAL)
        sent.clear()
        await asyncio.gather(
            *(index.find(RANKING, f"u{number}", RankStyle.ORDINAL) for number in range(10)),
            *(index.top(RANKING, 0, 5, RankStyle.ORDINAL) for _ in range(40)),
        )
        # The pages in one pipeline, then all ranks in one script.
        assert sent == [40, 1]
        await index.close()

    asyncio.run(run())


def test_reads_of_a_split_ranking_take_one_round_trip_to_each_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """And those of one tick of the event loop share it."""
    sent: list[str] = []
    send_to = RedisConnection.send_to

    async def counting(self: RedisConnection, node: str, commands: list[Any], verb: str) -> list[Any]:
        sent.append(node)
        return await send_to(self, node, commands, verb)

    monkeypatch.setattr(RedisConnection, "send_to", counting)

    async def run() -> None:
        index = use(shared_cluster().url)
        await index.open(f"trips-{time.time_ns()}")
        ranking = replace(RANKING, parts=16)
        await index.load(ranking, chunks(make_rows(200)), Position(at="1"))
        reads: list[tuple[int, Callable[[], Awaitable[object]]]] = [
            (1, lambda: index.top(ranking, 0, 10, RankStyle.ORDINAL)),
            (1, lambda: index.count(ranking)),
            (1, lambda: index.revision(ranking)),
            # The parts of the users first, then all parts.
            (2, lambda: index.find_many(ranking, [f"u{number}" for number in range(100)], RankStyle.ORDINAL)),
            (2, lambda: index.around(ranking, "u7", 4, 4, RankStyle.ORDINAL)),
        ]
        for trips, read in reads:
            await read()
            for readers in (1, 20):
                sent.clear()
                await asyncio.gather(*(read() for _ in range(readers)))
                assert max(Counter(sent).values()) <= trips, (trips, readers, sent)
        await index.close()

    asyncio.run(run())


def test_confirmation_with_an_outdated_epoch_is_ignored() -> None:
    async def run() -> None:
        index = use(shared_redis().url)
        await index.open("confirming")
        await fill(index)
        ((state,),) = await index.states([RANKING])
        await index.confirm(RANKING, replace(state, epoch="0" * 40), Position(at="99"))
        ((after,),) = await index.states([RANKING])
        assert after.position == Position(at="5")
        await index.close()

    asyncio.run(run())


# A cluster


def slot_owner(cluster: RedisClusterServers, slot: int) -> RedisServer:
    for node in cluster.masters():
        for first, last in _ranges(node):
            if first <= slot <= last:
                return node
    raise AssertionError(slot)


def _ranges(node: RedisServer) -> list[tuple[int, int]]:
    """Return the ranges of slots that a master serves."""
    nodes = node.call("CLUSTER NODES")
    mine = next(each for each in nodes.values() if "myself" in each["flags"])
    return [(int(span[0]), int(span[-1])) for span in mine["slots"]]


def test_cluster_rankings_are_distributed_and_survive_slot_migration(folder: Path) -> None:
    with RedisClusterServers(folder / "cluster") as cluster:
        asyncio.run(move_a_slot(cluster))


async def move_a_slot(cluster: RedisClusterServers) -> None:
    index = use(cluster.url)
    await index.open("moving")
    rankings = [Ranking(period, "global", Order.DESC, Ties.EARLIEST, None) for period in range(1, 31)]
    for ranking in rankings:
        rows = [Row(ranking.period_id, f"u{n}", Standing(float(n), 0), 1) for n in range(10)]
        await index.load(ranking, chunks(rows), Position(at="1"))
    sizes = [int(node.call("DBSIZE")) for node in cluster.masters()]
    assert all(sizes)
    slot = int(cluster.nodes[0].call("CLUSTER", "KEYSLOT", index.scripts.names.of(RANKING)[0].names[0]))
    source = slot_owner(cluster, slot)
    target = next(node for node in cluster.masters() if node is not source)
    stop = asyncio.Event()

    reads = 0

    async def read() -> None:
        nonlocal reads
        version = 0
        while not stop.is_set():
            version += 1
            try:
                row = Row(1, "u0", Standing(0.0, 0), 1 + version)
                await index.apply(RANKING, [row], RankStyle.ORDINAL)
                page = await index.top(RANKING, 0, 20, RankStyle.ORDINAL)
                assert [entry.user_id for entry in page.entries] == [f"u{n}" for n in range(9, -1, -1)]
                reads += 1
            except Unavailable:
                pass
            await asyncio.sleep(0.001)

    reading = asyncio.create_task(read())
    await until_so(lambda: reads >= 10, "some reads before")
    await asyncio.to_thread(cluster.move_slot, source, target, slot)
    # Another server holds the ranking now, so it is stale until it is confirmed.
    await until_taken(lambda: is_stale(index))
    ((state,),) = await index.states([RANKING])
    await until_taken(lambda: index.confirm(RANKING, state, Position(at="2")))
    before = reads
    await until_so(lambda: reads > before + 10, "some reads after")
    stop.set()
    await reading
    page = await index.top(RANKING, 0, 20, RankStyle.ORDINAL)
    assert page.total == 10
    await index.close()


def test_command_succeeds_when_all_idle_connections_to_a_cluster_node_are_lost(folder: Path) -> None:
    """As after a restart of the node: the command is repeated on a new connection, not on another old one."""

    async def run(cluster: RedisClusterServers) -> None:
        index = use(cluster.url)
        await index.open("idle")
        await fill(index)
        reads = []
        for _ in range(PIPELINES):
            # Without a pause, the reads share a pipeline.
            reads.append(asyncio.create_task(index.top(RANKING, 0, 5, RankStyle.ORDINAL)))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        await asyncio.gather(*reads)
        for node in cluster.masters():
            node.call("CLIENT", "KILL", "TYPE", "normal")
        assert (await index.top(RANKING, 0, 5, RankStyle.ORDINAL)).total == 10
        await index.close()

    with RedisClusterServers(folder / "cluster") as cluster:
        asyncio.run(run(cluster))


@pytest.mark.parametrize(("kind", "outages"), [("cluster", 1), ("redis", 3)])
def test_lost_claims_and_drops_are_an_outage_of_a_single_redis_only(
    monkeypatch: pytest.MonkeyPatch, kind: str, outages: int
) -> None:
    """In a cluster each key fails separately, so no ranking lacks rows because a claim failed."""

    async def run() -> None:
        index = use(shared_cluster().url if kind == "cluster" else shared_redis().url)
        await index.open(f"claims-{time.time_ns()}")
        gone, other = (Ranking(period, "global", Order.DESC, Ties.EARLIEST, None) for period in (1, 2))

        async def lose(call: Callable[[], Awaitable[object]]) -> None:
            with monkeypatch.context() as patched:
                for way in ("send_to", "send_pipeline"):
                    patched.setattr(RedisConnection, way, lose_connection)
                with pytest.raises(Unavailable):
                    await call()
            await until_taken(call)

        for each in (gone, other):
            await index.load(each, chunks([Row(each.period_id, "u", Standing(1.0, 0), 1)]), Position(at="1"))
        await lose(lambda: index.claim("repair", 0.01))
        await lose(lambda: index.drop(gone))
        await lose(lambda: index.count(other))
        assert index.outages == outages
        await index.close()

    asyncio.run(run())


async def lose_connection(_connection: RedisConnection, *_call: object) -> list[Any]:
    raise redis.ConnectionError("lost")


def test_hundreds_of_cluster_rankings_are_read_concurrently() -> None:
    """One pipeline per node carries all reads, because connections are few."""

    async def run() -> None:
        index = use(shared_cluster().url, timeout_ms=5000)
        await index.open(f"many-{time.time_ns()}")
        rankings = [Ranking(period, "global", Order.DESC, Ties.EARLIEST, None) for period in range(1, 301)]
        await asyncio.gather(
            *(
                index.load(each, chunks([Row(each.period_id, "u", Standing(1.0, 0), 1)]), Position(at="1"))
                for each in rankings
            )
        )
        assert {state.health for (state,) in await index.states(rankings)} == {IndexHealth.READY}
        counts = await asyncio.gather(*(index.count(each) for each in rankings for _ in range(3)))
        assert set(counts) == {1}
        assert index.outages == 0
        await index.close()

    asyncio.run(run())


def test_build_of_a_dead_builder_is_discarded() -> None:
    async def run() -> None:
        index = use(shared_redis().url)
        await index.open(f"abandoned-{time.time_ns()}")
        await fill(index)
        await index.scripts.run(RANKING, 0, "begin_build", "dead", 60_000, "any", "", 0, 8)
        await index.apply(RANKING, make_rows(3, version=2), RankStyle.ORDINAL)
        keys = index.scripts.names.of(RANKING)[0].names
        with shared_redis().client() as client:
            assert client.hlen(keys[6]) == 3
            end_claim(shared_redis(), keys[0])
            await index.apply(RANKING, make_rows(4, version=3), RankStyle.ORDINAL)
            assert not client.exists(keys[6])
        assert await index.count(RANKING) == 10
        await index.close()

    asyncio.run(run())


@pytest.mark.parametrize("kind", ["redis", "cluster"])
def test_periods_of_all_nodes_are_listed_without_other_ledgers(kind: str) -> None:
    """The periods on every node, without those of another ledger."""

    async def run() -> None:
        index, other = use((shared_redis() if kind == "redis" else shared_cluster()).url), use(shared_redis().url)
        mark = time.time_ns()
        await index.open(f"found-{mark}")
        await other.open(f"foun-{mark}")
        rankings = [Ranking(period, "global", Order.DESC, Ties.EARLIEST, None) for period in range(1, 31)]
        for each in rankings:
            await index.load(each, chunks([Row(each.period_id, "u", Standing(1.0, 0), 1)]), Position(at="1"))
        await other.load(rankings[0], chunks([]), Position(at="1"))
        assert {period async for some in index.built() for period, _ in some} == set(range(1, 31))
        for each in rankings[10:]:
            await index.drop(each)
        assert {period async for some in index.built() for period, _ in some} == set(range(1, 11))
        await index.close()
        await other.close()

    asyncio.run(run())
