"""Moderation in embedded and shared mode: hidden users, voided events and refrozen periods."""

import random
from typing import Any

import pytest

from laurels.core.instants import SECOND_US
from laurels.core.people import Hidden
from laurels.core.rewards import Between, Reward
from laurels.core.scores import RankState, Rule
from laurels.core.windows import ALL_TIME
from laurels.errors import Conflict, NotFound
from laurels.ports import Role
from laurels.service.boards.caller import Caller
from laurels.service.laurels import Laurels
from laurels.service.moderation import moderation
from laurels.service.moderation.moderation import EventFilter
from laurels.service.read.reads import Selection
from laurels.service.write.submissions import Submission
from support.model import ModelBoard, ModelPerson
from support.people import ADMIN, HOUR, create, freeze_the_day, held, play, submit, top, void
from support.services import Stage, differences


def test_hidden_user_is_invisible_and_shadow_banned_user_sees_themselves(stage: Stage) -> None:
    async def work(laurels: Laurels) -> None:
        board = await create(laurels)
        await submit(laurels, ("ada", 9), ("bob", 7), ("cyd", 5), region="eu")
        act = await laurels.moderation.hide(ADMIN, "default", board, "ada", Hidden.SHADOW, "bot", "k1")
        again = await laurels.moderation.hide(ADMIN, "default", board, "ada", Hidden.SHADOW, "bot", "k1")
        assert (act.id, act.kind, act.by, act.reason) == (again.id, "hide", "test", "bot")
        assert await top(laurels) == await top(laurels, "region:eu") == [("bob", 7), ("cyd", 5)]
        # Scores are still counted, but nobody else sees them.
        answer = await laurels.submissions.submit(held(laurels), Submission("ada", 1))
        assert (answer.score, answer.rank, answer.rank_state) == (10, None, RankState.HIDDEN)
        for viewer in (None, "bob"):
            with pytest.raises(NotFound):
                await laurels.reads.rank(held(laurels), Selection(viewer=viewer), "ada")
        for segment in ("global", "region:eu"):
            assert await top(laurels, segment, viewer="ada") == [("ada", 10), ("bob", 7), ("cyd", 5)]
        own = (await laurels.reads.rank(held(laurels), Selection(viewer="ada"), "ada")).value
        assert (own.entry.rank, own.total, own.better) == (1, 3, 0)
        around = (await laurels.reads.around(held(laurels), Selection(viewer="ada"), "bob", 1, 1)).value
        assert [place.user_id for place in around.entries] == ["ada", "bob", "cyd"]
        friends, _ = (await laurels.reads.ranks(held(laurels), Selection(viewer="ada"), ["ada", "cyd"])).value
        assert [(friend.entry.user_id, friend.entry.rank) for friend in friends] == [("ada", 1), ("cyd", 3)]
        assert (await laurels.reads.scores_of_user([board], "ada")).value == []
        assert (await laurels.reads.scores_of_user([board], "ada", "bob")).value == []
        seen = (await laurels.reads.scores_of_user([held(laurels)], "ada", "ada")).value
        assert [(each.period.window, each.score, each.rank) for each in seen] == [("daily", 10, 1), ("all", 10, 1)]
        # The user is also hidden in later periods.
        stage.clock.now += 30 * HOUR
        await laurels.jobs.run_due()
        await submit(laurels, ("ada", 3), ("bob", 1))
        assert await top(laurels) == [("bob", 1)]
        assert await differences(laurels) == []
        await laurels.moderation.restore(ADMIN, "default", act.id, "sorry")
        assert await top(laurels) == [("ada", 3), ("bob", 1)]
        assert await top(laurels, "region:eu", window="all") == [("ada", 13), ("bob", 8), ("cyd", 5)]
        # Without a shadow ban, a hidden user is also hidden from themselves.
        await laurels.moderation.hide(ADMIN, "default", None, "bob", Hidden.YES, None, None)
        await create(laurels, "later", windows=(ALL_TIME,))
        await submit(laurels, ("bob", 1), ("cyd", 1), uuid="later")
        assert await top(laurels, uuid="later", viewer="bob") == [("cyd", 1)]
        assert await differences(laurels) == []

    play(stage, work)


