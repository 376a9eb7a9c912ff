"""A long run: writers, readers, live viewers and a game on Kafka, while PostgreSQL, Redis and Kafka fail.

The servers run through. Their memory and their open files must not grow, and at the end every acknowledged event
counts once and `verify` finds no differences. `make soak` runs this for an hour, `make soak SECONDS=600` for ten
minutes.
"""

import contextlib
import os
import random
import threading
import time
from collections.abc import Callable
from statistics import median

import httpx
import psutil

from support.checks import check_events, check_healed
from support.kafka import Game, KafkaServer
from support.kafka_game import Producer, check, impatient, set_up
from support.running import ADMIN_KEY, PLAIN, RunningServer
from support.shared import Deployment, deployed
from support.stores import RedisServer, temporary_folder
from support.traffic import Traffic

MIB = 2**20
SECONDS = float(os.environ.get("LAURELS_TEST_SOAK", "25"))
SERVERS = 2
VIEWERS = 4
# How often a store fails, and how often memory is measured.
FAULT_EVERY_S = max(4.0, SECONDS / 200)
LOOK_EVERY_S = max(0.5, SECONDS / 400)
# In the first part, caches fill. Then the last quarter is compared with the quarter after that part.
WARM_UP = 0.25
GROWTH_MIB, GROWTH = 25, 1.1
FILES = 40


class Viewer(threading.Thread):
    """Follows a board for a few seconds, and then another one."""

    def __init__(self, servers: list[RunningServer], boards: list[str], seed: int) -> None:
        super().__init__(name="viewer")
        self._servers, self._boards = servers, boards
        self._rng = random.Random(seed)
        self.stopping = threading.Event()
        self.frames = 0

    def run(self) -> None:
        while not self.stopping.is_set():
            with contextlib.suppress(httpx.HTTPError):
                self._follow()

    def _follow(self) -> None:
        server, board = self._rng.choice(self._servers), self._rng.choice(self._boards)
        ends = time.monotonic() + self._rng.uniform(0.5, 5)
        url = f"{server.url}/api/v1/leaderboards/{board}/stream?limit=5&userId=user-1"
        headers = {"X-API-Key": ADMIN_KEY}
        with httpx.stream("GET", url, headers=headers, verify=PLAIN, timeout=20) as stream:
            for line in stream.iter_lines():
                self.frames += line.startswith("event: ")
                if time.monotonic() > ends or self.stopping.is_set():
                    return

    def stop(self) -> None:
        self.stopping.set()
        self.join(timeout=60)
        assert not self.is_alive()


class Sizes:
    """The memory and the open files of the servers over time."""

    def __init__(self, servers: list[RunningServer]) -> None:
        self._processes = [psutil.Process(server.pid) for server in servers]
        self.memory: list[list[int]] = [[] for _ in servers]
        self.files: list[list[int]] = [[] for _ in servers]

    def look(self) -> None:
        for number, process in enumerate(self._processes):
            self.memory[number].append(process.memory_info().rss)
            self.files[number].append(process.num_fds())

    def check(self) -> None:
        for memory, files in zip(self.memory, self.files, strict=True):
            count = len(memory)
            begin, quarter = int(count * WARM_UP), count // 4
            grown = [(median(values[begin : begin + quarter]), median(values[-quarter:])) for values in (memory, files)]
            (before, after), (files_before, files_after) = grown
            print(
                f"memory {before / MIB:.0f} → {after / MIB:.0f} MiB, at most {max(memory) / MIB:.0f}; "
                f"open files {files_before:.0f} → {files_after:.0f}, at most {max(files)}; {count} measurements"
            )
            assert after <= before * GROWTH + GROWTH_MIB * MIB
            assert files_after <= files_before + FILES


def faults(deployment: Deployment, kafka: KafkaServer, rng: random.Random) -> list[Callable[[], None]]:
    postgres, redis = deployment.postgres, deployment.redis
    assert isinstance(redis, RedisServer)

    def pause(kill: Callable[[], object], revive: Callable[[], object]) -> Callable[[], None]:
        def strike() -> None:
            kill()
            time.sleep(rng.uniform(0.1, 2.0))
            revive()

        return strike

    return [
        pause(postgres.kill, postgres.start),
        pause(postgres.freeze, postgres.thaw),
        pause(redis.kill, redis.start),
        pause(redis.freeze, redis.thaw),
        lambda: redis.call("FLUSHALL"),
        pause(kafka.kill, kafka.start),
        pause(kafka.freeze, kafka.thaw),
    ]


def test_servers_stay_small_and_right_through_outages_of_all_stores() -> None:
    seed = int(os.environ.get("LAURELS_TEST_SEED", str(random.randrange(2**32))))
    print(f"\nLAURELS_TEST_SEED={seed}, {SECONDS:g} s")
    rng = random.Random(seed)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(temporary_folder())
        kafka = stack.enter_context(KafkaServer(folder / "kafka"))
        config = str(impatient(folder))
        deployment = stack.enter_context(
            deployed(SERVERS, kafka=kafka.servers, kafka_config=config, ingest="1", log_level="error")
        )
        servers = deployment.servers
        client = stack.enter_context(servers[0].client())
        game = Game(kafka.servers)
        set_up(client, game)
        traffic = Traffic(servers, seed)
        traffic.make_boards()
        viewers = [
            Viewer(servers, [board.uuid for board in traffic.boards], seed + number) for number in range(VIEWERS)
        ]
        producer = Producer(kafka.servers, rng)
        traffic.start()
        producer.start()
        for viewer in viewers:
            viewer.start()
        sizes = Sizes(servers)
        strikes = faults(deployment, kafka, rng)
        done = 0
        ends = time.monotonic() + SECONDS
        fault_at = time.monotonic() + FAULT_EVERY_S
        try:
            while time.monotonic() < ends and not traffic.problems:
                time.sleep(LOOK_EVERY_S)
                sizes.look()
                if time.monotonic() >= fault_at:
                    rng.choice(strikes)()
                    done += 1
                    fault_at = time.monotonic() + FAULT_EVERY_S
        finally:
            for viewer in viewers:
                viewer.stop()
            traffic.stop()
            producer.stop()
        print(
            f"{done} faults; {len(traffic.acknowledged)} events by HTTP and {producer.events} by Kafka, "
            f"{traffic.reads} reads, {sum(viewer.frames for viewer in viewers)} frames"
        )
        assert traffic.problems == []
        assert all(server.is_running for server in servers)
        assert done
        assert min(len(traffic.acknowledged), producer.events, *(viewer.frames for viewer in viewers)) > 0
        check(client, game, producer, {"data_dir": deployment.folder, "url": servers[0].url, "key": ADMIN_KEY})
        check_healed(deployment, [board.uuid for board in traffic.boards])
        check_events(servers[0], traffic)
        sizes.check()
