"""Erasures in embedded and shared mode: erased data never returns, and other users are not affected."""

from pathlib import Path

import pytest

from laurels.core.instants import SECOND_US
from laurels.core.people import Hidden
from laurels.core.windows import ALL_TIME
from laurels.errors import Conflict
from laurels.ports import ModerationAction
from laurels.service.laurels import Laurels
from support.people import ADMIN, create, freeze_the_day, held, play, profile, submit, top, void
from support.services import Stage, differences
from support.waiting import until_so


def test_erased_user_data_never_returns(stage: Stage) -> None:
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
            "profile", "hidden", "score", "event", "event", "result", "result", "result", "act",
        ]  # fmt: skip
        assert [(line["segment"], line["rank"]) for line in person if line["kind"] == "result"] == [
            ("circle:red", 1), ("global", 1), ("region:eu", 1),
        ]  # fmt: skip
        erased_at = stage.clock.now
        act = await laurels.erasures.erase(ADMIN, "default", "ada", "asked for it", None)
        assert (act.kind, act.events) == ("erase", 2)
        assert [line async for line in laurels.erasures.export("default", "ada")] == []
        assert await top(laurels) == [("bob", 2)]
        assert await top(laurels, window="all") == [("bob", 9), ("cyd", 5)]
        # The final ranks of other users and the total do not change.
        finals = await top(laurels, period=name)
        assert [score for _, score in finals] == [9, 7, 5]
        assert finals[0][0].startswith("erased-")
        # Repeated events, a rebuild and a restored moderation action do not bring the data back.
        for event_id, at in (("e1", erased_at - 100), ("e2", erased_at - 1), ("new", erased_at - 1)):
            with pytest.raises(Conflict) as caught:
                await submit(laurels, ("ada", 9), event_id=event_id, at=at)
            assert caught.value.code == "user_erased"
        with pytest.raises(Conflict) as caught:
            await submit(laurels, ("ada", 3), event_id="e2")
        assert caught.value.code == "event_conflict"
        await laurels.moderation.restore(ADMIN, "default", bots.id, None)
        with pytest.raises(Conflict, match="can't be reverted"):
            await laurels.moderation.restore(ADMIN, "default", act.id, None)
        _ = [each async for each in laurels.rebuild(laurels.boards.all())]
        assert await top(laurels, window="all") == [("bob", 9), ("cyd", 5)]
        stage.clock.now += 300 * SECOND_US
        await laurels.jobs.run_due()
        for period in held(laurels).periods:
            assert await laurels.index.held(board.ranking(period.id), ["ada"]) == [None]
            rows = [row async for chunk in laurels.ledger.rows(period.id) for row in chunk]
            assert "ada" not in {row.user_id for row in rows}
        assert await differences(laurels) == []
        # A user who plays again starts from zero and without the old region.
        await submit(laurels, ("ada", 1))
        assert await top(laurels) == [("bob", 2), ("ada", 1)]
        assert await top(laurels, "region:eu") == []
        assert await differences(laurels) == []

    play(stage, work)


def test_erasure_is_refused_while_a_freeze_is_running(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(laurels: Laurels) -> None:
        await create(laurels, grace_s=0)
        await submit(laurels, ("ada", 1))
        name = await freeze_the_day(laurels, stage)
        await laurels.seasons.refreeze(ADMIN, held(laurels), name, None, "t")
        monkeypatch.setattr("laurels.service.people.erasures.TRIES", 2)
        with pytest.raises(Conflict) as caught:
            await laurels.erasures.erase(ADMIN, "default", "ada", None, None)
        assert caught.value.code == "freeze_running"
        await laurels.jobs.run_due()
        await laurels.erasures.erase(ADMIN, "default", "ada", None, None)
        assert [user[:7] for user, _ in await top(laurels, period=name)] == ["erased-"]

    play(stage, work)


def test_erasure_waits_for_moderation_actions_and_removes_the_user_id(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(laurels: Laurels) -> None:
        board = await create(laurels)
        await submit(laurels, ("zoe", 5), ("bob", 3), metadata={"source": "web"})
        await submit(laurels, ("zoe", 1), event_id="bad", metadata={"source": "bot"})
        begun = await laurels.ledger.profiles.begin_action(
            "default",
            board.id,
            "zoe",
            ModerationAction("void/lost/", "void", "k", stage.clock.now, "zoe did it", '{"match":{"n":1}}'),
        )
        monkeypatch.setattr("laurels.service.people.erasures.TRIES", 2)
        with pytest.raises(Conflict, match="an act is running"):
            await laurels.erasures.erase(ADMIN, "default", "zoe", None, "key")
        stage.clock.now += 60 * SECOND_US
        await laurels.jobs.run_due()
        assert (await laurels.moderation.find("default", begun.id)).events == 0
        await laurels.moderation.hide(ADMIN, "default", board, "zoe", Hidden.YES, "zoe cheats", "token")
        first = await laurels.erasures.erase(ADMIN, "default", "zoe", None, "key")
        assert (await laurels.erasures.erase(ADMIN, "default", "zoe", None, "key")).id == first.id
        # The same key for another user is another action.
        assert (await laurels.erasures.erase(ADMIN, "default", "bob", None, "key")).id != first.id
        assert await top(laurels) == []
        for act in await laurels.moderation.actions("default", None, 2**63 - 1, 100):
            # A stand-in is "erased-" and hex digits, so it can't contain the name by chance.
            assert "zoe" not in f"{act.user_id} {act.reason} {act.detail}"

    play(stage, work)


def test_sweep_keeps_data_that_a_user_submits_after_the_erasure(stage: Stage) -> None:
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


def test_queued_rows_do_not_bring_back_an_erased_user(tmp_path: Path) -> None:
    stage = Stage("shared", tmp_path)

    async def work(laurels: Laurels) -> None:
        board = await create(laurels, windows=(ALL_TIME,))
        await submit(laurels, ("ada", 5), ("bob", 4))
        (row,) = await laurels.ledger.rows_of_user([board.periods[0].id], "ada")
        await laurels.erasures.erase(ADMIN, "default", "ada", None, None)
        stage.clock.now += 300 * SECOND_US
        await laurels.jobs.run_due()
        laurels.repairer.schedule(held(laurels), board.ranking(board.periods[0].id), [row])
        await until_so(lambda: not laurels.repairer.is_repairing, "the index")
        assert await top(laurels) == [("bob", 4)]
        assert await differences(laurels) == []

    play(stage, work)
