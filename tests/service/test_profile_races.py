"""Races on several servers with the same stores: scores, profile changes, hiding and voids at the same time."""

import asyncio
import contextlib
import random
from pathlib import Path

import pytest

from laurels.core.board import Board
from laurels.core.instants import SECOND_US
from laurels.core.people import Hidden, ProfileChange
from laurels.core.scores import Rule
from laurels.core.windows import ALL_TIME, Window
from laurels.service.laurels import Laurels
from laurels.service.moderation.moderation import EventFilter
from laurels.service.read.reads import Selection
from laurels.service.write.submissions import Submission
from support.model import ModelBoard
from support.people import ADMIN, KINDS, held
from support.services import Stage, differences

USERS = [f"user-{number}" for number in range(8)]
BOARDS = {"sums": Rule.INCREMENT, "bests": Rule.BEST}
ROUNDS = 40


class Crowd:
    def __init__(self, servers: list[Laurels], seed: int) -> None:
        self.servers = servers
        self.rng = random.Random(seed)
        self.number = 0
        # event id → (board, user, score, at)
        self.events: dict[str, tuple[str, str, float, int]] = {}
        self.voided: set[str] = set()
        self.told: dict[str, tuple[int, str]] = {}
        self.circles: dict[str, set[str]] = {user: set() for user in USERS}
        self.hidden: set[str] = set()

    def anywhere(self) -> Laurels:
        return self.rng.choice(self.servers)

    async def write(self) -> None:
        for _ in range(ROUNDS):
            uuid = self.rng.choice(list(BOARDS))
            laurels = self.anywhere()
            batch = []
            for user in self.rng.choices(USERS, k=self.rng.choice([1, 2, 12])):
                self.number += 1
                at = laurels.clock.now_us() - self.rng.randrange(1000)
                region = self.rng.choice([None, "eu", "us"])
                batch.append(
                    Submission(user, float(self.rng.randrange(9)), at=at, event_id=f"e{self.number}", region=region)
                )
            for each, answer in zip(
                batch, await laurels.submissions.submit_many(held(laurels, uuid), batch), strict=True
            ):
                assert not isinstance(answer, Exception), answer
                assert each.event_id is not None
                assert each.at is not None
                self.events[each.event_id] = (uuid, each.user_id, float(each.score), each.at)
                if each.region is not None:
                    self.told[each.user_id] = max(self.told.get(each.user_id, (0, "")), (each.at, each.region))

    async def move(self, users: list[str]) -> None:
        """Change circles of these users. No other task does, so their last state is known."""
        for _ in range(ROUNDS):
            user, circle = self.rng.choice(users), self.rng.choice(["red", "blue"])
            joins = circle not in self.circles[user]
            change = ProfileChange(user, join=(circle,)) if joins else ProfileChange(user, leave=(circle,))
            await self.anywhere().profiles.change("default", [change])
            self.circles[user] ^= {circle}

    async def hide(self) -> None:
        for _ in range(ROUNDS // 2):
            user, laurels = self.rng.choice(USERS), self.anywhere()
            hidden = Hidden.NO if user in self.hidden else self.rng.choice([Hidden.YES, Hidden.SHADOW])
            await laurels.moderation.hide(ADMIN, "default", None, user, hidden, None, None)
            self.hidden ^= {user}

    async def void(self) -> None:
        acts: list[tuple[int, set[str]]] = []
        for _ in range(ROUNDS // 2):
            laurels = self.anywhere()
            if acts and self.rng.random() < 0.3:
                act_id, back = acts.pop(self.rng.randrange(len(acts)))
                await laurels.moderation.restore(ADMIN, "default", act_id, None)
                self.voided -= back
                continue
            chosen = self.rng.sample(list(self.events), min(5, len(self.events)))
            for uuid in BOARDS:
                some = [each for each in chosen if self.events[each][0] == uuid and each not in self.voided]
                if some:
                    act = await laurels.moderation.void(
                        ADMIN, held(laurels, uuid), EventFilter(event_ids=some), None, None
                    )
                    assert act.events == len(some)
                    acts.append((act.id, set(some)))
                    self.voided |= set(some)
            await asyncio.sleep(0)

    def expected(self, uuid: str, segment: str) -> list[tuple[str, float]]:
        model = ModelBoard(BOARDS[uuid], "desc", "earliest")
        for event_id, (board, user, score, at) in self.events.items():
            if board == uuid and event_id not in self.voided and user not in self.hidden:
                model.submit(event_id, user, score, at)
        return [(player.user, player.score) for player in model.ranked() if self.is_in(player.user, segment)]

    def is_in(self, user: str, segment: str) -> bool:
        kind, _, name = segment.partition(":")
        if kind == "global":
            return True
        return self.told.get(user, (0, ""))[1] == name if kind == "region" else name in self.circles[user]


@pytest.mark.parametrize("seed", range(4))
def test_concurrent_scores_profile_changes_and_moderation_keep_ranks_exact(tmp_path: Path, seed: int) -> None:
    stage = Stage("shared", tmp_path)

    async def run() -> None:
        async with contextlib.AsyncExitStack() as stack:
            servers = [await stack.enter_async_context(stage.running(repair_interval_ms=200)) for _ in range(3)]
            for uuid, rule in BOARDS.items():
                board = Board(
                    id=0,
                    uuid=uuid,
                    pod_id="default",
                    name=uuid,
                    created_at=0,
                    rule=rule,
                    segments=KINDS,
                    windows=(ALL_TIME, Window("daily")),
                )
                await servers[0].boards.create(board, None)
            for server in servers[1:]:
                await server.boards.reload()
            crowd = Crowd(servers, seed)
            await asyncio.gather(
                *(crowd.write() for _ in range(4)),
                crowd.move(USERS[:4]),
                crowd.move(USERS[4:]),
                crowd.hide(),
                crowd.void(),
            )
            stage.clock.now += SECOND_US
            for server in servers:
                await check(server, crowd)

    asyncio.run(run())


async def check(laurels: Laurels, crowd: Crowd) -> None:
    assert await differences(laurels) == []
    for uuid in BOARDS:
        for window in ("all", "daily"):
            for segment in ("global", "region:eu", "region:us", "circle:red", "circle:blue"):
                page = (await laurels.reads.top(held(laurels, uuid), Selection(window, segment=segment), 0, 100)).value
                assert [(place.user_id, place.score) for place in page.entries] == crowd.expected(uuid, segment)
