"""People on both kinds of stores: segments and moves, hiding, voids, final ranks set right, erasure, names."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from laurels.core.board import Board, RankStyle
from laurels.core.instants import SECOND_US
from laurels.core.people import Hidden, ProfileChange
from laurels.core.rewards import Between, Reward
from laurels.core.scores import Rule
from laurels.core.windows import ALL_TIME, Window
from laurels.errors import Conflict, Invalid, NotFound, Unavailable
from laurels.ports import Act, Role, StoredAct
from laurels.service import moderation, people
from laurels.service.access import Caller
from laurels.service.laurels import Laurels
from laurels.service.moderation import Chosen
from laurels.service.reads import Selection
from laurels.service.submit import RankState, Submission
from support.model import ModelBoard, ModelPerson
from support.services import Stage

HOUR = 3_600 * SECOND_US
ADMIN = Caller(Role.ADMIN, None, "test")
DAILY = Window("daily")
KINDS = ("global", "region", "circle")

Play = Callable[[Laurels], Awaitable[None]]


@pytest.fixture(params=["embedded", "shared"])
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Stage:
    return Stage(request.param, tmp_path)


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow a machine is, an act is waited for."""
    monkeypatch.setattr(moderation, "WAIT_S", 60)


def play(stage: Stage, work: Play, **settings: Any) -> None:
    async def run() -> None:
        async with stage.running(**settings) as laurels:
            await work(laurels)

    asyncio.run(run())


async def create(laurels: Laurels, uuid: str = "board", **fields: Any) -> Board:
    board = Board(
        id=0,
        uuid=uuid,
        pod_id="default",
        name=uuid,
        created_at=0,
        **({"windows": (DAILY, ALL_TIME), "segments": KINDS, "rule": Rule.INCREMENT} | fields),
    )
    return await laurels.boards.create(board, None)


def held(laurels: Laurels, uuid: str = "board") -> Board:
    return laurels.boards.to_read(ADMIN, uuid)


async def differences(laurels: Laurels) -> list[Any]:
    return [each async for checked in laurels.verify() for each in checked.differences]


async def submit(laurels: Laurels, *scores: tuple[str, float], uuid: str = "board", **fields: Any) -> None:
    for user, score in scores:
        await laurels.submissions.submit(held(laurels, uuid), Submission(user, score, **fields))


async def top(laurels: Laurels, segment: str = "global", uuid: str = "board", **selection: Any) -> list[Any]:
    page = (await laurels.reads.top(held(laurels, uuid), Selection(segment=segment, **selection), 0, 1000)).value
    assert len(page.places) == page.total
    return [(place.user_id, place.score) for place in page.places]


async def profile(laurels: Laurels, user: str, **fields: Any) -> None:
    await laurels.people.change("default", [ProfileChange(user, **fields)])


async def void(laurels: Laurels, uuid: str = "board", token: str | None = None, **chosen: Any) -> StoredAct:
    return await laurels.moderation.void(ADMIN, held(laurels, uuid), Chosen(**chosen), "cheated", token)


async def freeze_the_day(laurels: Laurels, stage: Stage) -> str:
    name = next(period.name for period in held(laurels).periods if period.window == "daily")
    for _ in range(26):
        stage.clock.now += HOUR
        await laurels.jobs.run_due()
    return name


def test_each_region_and_circle_has_its_ranks_in_every_window(stage: Stage) -> None:
    async def work(laurels: Laurels) -> None:
        await create(laurels)
        await profile(laurels, "ada", region="eu", circles=("red", "blue"))
        await profile(laurels, "bob", region="us", circles=("red",))
        await submit(laurels, ("ada", 5), ("bob", 7), ("cyd", 9))
        for window in ("daily", "all"):
            assert await top(laurels, window=window) == [("cyd", 9), ("bob", 7), ("ada", 5)]
            assert await top(laurels, "region:eu", window=window) == [("ada", 5)]
            assert await top(laurels, "region:us", window=window) == [("bob", 7)]
            assert await top(laurels, "circle:red", window=window) == [("bob", 7), ("ada", 5)]
            assert await top(laurels, "circle:blue", window=window) == [("ada", 5)]
            assert await top(laurels, "region:mars", window=window) == []
        found = (await laurels.reads.rank(held(laurels), Selection(segment="circle:red"), "ada")).value
        assert (found.place.rank, found.total) == (2, 2)
        with pytest.raises(NotFound, match="circle:red in this period"):
            await laurels.reads.rank(held(laurels), Selection(segment="circle:red"), "cyd")
        for wrong in ("region", "regions:eu", "global:eu", "circle:", "team:red"):
            with pytest.raises(Invalid, match="region:ID"):
                await top(laurels, wrong)
        friends, missing = (
            await laurels.reads.ranks(held(laurels), Selection(segment="circle:red"), ["ada", "cyd", "bob"])
        ).value
        assert [(friend.place.user_id, friend.place.rank, friend.position) for friend in friends] == [
            ("bob", 1, 1),
            ("ada", 2, 2),
        ]
        assert missing == ["cyd"]
        assert await differences(laurels) == []

    play(stage, work)