def test_freeze_omits_hidden_users_and_ranks_every_segment(stage: Stage) -> None:
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
        assert (found.entry.rank, found.total) == (2, 2)
        spread = (await laurels.reads.distribution(held(laurels), Selection(period=name, segment="region:us"), 2)).value
        assert spread.counts == [1, 1]
        with pytest.raises(NotFound):
            await laurels.reads.rank(held(laurels), Selection(period=name), "a")

    play(stage, work)


def test_voided_events_stop_counting_and_restored_events_count_again(stage: Stage) -> None:
    """Random voids and restores by id, match and user, with every rule: the ranks always equal the model's."""

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
            with pytest.raises(Conflict, match="can't be reverted"):
                await laurels.moderation.restore(ADMIN, "default", restored.id, None)

    play(stage, work)


def test_removed_user_returns_when_the_removal_is_restored(stage: Stage) -> None:
    async def work(laurels: Laurels) -> None:
        await create(laurels)
        await submit(laurels, ("ada", 5), ("bob", 3), region="eu")
        await laurels.submissions.remove_user(ADMIN, held(laurels), "ada", None)
        await submit(laurels, ("ada", 1))
        assert await top(laurels, "region:eu") == [("bob", 3), ("ada", 1)]
        (act, *_) = await laurels.moderation.actions("default", held(laurels), 2**63 - 1, 10)
        assert (act.kind, act.user_id, act.events) == ("remove", "ada", 1)
        await laurels.moderation.restore(ADMIN, "default", act.id, "it was a mistake")
        assert await top(laurels, "region:eu") == [("ada", 6), ("bob", 3)]
        assert await differences(laurels) == []

    play(stage, work)


