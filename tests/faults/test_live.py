"""Live updates always agree with `top`: with random writes, lost connections, restarts and several servers."""

import asyncio
import contextlib
import random
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from laurels.client import AsyncClient
from laurels.core.instants import to_datetime
from support.live import Seen, Streamer, Watcher, seen
from support.model import ModelBoard
from support.running import ADMIN_KEY, RunningServer
from support.shared import deployed
from support.waiting import until_async, until_so

BOARD = "watched"
WRITES = 250
LIMIT = 6
USERS = [f"player-{number}" for number in range(12)]


@pytest.fixture(params=["embedded", "shared"])
def servers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[RunningServer]]:
    if request.param == "embedded":
        with RunningServer(tmp_path) as server:
            yield [server]
    else:
        with deployed(2) as deployment:
            yield deployment.servers


def test_live_frames_agree_with_top_despite_restarts(servers: list[RunningServer]) -> None:
    seed = random.randrange(10**6)
    print(f"seed: {seed}")
    asyncio.run(_play(servers, random.Random(seed)))


async def _play(servers: list[RunningServer], rng: random.Random) -> None:
    urls = [server.url for server in servers]
    async with contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(AsyncClient(url, ADMIN_KEY, tries=12)) for url in urls]
        await clients[0].create_board("Watched", UUID=BOARD, podId="default", rule="increment", public=True)
        for client in clients:
            await until_async(partial(_known, client), "the board")
        watchers = [Watcher(urls, BOARD, LIMIT, rng.choice(USERS), rng.choice) for _ in range(4)]
        streamers = [Streamer(url, BOARD, LIMIT) for url in urls]
        everybody: list[Watcher | Streamer] = [*watchers, *streamers]
        tasks = [asyncio.create_task(each.run()) for each in everybody]
        stack.callback(lambda: [task.cancel() for task in tasks])

        model = ModelBoard("increment", "desc", "earliest")
        states = [_everybody(model)]
        kills = {WRITES // 3, 2 * WRITES // 3}
        for number in range(WRITES):
            user, score, at = rng.choice(USERS), rng.choice([1, 2, 5, -3]), 1_700_000_000_000_000 + number
            model.submit(f"e{number}", user, score, at)
            # Subscribers may see a score before it is acknowledged.
            states.append(_everybody(model))
            moment = to_datetime(at)
            answer = await rng.choice(clients).submit(BOARD, user, score, event_id=f"e{number}", timestamp=moment)
            assert answer.score == next(one[2] for one in states[-1] if one[0] == user)
            if rng.random() < 0.1:
                rng.choice(watchers).drop()
            if number in kills:
                server = rng.choice(servers)
                server.kill()
                await asyncio.to_thread(server.start)
            if rng.random() < 0.3:
                await asyncio.sleep(rng.random() * 0.2)

        last = seen((await clients[0].top(BOARD, LIMIT)).users)
        assert last == states[-1][:LIMIT]
        await until_so(lambda: all(one.tops[-1] == last for one in everybody), "the last state")
        for watcher in watchers:
            around = seen((await clients[0].around(BOARD, watcher.user_id, above=1, below=1)).users)
            await until_so(partial(_ends_with, watcher, around), "the last neighbours")
            _each_was_there(watcher.arounds, [_around(state, watcher.user_id) for state in states])
            assert watcher.view.total_users == len(states[-1])
        for one in everybody:
            _each_was_there(one.tops, [state[:LIMIT] for state in states])
        assert all(task.done() is False for task in tasks)
        assert sum(watcher.resumed for watcher in watchers) > 0
        print("connections", [(watcher.connections, watcher.resumed, len(watcher.tops)) for watcher in watchers])


async def _known(client: AsyncClient) -> bool:
    return BOARD in {board.uuid async for board in client.each_board()}


def _everybody(model: ModelBoard) -> Seen:
    return tuple((player.user, rank, player.score) for rank, player in enumerate(model.everybody(), 1))


def _around(state: Seen, user: str) -> Seen:
    for number, (name, _, _) in enumerate(state):
        if name == user:
            return state[max(0, number - 1) : number + 2]
    return ()


def _each_was_there(shown: Sequence[Seen], states: Sequence[Seen]) -> None:
    """Check that every shown state existed, in the same order."""
    at = 0
    for one in shown:
        assert one in states[at:], (one, states[at])
        at = states.index(one, at)


def _ends_with(watcher: Watcher, around: Seen) -> bool:
    return watcher.arounds[-1] == around