def test_a_board_without_segments_ranks_the_world_only(stage: Stage) -> None:
    async def work(laurels: Laurels) -> None:
        await create(laurels, segments=("global",))
        await profile(laurels, "ada", region="eu")
        await submit(laurels, ("ada", 5), region="eu")
        with pytest.raises(Invalid, match="segments global"):
            await top(laurels, "region:eu")
        assert await differences(laurels) == []

    play(stage, work)


def test_who_moves_is_moved_on_all_boards_and_the_newest_word_on_a_region_stands(stage: Stage) -> None:
    async def work(laurels: Laurels) -> None:
        now = laurels.clock.now_us()
        await create(laurels)
        await create(laurels, "second", rule=Rule.BEST)
        await submit(laurels, ("ada", 5), ("bob", 6), region="eu", at=now - 9 * SECOND_US)
        await submit(laurels, ("ada", 8), uuid="second")
        assert await top(laurels, "region:eu", uuid="second") == [("ada", 8)]
        # A score on one board tells of a move, and all boards know.
        await submit(laurels, ("ada", 1), region="us", at=now - 5 * SECOND_US)
        assert await top(laurels, "region:eu") == [("bob", 6)]
        assert await top(laurels, "region:us") == [("ada", 6)]
        assert await top(laurels, "region:us", uuid="second") == [("ada", 8)]
        assert await top(laurels, "region:eu", uuid="second") == []
        # An older event that comes late says where the user was then.
        await submit(laurels, ("ada", 1), region="eu", at=now - 7 * SECOND_US)
        assert await top(laurels, "region:us") == [("ada", 7)]
        await profile(laurels, "ada", join=("red",))
        await profile(laurels, "ada", join=("blue",))
        await profile(laurels, "ada", leave=("red",))
        assert await top(laurels, "circle:blue") == [("ada", 7)]
        assert await top(laurels, "circle:red") == []
        await profile(laurels, "ada", region=None, circles=())
        assert await top(laurels, "region:us") == []
        assert await top(laurels, "circle:blue") == []
        assert await top(laurels) == [("ada", 7), ("bob", 6)]
        assert await differences(laurels) == []

    play(stage, work)


def test_circles_of_one_and_of_very_many_come_back_after_a_rebuild(stage: Stage) -> None:
    async def work(laurels: Laurels) -> None:
        board = await create(laurels, windows=(ALL_TIME,))
        users = [f"user-{number:05}" for number in range(3000)]
        for start in range(0, len(users), 1000):
            some = users[start : start + 1000]
            await laurels.people.change(
                "default",
                [ProfileChange(user, region="eu", circles=("everybody", f"own-{user}")) for user in some],
            )
            await laurels.submissions.submit_many(board, [Submission(user, float(int(user[-5:]))) for user in some])

        async def check() -> None:
            assert len(await top(laurels, "circle:own-user-00042")) == 1
            page = (await laurels.reads.top(held(laurels), Selection(segment="circle:everybody"), 2990, 100)).value
            assert (len(page.places), page.total, page.places[-1].user_id) == (10, 3000, "user-00000")
            assert await differences(laurels) == []

        await check()
        rebuilt = [each async for each in laurels.rebuild([held(laurels)])]
        assert [each.differed for each in rebuilt if each.done] == [0]
        await check()

    play(stage, work)


def test_a_capacity_holds_for_each_segment_by_itself(stage: Stage) -> None:
    async def work(laurels: Laurels) -> None:
        await create(laurels, capacity=2, windows=(ALL_TIME,))
        await submit(laurels, ("a", 9), ("b", 8), ("c", 7), region="eu")
        await submit(laurels, ("x", 3), ("y", 2), ("z", 1), region="us")
        assert await top(laurels) == [("a", 9), ("b", 8)]
        assert await top(laurels, "region:us") == [("x", 3), ("y", 2)]
        with pytest.raises(NotFound) as caught:
            await laurels.reads.rank(held(laurels), Selection(segment="region:us"), "z")
        assert caught.value.code == "user_not_ranked"
        await laurels.submissions.remove_user(ADMIN, held(laurels), "x", None)
        assert await top(laurels, "region:us") == [("y", 2), ("z", 1)]
        assert await differences(laurels) == []

    play(stage, work)