def test_moderation_action_of_a_crashed_server_is_completed_by_a_job(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(laurels: Laurels) -> None:
        await create(laurels)
        for number in range(30):
            await submit(laurels, (f"user-{number}", 1), metadata={"source": "bot"})
        monkeypatch.setattr(moderation, "STEP_EVENTS", 7)
        ledger_people: Any = laurels.ledger.profiles
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


def test_idempotency_key_reused_for_a_different_action_is_refused(stage: Stage) -> None:
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


def test_finished_moderation_action_is_not_applied_again(stage: Stage) -> None:
    async def work(laurels: Laurels) -> None:
        board = await create(laurels)
        await submit(laurels, ("ada", 5), event_id="e1")
        act = await void(laurels, event_ids=["e1"])
        await laurels.moderation.restore(ADMIN, "default", act.id, None)
        events = await laurels.ledger.profiles.events_by_id(board.id, ["e1"])
        late = await laurels.ledger.profiles.void(board, act, [event.seq for event in events])
        assert (late.events, late.rows) == (0, [])
        assert await top(laurels) == [("ada", 5)]
        # The older of two hide actions can't be restored first; after the newer one is, the older one applies.
        first = await laurels.moderation.hide(ADMIN, "default", board, "ada", Hidden.SHADOW, None, None)
        second = await laurels.moderation.hide(ADMIN, "default", board, "ada", Hidden.YES, None, None)
        with pytest.raises(Conflict, match="hid the user again"):
            await laurels.moderation.restore(ADMIN, "default", first.id, None)
        assert await top(laurels, viewer="ada") == []
        await laurels.moderation.restore(ADMIN, "default", second.id, None)
        assert (await top(laurels), await top(laurels, viewer="ada")) == ([], [("ada", 5)])
        await laurels.moderation.restore(ADMIN, "default", first.id, None)
        assert await top(laurels) == [("ada", 5)]

    play(stage, work)


REWARDS = (
    Reward("gold", {"coins": 100}, windows=("daily",), ranks=Between(1, 1)),
    Reward("any", {"coins": 1}, windows=("daily",), ranks=Between(1, 2)),
)


def test_final_ranks_change_only_by_refreeze_and_old_edition_is_kept(stage: Stage) -> None:
    async def work(laurels: Laurels) -> None:
        await create(laurels, rewards=REWARDS, grace_s=0)
        await submit(laurels, ("cheat", 99), metadata={"source": "bot"}, region="eu")
        await submit(laurels, ("ada", 5), ("bob", 4), region="eu")
        start = stage.clock.now
        name = await freeze_the_day(laurels, stage)
        before = [("cheat", 99), ("ada", 5), ("bob", 4)]
        # Too late for its day, but counted in `all`: it never counts in the day.
        await submit(laurels, ("bob", 50), at=start)
        await void(laurels, match={"source": "bot"})
        assert await top(laurels, window="all") == [("bob", 54), ("ada", 5)]
        assert await top(laurels, period=name) == before
        act = await laurels.seasons.refreeze(ADMIN, held(laurels), name, "a bot", "t1")
        assert act.done_at is None
        # During a refreeze no other action may change which events count.
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
        # Restore the events and refreeze again.
        stage.clock.now += 600 * SECOND_US
        await laurels.jobs.run_due()
        (bots,) = [
            each for each in await laurels.moderation.actions("default", None, 2**63 - 1, 10) if each.kind == "void"
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


def test_refreeze_updates_rewards_and_keeps_claims(stage: Stage) -> None:
    async def work(laurels: Laurels) -> None:
        await create(laurels, rewards=REWARDS, grace_s=0)
        await submit(laurels, ("cheat", 99), metadata={"source": "bot"})
        await submit(laurels, ("ada", 5), event_id="a1")
        await submit(laurels, ("bob", 4))
        name = await freeze_the_day(laurels, stage)
        frozen = await laurels.seasons.period(held(laurels), None, name)
        (grant,) = await laurels.ledger.periods.grants_of_users(frozen.id, ["ada"])
        reward_id = f"{grant.period_id}.{grant.place}.{grant.reward}"
        await void(laurels, match={"source": "bot"})
        await laurels.seasons.refreeze(ADMIN, held(laurels), name, None, "t1")
        # Claim during the refreeze.
        _, first = await laurels.seasons.claim(ADMIN, reward_id)
        assert first
        await laurels.jobs.run_due()
        # A reward id from before the refreeze still works; a reward that is no longer earned is refused.
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
        # A claimed reward that is withdrawn and then earned again stays claimed.
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


def test_reward_claimed_under_an_older_id_stays_claimed(stage: Stage) -> None:
    """Claimed by its first id after one refreeze and withdrawn by the next: a repeated claim is not the first."""

    async def work(laurels: Laurels) -> None:
        await create(laurels, rewards=REWARDS, grace_s=0)
        await submit(laurels, ("ada", 5), event_id="a1")
        await submit(laurels, ("bob", 4))
        name = await freeze_the_day(laurels, stage)
        frozen = await laurels.seasons.period(held(laurels), None, name)
        grants = await laurels.ledger.periods.grants_of_users(frozen.id, ["ada"])
        ids = [f"{grant.period_id}.{grant.place}.{grant.reward}" for grant in grants]
        await laurels.seasons.refreeze(ADMIN, held(laurels), name, None, "t1")
        await laurels.jobs.run_due()
        for reward_id in ids:
            claimed, first = await laurels.seasons.claim(ADMIN, reward_id)
            assert (claimed.grant.user_id, first) == ("ada", True)
        await void(laurels, event_ids=["a1"])
        await laurels.seasons.refreeze(ADMIN, held(laurels), name, None, "t2")
        await laurels.jobs.run_due()
        for reward_id in ids:
            again, first = await laurels.seasons.claim(ADMIN, reward_id)
            assert (again.grant.user_id, again.grant.claimed_at is not None, first) == ("ada", True, False)

    play(stage, work)


def test_refreeze_keeps_the_places_of_erased_users(stage: Stage) -> None:
    """No user moves up or gets a prize because another user was erased."""

    async def work(laurels: Laurels) -> None:
        await create(laurels, rewards=REWARDS, grace_s=0)
        await submit(laurels, ("cheat", 99), metadata={"source": "bot"}, region="eu")
        await submit(laurels, ("ada", 9), ("bob", 7), ("cyd", 5), region="eu")
        # An erasure brings back neither voided events nor hidden users.
        await submit(laurels, ("ada", 50), event_id="void me", region="eu")
        await void(laurels, event_ids=["void me"])
        await submit(laurels, ("hidden", 80), region="eu")
        await laurels.moderation.hide(ADMIN, "default", held(laurels), "hidden", Hidden.YES, None, None)
        name = await freeze_the_day(laurels, stage)
        for user in ("ada", "hidden"):
            await laurels.erasures.erase(ADMIN, "default", user, None, None)
        before = {segment: await top(laurels, segment, period=name) for segment in ("global", "region:eu")}
        await laurels.seasons.refreeze(ADMIN, held(laurels), name, None, "t1")
        await laurels.jobs.run_due()
        assert {segment: await top(laurels, segment, period=name) for segment in before} == before
        # Events that are voided now no longer count, and the erased user keeps the resulting place.
        await void(laurels, match={"source": "bot"})
        await laurels.seasons.refreeze(ADMIN, held(laurels), name, None, "t2")
        await laurels.jobs.run_due()
        for segment in before:
            (first, score), *rest = await top(laurels, segment, period=name)
            assert (first.startswith("erased-"), score, rest) == (True, 9, [("bob", 7), ("cyd", 5)])
        granted = await laurels.seasons.rewards_of_user([held(laurels)], "bob", None, 10)
        assert [each.grant.reward for each in granted] == ["any"]

    play(stage, work)


@pytest.mark.parametrize("rule", list(Rule))
def test_preview_of_a_void_tells_what_it_then_does(stage: Stage, rule: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(laurels: Laurels) -> None:
        await create(laurels, rule=rule)
        for number in range(4):
            for user in ("ada", "bob", "cyd"):
                score = 10 * number + len(user) if user != "cyd" else 1
                bot = {"source": "bot" if user == "bob" or number % 2 else "game"}
                await submit(laurels, (user, score), metadata=bot, event_id=f"{user}-{number}")
            stage.clock.now += SECOND_US
        before = await top(laurels)
        chosen = EventFilter(match={"source": "bot"})
        preview = await laurels.moderation.preview_void(held(laurels), chosen)
        assert (preview.events, preview.users, preview.is_complete, len(preview.sample)) == (8, 3, True, 8)
        assert await top(laurels) == before
        assert {each.user_id: each.score for each in preview.scores} == dict(before)
        await void(laurels, match={"source": "bot"})
        assert {each.user_id: each.after for each in preview.scores if each.after is not None} == dict(
            await top(laurels)
        )
        assert [each.user_id for each in preview.scores if each.after is None] == ["bob"]
        nothing = await laurels.moderation.preview_void(held(laurels), chosen)
        assert (nothing.events, nothing.users, nothing.scores) == (0, 0, [])
        named = await laurels.moderation.preview_void(held(laurels), EventFilter(event_ids=["ada-0", "cyd-2", "no"]))
        assert (named.events, named.users) == (2, 2)
        # It gives up in time, also if nothing matches.
        monkeypatch.setattr(moderation, "WAIT_S", 0.0)
        late = await laurels.moderation.preview_void(held(laurels), EventFilter(match={"source": "nowhere"}))
        assert (late.events, late.is_complete) == (0, False)

    play(stage, work)