def test_who_is_hidden_is_seen_by_nobody_and_a_shadow_by_themselves(stage: Stage) -> None:
    async def work(laurels: Laurels) -> None:
        board = await create(laurels)
        await submit(laurels, ("ada", 9), ("bob", 7), ("cyd", 5), region="eu")
        act = await laurels.moderation.hide(ADMIN, "default", board, "ada", Hidden.SHADOW, "bot", "k1")
        again = await laurels.moderation.hide(ADMIN, "default", board, "ada", Hidden.SHADOW, "bot", "k1")
        assert (act.id, act.kind, act.by, act.reason) == (again.id, "hide", "test", "bot")
        assert await top(laurels) == await top(laurels, "region:eu") == [("bob", 7), ("cyd", 5)]
        # Scores go on being counted, and nobody sees it.
        answer = await laurels.submissions.submit(held(laurels), Submission("ada", 1))
        assert (answer.score, answer.rank, answer.rank_state) == (10, None, RankState.HIDDEN)
        for viewer in (None, "bob"):
            with pytest.raises(NotFound):
                await laurels.reads.rank(held(laurels), Selection(viewer=viewer), "ada")
        for segment in ("global", "region:eu"):
            assert await top(laurels, segment, viewer="ada") == [("ada", 10), ("bob", 7), ("cyd", 5)]
        own = (await laurels.reads.rank(held(laurels), Selection(viewer="ada"), "ada")).value
        assert (own.place.rank, own.total, own.better) == (1, 3, 0)
        around = (await laurels.reads.around(held(laurels), Selection(viewer="ada"), "bob", 1, 1)).value
        assert [place.user_id for place in around.places] == ["ada", "bob", "cyd"]
        friends, _ = (await laurels.reads.ranks(held(laurels), Selection(viewer="ada"), ["ada", "cyd"])).value
        assert [(friend.place.user_id, friend.place.rank) for friend in friends] == [("ada", 1), ("cyd", 3)]
        assert (await laurels.reads.scores_of_user([board], "ada")).value == []
        assert (await laurels.reads.scores_of_user([board], "ada", "bob")).value == []
        seen = (await laurels.reads.scores_of_user([held(laurels)], "ada", "ada")).value
        assert [(each.period.window, each.score, each.rank) for each in seen] == [("daily", 10, 1), ("all", 10, 1)]
        # A period that begins later hides them, too.
        stage.clock.now += 30 * HOUR
        await laurels.jobs.run_due()
        await submit(laurels, ("ada", 3), ("bob", 1))
        assert await top(laurels) == [("bob", 1)]
        assert await differences(laurels) == []
        await laurels.moderation.restore(ADMIN, "default", act.id, "sorry")
        assert await top(laurels) == [("ada", 3), ("bob", 1)]
        assert await top(laurels, "region:eu", window="all") == [("ada", 13), ("bob", 8), ("cyd", 5)]
        # Hidden on purpose: nobody sees them, not even themselves.
        await laurels.moderation.hide(ADMIN, "default", None, "bob", Hidden.YES, None, None)
        await create(laurels, "later", windows=(ALL_TIME,))
        await submit(laurels, ("bob", 1), ("cyd", 1), uuid="later")
        assert await top(laurels, uuid="later", viewer="bob") == [("cyd", 1)]
        assert await differences(laurels) == []

    play(stage, work)


def test_the_freeze_leaves_hidden_users_out_and_ranks_every_segment(stage: Stage) -> None:
    async def work(laurels: Laurels) -> None:
        board = await create(laurels, capacity=3)
        await submit(laurels, ("a", 9), ("b", 9), ("c", 7), ("d", 6), region="eu")
        await submit(laurels, ("x", 3), ("y", 2), region="us")
        await laurels.moderation.hide(ADMIN, "default", board, "a", Hidden.YES, None, None)
        name = await freeze_the_day(laurels, stage)
        assert await top(laurels, period=name) == [("b", 9), ("c", 7), ("d", 6)]
        assert await top(laurels, "region:us", period=name) == [("x", 3), ("y", 2)]
        assert await top(laurels, "region:eu", period=name) == [("b", 9), ("c", 7), ("d", 6)]
        found = (await laurels.reads.rank(held(laurels), Selection(period=name, segment="region:us"), "y")).value
        assert (found.place.rank, found.total) == (2, 2)
        spread = (await laurels.reads.distribution(held(laurels), Selection(period=name, segment="region:us"), 2)).value
        assert spread.counts == [1, 1]
        with pytest.raises(NotFound):
            await laurels.reads.rank(held(laurels), Selection(period=name), "a")

    play(stage, work)


def test_voided_events_never_were_and_restored_ones_always_were(stage: Stage) -> None:
    """Random voids and restores by id, by match and by user, on every rule: always what the model says."""

    async def work(laurels: Laurels) -> None:
        rng = random.Random(7)
        people_of = {user: ModelPerson(region=rng.choice(["eu", "us"])) for user in "abcdef"}
        for rule in Rule:
            uuid = rule.value
            await create(laurels, uuid, rule=rule)
            model = ModelBoard(rule, "desc", "earliest")
            sources: dict[str, str] = {}
            for number in range(60):
                user, score, source = rng.choice("abcdef"), float(rng.randrange(9)), rng.choice(["web", "bot"])
                at = laurels.clock.now_us() - rng.randrange(100)
                await submit(
                    laurels,
                    (user, score),
                    uuid=uuid,
                    at=at,
                    event_id=f"e{number}",
                    metadata={"source": source, "n": number % 3, "deep": {"source": "bot"}},
                    region=people_of[user].region,
                )
                model.submit(f"e{number}", user, score, at)
                sources[f"e{number}"] = source
            every = dict(model.events)
            ids = rng.sample(sorted(every), 10)
            by_id = await void(laurels, uuid, event_ids=[*ids, "unknown"])
            bots = await void(laurels, uuid, match={"source": "bot"})
            ones = await void(laurels, uuid, match={"n": 1, "source": "web"}, user_id="a")
            assert by_id.events == 10
            gone = {key: set(ids) for key in (by_id.id,)}
            gone[bots.id] = {e for e in every if sources[e] == "bot"} - set(ids)
            left = set(every) - gone[by_id.id] - gone[bots.id]
            gone[ones.id] = {e for e in left if int(e[1:]) % 3 == 1 and sources[e] == "web" and every[e][0] == "a"}
            assert (bots.events, ones.events) == (len(gone[bots.id]), len(gone[ones.id]))
            for undone in (None, bots, by_id, ones):
                if undone is not None:
                    restored = await laurels.moderation.restore(ADMIN, "default", undone.id, None)
                    assert restored.events == len(gone.pop(undone.id))
                    repeated = await laurels.moderation.restore(ADMIN, "default", undone.id, None)
                    assert repeated.id == restored.id
                void_now = set().union(*gone.values())
                model.events = {key: event for key, event in every.items() if key not in void_now}
                expected = [(player.user, player.score) for player in model.ranked()]
                for window in ("daily", "all"):
                    assert await top(laurels, uuid=uuid, window=window) == expected
                    for region in ("eu", "us"):
                        assert await top(laurels, f"region:{region}", uuid=uuid, window=window) == [
                            each for each in expected if people_of[each[0]].region == region
                        ]
                assert await differences(laurels) == []
            with pytest.raises(Conflict, match="can't be taken back"):
                await laurels.moderation.restore(ADMIN, "default", restored.id, None)

    play(stage, work)


def test_who_was_removed_comes_back_when_that_is_restored(stage: Stage) -> None:
    async def work(laurels: Laurels) -> None:
        await create(laurels)
        await submit(laurels, ("ada", 5), ("bob", 3), region="eu")
        await laurels.submissions.remove_user(ADMIN, held(laurels), "ada", None)
        await submit(laurels, ("ada", 1))
        assert await top(laurels, "region:eu") == [("bob", 3), ("ada", 1)]
        (act, *_) = await laurels.moderation.acts("default", held(laurels), 2**63 - 1, 10)
        assert (act.kind, act.user_id, act.events) == ("remove", "ada", 1)
        await laurels.moderation.restore(ADMIN, "default", act.id, "it was a mistake")
        assert await top(laurels, "region:eu") == [("ada", 6), ("bob", 3)]
        assert await differences(laurels) == []

    play(stage, work)


def test_an_act_whose_server_died_is_gone_on_with(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(laurels: Laurels) -> None:
        await create(laurels)
        for number in range(30):
            await submit(laurels, (f"user-{number}", 1), metadata={"source": "bot"})
        monkeypatch.setattr(moderation, "STEP_EVENTS", 7)
        ledger_people: Any = laurels._ledger.people
        void_some = ledger_people.void
        steps = 0

        async def dying(*arguments: Any) -> Any:
            nonlocal steps
            steps += 1
            if steps == 3:
                raise RuntimeError("the server died here")
            return await void_some(*arguments)

        ledger_people.void = dying
        with pytest.raises(RuntimeError):
            await void(laurels, token="once", match={"source": "bot"})
        assert len(await top(laurels)) == 16
        assert await differences(laurels) == []
        stage.clock.now += 60 * SECOND_US
        await laurels.jobs.run_due()
        assert await top(laurels) == []
        done = await void(laurels, token="once", match={"source": "bot"})
        assert (done.events, done.done_at) == (30, stage.clock.now)
        assert await differences(laurels) == []

    play(stage, work)


REWARDS = (
    Reward("gold", {"coins": 100}, windows=("daily",), ranks=Between(1, 1)),
    Reward("any", {"coins": 1}, windows=("daily",), ranks=Between(1, 2)),
)


def test_final_ranks_change_only_by_a_refreeze_which_keeps_both(stage: Stage) -> None:
    async def work(laurels: Laurels) -> None:
        await create(laurels, rewards=REWARDS, grace_s=0)
        await submit(laurels, ("cheat", 99), metadata={"source": "bot"}, region="eu")
        await submit(laurels, ("ada", 5), ("bob", 4), region="eu")
        start = stage.clock.now
        name = await freeze_the_day(laurels, stage)
        before = [("cheat", 99), ("ada", 5), ("bob", 4)]
        # Too late for its day, and counted by `all`: it stays out of the day for ever.
        await submit(laurels, ("bob", 50), at=start)
        await void(laurels, match={"source": "bot"})
        assert await top(laurels, window="all") == [("bob", 54), ("ada", 5)]
        assert await top(laurels, period=name) == before
        act = await laurels.seasons.refreeze(ADMIN, held(laurels), name, "a bot", "t1")
        assert act.done_at is None
        # Meanwhile nothing else may change what counts.
        with pytest.raises(Conflict) as caught:
            await void(laurels, event_ids=["x"])
        assert caught.value.code == "refreeze_running"
        again = await laurels.seasons.refreeze(ADMIN, held(laurels), name, "a bot", "t1")
        assert again.id == act.id
        assert await top(laurels, period=name) == before
        await laurels.jobs.run_due()
        after = [("ada", 5), ("bob", 4)]
        for segment in ("global", "region:eu"):
            assert await top(laurels, segment, period=name) == after
            assert await top(laurels, segment, period="previous") == after
            assert await top(laurels, segment, period=f"{name}@1") == before
        assert (await laurels.moderation.find("default", act.id)).done_at is not None
        results = await laurels.seasons.results([held(laurels)], "ada", None, 10)
        assert [(result.period.name, result.final.place) for _, result in results] == [(name, 1)]
        # And back again.
        stage.clock.now += 600 * SECOND_US
        await laurels.jobs.run_due()
        (bots,) = [
            each for each in await laurels.moderation.acts("default", None, 2**63 - 1, 10) if each.kind == "void"
        ]
        await laurels.moderation.restore(ADMIN, "default", bots.id, None)
        await laurels.seasons.refreeze(ADMIN, held(laurels), name, None, "t2")
        await laurels.jobs.run_due()
        assert await top(laurels, period=name) == before
        assert await top(laurels, period=f"{name}@1") == before
        assert await top(laurels, period=f"{name}@2") == after
        listed = await laurels.seasons.page(held(laurels), "daily", None, 10)
        assert {f"{name}@1", f"{name}@2", name} <= {period.name for period in listed}
        with pytest.raises(Conflict, match="no final ranks"):
            await laurels.seasons.refreeze(ADMIN, held(laurels), "current", None, "t3")
        assert await differences(laurels) == []

    play(stage, work)


def test_rewards_follow_a_refreeze_and_are_claimed_once(stage: Stage) -> None:
    async def work(laurels: Laurels) -> None:
        await create(laurels, rewards=REWARDS, grace_s=0)
        await submit(laurels, ("cheat", 99), metadata={"source": "bot"})
        await submit(laurels, ("ada", 5), event_id="a1")
        await submit(laurels, ("bob", 4))
        name = await freeze_the_day(laurels, stage)
        frozen = await laurels.seasons.period(held(laurels), None, name)
        (grant,) = await laurels._ledger.seasons.grants_of_users(frozen.id, ["ada"])
        reward_id = f"{grant.period_id}.{grant.place}.{grant.reward}"
        await void(laurels, match={"source": "bot"})
        await laurels.seasons.refreeze(ADMIN, held(laurels), name, None, "t1")
        # Claimed while it goes on.
        _, first = await laurels.seasons.claim(ADMIN, reward_id)
        assert first
        await laurels.jobs.run_due()
        # An id that was told before still leads to the reward; and what is not earned any more is refused.
        again, first = await laurels.seasons.claim(ADMIN, reward_id)
        assert (again.grant.user_id, again.grant.place, first) == ("ada", 1, False)
        assert again.grant.period_id != grant.period_id
        with pytest.raises(Conflict) as caught:
            await laurels.seasons.claim(ADMIN, f"{grant.period_id}.1.gold")
        assert caught.value.code == "reward_withdrawn"
        with pytest.raises(NotFound):
            await laurels.seasons.claim(Caller(Role.SERVER, "another", "k"), f"{grant.period_id}.1.gold")
        granted = await laurels.seasons.rewards_of_user([held(laurels)], "ada", None, 10)
        claimed = {each.grant.reward: each.grant.claimed_at is not None for each in granted}
        assert claimed == {"gold": False, "any": True}
        assert await laurels.seasons.rewards_of_user([held(laurels)], "cheat", None, 10) == []
        (results,) = await laurels.seasons.results([held(laurels)], "ada", None, 10)
        assert (results[1].period.name, results[1].final.place) == (name, 1)
        # Whoever lost a reward that was claimed, and wins it again, has claimed it.
        act = await void(laurels, event_ids=["a1"])
        for token in ("t2", "t3"):
            await laurels.seasons.refreeze(ADMIN, held(laurels), name, None, token)
            await laurels.jobs.run_due()
            kept, first = await laurels.seasons.claim(ADMIN, reward_id)
            assert (kept.grant.user_id, kept.grant.claimed_at is not None, first) == ("ada", True, False)
            if token == "t2":
                assert await laurels.seasons.rewards_of_user([held(laurels)], "ada", None, 10) == []
                await laurels.moderation.restore(ADMIN, "default", act.id, None)
        granted = await laurels.seasons.rewards_of_user([held(laurels)], "ada", None, 10)
        assert {each.grant.reward: each.grant.claimed_at is not None for each in granted} == claimed
        assert {each.grant.granted_at for each in granted if each.grant.reward == "any"} == {grant.granted_at}

    play(stage, work)


def test_an_erased_user_is_gone_for_good(stage: Stage) -> None:
    async def work(laurels: Laurels) -> None:
        board = await create(laurels, grace_s=0)
        await profile(laurels, "ada", display_name="Ada", region="eu", circles=("red",))
        await submit(laurels, ("ada", 9), event_id="e1", at=stage.clock.now, metadata={"device": "ada's phone"})
        await submit(laurels, ("bob", 7), ("cyd", 5))
        name = await freeze_the_day(laurels, stage)
        await submit(laurels, ("ada", 3), event_id="e2", metadata={"source": "bot"})
        await submit(laurels, ("bob", 2))
        bots = await void(laurels, match={"source": "bot"})
        await laurels.moderation.hide(ADMIN, "default", board, "ada", Hidden.SHADOW, None, None)
        person = [line async for line in laurels.erasures.export("default", "ada")]
        assert [line["kind"] for line in person] == [
            "profile", "hidden", "score", "event", "event", "result", "act",
        ]  # fmt: skip
        erased_at = stage.clock.now
        act = await laurels.erasures.erase(ADMIN, "default", "ada", "asked for it", None)
        assert (act.kind, act.events) == ("erase", 2)
        assert [line async for line in laurels.erasures.export("default", "ada")] == []
        assert await top(laurels) == [("bob", 2)]
        assert await top(laurels, window="all") == [("bob", 9), ("cyd", 5)]
        # Final ranks of the others stay as they were, and so does the total.
        finals = await top(laurels, period=name)
        assert [score for _, score in finals] == [9, 7, 5]
        assert finals[0][0].startswith("erased-")
        # Nothing brings it back: not a repetition, not a rebuild, not the restore of an act.
        for event_id, at in (("e1", erased_at - 100), ("e2", erased_at - 1), ("new", erased_at - 1)):
            with pytest.raises(Conflict) as caught:
                await submit(laurels, ("ada", 9), event_id=event_id, at=at)
            assert caught.value.code == "user_erased"
        with pytest.raises(Conflict) as caught:
            await submit(laurels, ("ada", 3), event_id="e2")
        assert caught.value.code == "event_conflict"
        await laurels.moderation.restore(ADMIN, "default", bots.id, None)
        with pytest.raises(Conflict, match="can't be taken back"):
            await laurels.moderation.restore(ADMIN, "default", act.id, None)
        _ = [each async for each in laurels.rebuild(laurels.boards.all())]
        assert await top(laurels, window="all") == [("bob", 9), ("cyd", 5)]
        stage.clock.now += 300 * SECOND_US
        await laurels.jobs.run_due()
        for period in held(laurels).periods:
            assert await laurels._index.held(board.ranking(period.id), ["ada"]) == [None]
            rows = [row async for chunk in laurels._ledger.rows(period.id) for row in chunk]
            assert "ada" not in {row.user_id for row in rows}
        assert await differences(laurels) == []
        # Who plays on starts anew, and is nobody's old acquaintance.
        await submit(laurels, ("ada", 1))
        assert await top(laurels) == [("bob", 2), ("ada", 1)]
        assert await top(laurels, "region:eu") == []
        assert await differences(laurels) == []

    play(stage, work)


def test_nobody_is_erased_while_final_ranks_are_written(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(laurels: Laurels) -> None:
        await create(laurels, grace_s=0)
        await submit(laurels, ("ada", 1))
        name = await freeze_the_day(laurels, stage)
        await laurels.seasons.refreeze(ADMIN, held(laurels), name, None, "t")
        monkeypatch.setattr("laurels.service.erasure.TRIES", 2)
        with pytest.raises(Conflict) as caught:
            await laurels.erasures.erase(ADMIN, "default", "ada", None, None)
        assert caught.value.code == "freeze_running"
        await laurels.jobs.run_due()
        await laurels.erasures.erase(ADMIN, "default", "ada", None, None)
        assert [user[:7] for user, _ in await top(laurels, period=name)] == ["erased-"]

    play(stage, work)


def test_an_erasure_waits_for_acts_and_leaves_no_name_behind(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(laurels: Laurels) -> None:
        board = await create(laurels)
        await submit(laurels, ("ada", 5), ("bob", 3), metadata={"source": "web"})
        await submit(laurels, ("ada", 1), event_id="bad", metadata={"source": "bot"})
        begun = await laurels._ledger.people.begin_act(
            "default",
            board.id,
            "ada",
            Act("void/lost/", "void", "k", stage.clock.now, "ada did it", '{"match":{"n":1}}'),
        )
        monkeypatch.setattr("laurels.service.erasure.TRIES", 2)
        with pytest.raises(Conflict, match="an act is going on"):
            await laurels.erasures.erase(ADMIN, "default", "ada", None, "key")
        stage.clock.now += 60 * SECOND_US
        await laurels.jobs.run_due()
        assert (await laurels.moderation.find("default", begun.id)).events == 0
        await laurels.moderation.hide(ADMIN, "default", board, "ada", Hidden.YES, "ada cheats", "token")
        first = await laurels.erasures.erase(ADMIN, "default", "ada", None, "key")
        assert (await laurels.erasures.erase(ADMIN, "default", "ada", None, "key")).id == first.id
        # The same key for somebody else is another act.
        assert (await laurels.erasures.erase(ADMIN, "default", "bob", None, "key")).id != first.id
        assert await top(laurels) == []
        for act in await laurels.moderation.acts("default", None, 2**63 - 1, 100):
            assert "ada" not in f"{act.user_id} {act.reason} {act.detail}"

    play(stage, work)


def test_who_plays_on_after_an_erasure_loses_nothing_to_the_sweep(stage: Stage) -> None:
    async def work(laurels: Laurels) -> None:
        await create(laurels)
        await submit(laurels, ("ada", 5))
        await laurels.erasures.erase(ADMIN, "default", "ada", None, None)
        stage.clock.now += SECOND_US
        await submit(laurels, ("ada", 2), event_id="again", region="eu")
        act = await void(laurels, event_ids=["again"])
        stage.clock.now += 300 * SECOND_US
        await laurels.jobs.run_due()
        await laurels.moderation.restore(ADMIN, "default", act.id, None)
        assert await top(laurels) == await top(laurels, "region:eu") == [("ada", 2)]
        assert await differences(laurels) == []

    play(stage, work)


def test_what_waited_for_the_index_does_not_bring_an_erased_user_back(tmp_path: Path) -> None:
    stage = Stage("shared", tmp_path)

    async def work(laurels: Laurels) -> None:
        board = await create(laurels, windows=(ALL_TIME,))
        await submit(laurels, ("ada", 5), ("bob", 4))
        (row,) = await laurels._ledger.rows_of_user([board.periods[0].id], "ada")
        await laurels.erasures.erase(ADMIN, "default", "ada", None, None)
        stage.clock.now += 300 * SECOND_US
        await laurels.jobs.run_due()
        laurels._healer.mend(held(laurels), board.ranking(board.periods[0].id), [row])
        for _ in range(100):
            if not laurels._healer.is_mending:
                break
            await asyncio.sleep(0.05)
        assert await top(laurels) == [("bob", 4)]
        assert await differences(laurels) == []

    play(stage, work)


def test_an_act_under_a_key_that_did_something_else_is_refused(stage: Stage) -> None:
    async def work(laurels: Laurels) -> None:
        board = await create(laurels)
        await submit(laurels, ("ada", 5), event_id="e1")
        await submit(laurels, ("ada", 1), event_id="e2")
        await void(laurels, token="k", event_ids=["e1"])
        with pytest.raises(Conflict) as caught:
            await void(laurels, token="k", event_ids=["e2"])
        assert caught.value.code == "act_conflict"
        await laurels.moderation.hide(ADMIN, "default", board, "ada", Hidden.SHADOW, None, "k")
        with pytest.raises(Conflict) as caught:
            await laurels.moderation.hide(ADMIN, "default", board, "ada", Hidden.YES, None, "k")
        assert caught.value.code == "act_conflict"
        assert await top(laurels, viewer="ada") == [("ada", 1)]

    play(stage, work)


def test_an_act_that_another_server_finished_does_nothing_more(stage: Stage) -> None:
    async def work(laurels: Laurels) -> None:
        board = await create(laurels)
        await submit(laurels, ("ada", 5), event_id="e1")
        act = await void(laurels, event_ids=["e1"])
        await laurels.moderation.restore(ADMIN, "default", act.id, None)
        events = await laurels._ledger.people.events_by_id(board.id, ["e1"])
        late = await laurels._ledger.people.void(board, act, [event.seq for event in events])
        assert (late.events, late.rows) == (0, [])
        assert await top(laurels) == [("ada", 5)]
        # Of two that hid somebody, the older can't show them, and without the newer one they are hidden as before.
        first = await laurels.moderation.hide(ADMIN, "default", board, "ada", Hidden.SHADOW, None, None)
        second = await laurels.moderation.hide(ADMIN, "default", board, "ada", Hidden.YES, None, None)
        with pytest.raises(Conflict, match="hidden again since"):
            await laurels.moderation.restore(ADMIN, "default", first.id, None)
        assert await top(laurels, viewer="ada") == []
        await laurels.moderation.restore(ADMIN, "default", second.id, None)
        assert (await top(laurels), await top(laurels, viewer="ada")) == ([], [("ada", 5)])
        await laurels.moderation.restore(ADMIN, "default", first.id, None)
        assert await top(laurels) == [("ada", 5)]

    play(stage, work)


def test_names_come_from_a_bounded_cache_with_one_query_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Embedded: a shared feed tells what this server changed to it as well, whenever that comes."""

    async def work(laurels: Laurels) -> None:
        asked: list[int] = []
        ledger_people: Any = laurels._ledger.people
        read = ledger_people.profiles

        async def counted(pod_id: str, user_ids: list[str]) -> Any:
            asked.append(len(user_ids))
            return await read(pod_id, user_ids)

        ledger_people.profiles = counted
        users = [f"user-{number}" for number in range(500)]
        assert await laurels.people.names("default", users) == {}
        # A pod without names is not asked for any.
        assert asked == []
        await laurels.people.change("default", [ProfileChange(user, display_name=user.upper()) for user in users[:400]])
        names = await laurels.people.names("default", users)
        assert {user: named.display_name for user, named in names.items()} == {
            user: user.upper() for user in users[:400]
        }
        assert asked == [500]
        assert await laurels.people.names("default", users[::-1]) == names
        assert asked == [500]
        await profile(laurels, "user-7", display_name="Seven")
        assert (await laurels.people.names("default", users))["user-7"].display_name == "Seven"
        assert asked == [500, 1]
        monkeypatch.setattr(people, "KEPT_NAMES", 10)
        await laurels.people.names("default", ["stranger"])
        assert len(laurels.people._names) == 10

    play(Stage("embedded", tmp_path), work)


def test_a_name_that_is_changed_on_one_server_is_another_on_all(tmp_path: Path) -> None:
    stage = Stage("shared", tmp_path)

    async def run() -> None:
        async with stage.running() as one, stage.running() as other:
            for name in ("Ada", "Countess", None):
                await profile(one, "ada", display_name=name)
                for _ in range(200):
                    names = await other.people.names("default", ["ada"])
                    if names.get("ada", people.NOBODY).display_name == name:
                        break
                    await asyncio.sleep(0.05)
                else:
                    raise AssertionError(names)

    asyncio.run(run())


def test_ranks_are_shown_without_names_while_the_ledger_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(laurels: Laurels) -> None:
        await profile(laurels, "ada", display_name="Ada")
        assert (await laurels.people.names("default", ["ada"]))["ada"].display_name == "Ada"
        ledger_people: Any = laurels._ledger.people
        asked = 0

        async def silent(*_: Any) -> Any:
            nonlocal asked
            asked += 1
            await asyncio.sleep(0.5)
            raise Unavailable("ledger_unavailable", "It does not answer.")

        monkeypatch.setattr(ledger_people, "profiles", silent)
        monkeypatch.setattr(people, "WAIT_S", 0.05)
        for _ in range(5):
            names = await laurels.people.names("default", ["ada", "bob"])
            assert [named.display_name for named in names.values()] == ["Ada"]
        assert asked == 1

    play(Stage("embedded", tmp_path), work)


@pytest.mark.parametrize("style", list(RankStyle))
def test_every_read_of_a_page_is_a_number_of_queries_that_does_not_grow(stage: Stage, style: RankStyle) -> None:
    """Index calls and ledger queries are counted at the adapters, for pages of 1 and of 500."""

    async def work(laurels: Laurels) -> None:
        board = await create(laurels, windows=(ALL_TIME, DAILY))
        users = [f"user-{number}" for number in range(600)]
        await laurels.people.change("default", [ProfileChange(user, display_name=user, region="eu") for user in users])
        await laurels.submissions.submit_many(board, [Submission(user, 1.0) for user in users])
        calls = count_calls(laurels)

        async def cost(read: Callable[[], Awaitable[Any]]) -> int:
            laurels.people._hear(None)
            await laurels.people.names("default", ["warm"])
            calls[0] = 0
            await read()
            return calls[0]

        for segment in ("global", "region:eu"):
            selection = Selection(segment=segment, style=style, viewer="nobody")

            async def named(places: list[Any]) -> None:
                await laurels.people.names("default", [place.user_id for place in places])

            async def top_of(limit: int, chosen: Selection = selection) -> None:
                await named((await laurels.reads.top(held(laurels), chosen, 0, limit)).value.places)

            async def around_of(width: int, chosen: Selection = selection) -> None:
                found = (await laurels.reads.around(held(laurels), chosen, "user-300", width, width)).value
                await named(found.places)

            async def ranks_of(number: int, chosen: Selection = selection) -> None:
                friends, _ = (await laurels.reads.ranks(held(laurels), chosen, users[:number])).value
                await named([friend.place for friend in friends])

            # Dense ranks may have to be prepared.
            await until_prepared(laurels, selection)
            for read in (top_of, around_of, ranks_of):
                costs = [await cost(lambda n=n, read=read: read(n)) for n in (2, 250, 500)]  # type: ignore[misc]
                assert len(set(costs)) == 1, (read.__name__, costs)
                assert costs[0] <= 4

    play(stage, work)


async def until_prepared(laurels: Laurels, selection: Selection) -> None:
    for _ in range(200):
        if not (await laurels.reads.top(held(laurels), selection, 0, 1)).degraded:
            return
        await asyncio.sleep(0.05)
    raise AssertionError


def count_calls(laurels: Laurels) -> list[int]:
    calls = [0]
    own = asyncio.current_task()
    ledger: Any = laurels._ledger
    index: Any = laurels._index
    store = ledger._pool if hasattr(ledger, "_pool") else ledger._threads
    places = [(store, "read"), (store, "scan")] if hasattr(ledger, "_pool") else [(store, "read")]
    if hasattr(index, "_connection"):
        places.append((index._connection, "run"))
    for place, name in places:
        real = getattr(place, name)

        async def counted(*arguments: Any, real: Any = real, **options: Any) -> Any:
            # Others heal and look after the registry meanwhile.
            task = asyncio.current_task()
            calls[0] += task is own or (task is not None and task.get_name() == "read names")
            return await real(*arguments, **options)

        setattr(place, name, counted)
    return calls
