"""Profiles in embedded and shared mode: segments, moves between them, names, and the cost of reads."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from laurels.core.board import RankStyle
from laurels.core.instants import SECOND_US
from laurels.core.people import ProfileChange, SegmentKind
from laurels.core.scores import Rule
from laurels.core.windows import ALL_TIME
from laurels.errors import Invalid, NotFound
from laurels.service.laurels import Laurels
from laurels.service.people import profiles
from laurels.service.read import reads
from laurels.service.read.reads import Selection
from laurels.service.write.submissions import Submission
from support.people import ADMIN, DAILY, create, freeze_the_day, held, play, profile, submit, top, until_prepared, void
from support.services import Stage, differences


def test_each_region_and_circle_is_ranked_in_every_window(stage: Stage) -> None:
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
        assert (found.entry.rank, found.total) == (2, 2)
        with pytest.raises(NotFound, match="circle:red in this period"):
            await laurels.reads.rank(held(laurels), Selection(segment="circle:red"), "cyd")
        for wrong in ("region", "regions:eu", "global:eu", "circle:", "team:red"):
            with pytest.raises(Invalid, match="region:ID"):
                await top(laurels, wrong)
        friends, missing = (
            await laurels.reads.ranks(held(laurels), Selection(segment="circle:red"), ["ada", "cyd", "bob"])
        ).value
        assert [(friend.entry.user_id, friend.entry.rank, friend.position) for friend in friends] == [
            ("bob", 1, 1),
            ("ada", 2, 2),
        ]
        assert missing == ["cyd"]
        assert await differences(laurels) == []

    play(stage, work)


def test_regions_of_a_board_are_listed_with_their_user_counts(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads, "SEGMENTS_S", 0.0)

    async def work(laurels: Laurels) -> None:
        await create(laurels)
        for user, region in (("ada", "eu"), ("bob", "us"), ("cyd", "us")):
            await profile(laurels, user, region=region, circles=("red",))
        await submit(laurels, ("ada", 5), ("bob", 7), ("cyd", 9), ("dan", 1))
        for window in (None, "all"):
            assert await listed(laurels, SegmentKind.REGION, window=window) == [("region:us", 2), ("region:eu", 1)]
        await profile(laurels, "bob", region="eu")
        await profile(laurels, "cyd", region="kr")
        assert await listed(laurels, SegmentKind.REGION, window="all") == [("region:eu", 2), ("region:kr", 1)]
        assert await listed(laurels, SegmentKind.CIRCLE) == [("circle:red", 3)]
        name = await freeze_the_day(laurels, stage)
        assert held(laurels).period_named(name) is None
        # Of a past period, too.
        assert await listed(laurels, SegmentKind.REGION, period=name) == [("region:eu", 2), ("region:kr", 1)]
        assert await listed(laurels, SegmentKind.CIRCLE, period=name) == [("circle:red", 3)]
        assert await listed(laurels, SegmentKind.REGION) == []

    play(stage, work)


async def listed(laurels: Laurels, kind: SegmentKind, **selection: Any) -> list[tuple[str, int]]:
    return (await laurels.reads.segments(held(laurels), Selection(**selection), kind))[1]


def test_board_without_segments_has_only_the_global_ranking(stage: Stage) -> None:
    async def work(laurels: Laurels) -> None:
        await create(laurels, segments=("global",))
        await profile(laurels, "ada", region="eu")
        await submit(laurels, ("ada", 5), region="eu")
        with pytest.raises(Invalid, match="segments global"):
            await top(laurels, "region:eu")
        assert await differences(laurels) == []

    play(stage, work)


def test_region_change_applies_to_all_boards_and_the_newest_wins(stage: Stage) -> None:
    async def work(laurels: Laurels) -> None:
        now = laurels.clock.now_us()
        await create(laurels)
        await create(laurels, "second", rule=Rule.BEST)
        await submit(laurels, ("ada", 5), ("bob", 6), region="eu", at=now - 9 * SECOND_US)
        await submit(laurels, ("ada", 8), uuid="second")
        assert await top(laurels, "region:eu", uuid="second") == [("ada", 8)]
        # A score on one board reports a new region, which applies to all boards.
        await submit(laurels, ("ada", 1), region="us", at=now - 5 * SECOND_US)
        assert await top(laurels, "region:eu") == [("bob", 6)]
        assert await top(laurels, "region:us") == [("ada", 6)]
        assert await top(laurels, "region:us", uuid="second") == [("ada", 8)]
        assert await top(laurels, "region:eu", uuid="second") == []
        # A late event does not override a newer region.
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


def test_rebuild_loads_circles_of_one_user_and_of_thousands(stage: Stage) -> None:
    async def work(laurels: Laurels) -> None:
        board = await create(laurels, windows=(ALL_TIME,))
        users = [f"user-{number:05}" for number in range(3000)]
        for start in range(0, len(users), 1000):
            some = users[start : start + 1000]
            await laurels.profiles.change(
                "default",
                [ProfileChange(user, region="eu", circles=("everybody", f"own-{user}")) for user in some],
            )
            await laurels.submissions.submit_many(board, [Submission(user, float(int(user[-5:]))) for user in some])

        async def check() -> None:
            assert len(await top(laurels, "circle:own-user-00042")) == 1
            page = (await laurels.reads.top(held(laurels), Selection(segment="circle:everybody"), 2990, 100)).value
            assert (len(page.entries), page.total, page.entries[-1].user_id) == (10, 3000, "user-00000")
            assert await differences(laurels) == []

        await check()
        rebuilt = [each async for each in laurels.rebuild([held(laurels)])]
        assert [each.differed for each in rebuilt if each.done] == [0]
        await check()

    play(stage, work)


def test_capacity_applies_to_each_segment_separately(stage: Stage) -> None:
    async def work(laurels: Laurels) -> None:
        await create(laurels, capacity=2, windows=(ALL_TIME,))
        await submit(laurels, ("a", 9), ("b", 8), ("c", 7), region="eu")
        await submit(laurels, ("x", 3), ("y", 2), ("z", 1), region="us")
        assert await top(laurels) == [("a", 9), ("b", 8)]
        assert await top(laurels, "region:us") == [("x", 3), ("y", 2)]
        outside = (await laurels.reads.rank(held(laurels), Selection(segment="region:us"), "z")).value
        assert (outside.is_ranked, outside.better, outside.total, outside.ranked_users) == (False, 2, 3, 2)
        await laurels.submissions.remove_user(ADMIN, held(laurels), "x", None)
        assert await top(laurels, "region:us") == [("y", 2), ("z", 1)]
        assert await differences(laurels) == []

    play(stage, work)


def test_names_come_from_a_bounded_cache_with_one_query_per_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Embedded mode only, because a shared feed also sends a server its own changes, at any time."""

    async def work(laurels: Laurels) -> None:
        asked: list[int] = []
        ledger_people: Any = laurels.ledger.profiles
        read = ledger_people.profiles

        async def counted(pod_id: str, user_ids: list[str]) -> Any:
            asked.append(len(user_ids))
            return await read(pod_id, user_ids)

        ledger_people.profiles = counted
        users = [f"user-{number}" for number in range(500)]
        assert await laurels.profiles.names("default", users) == {}
        # A pod without names needs no query.
        assert asked == []
        await laurels.profiles.change(
            "default", [ProfileChange(user, display_name=user.upper()) for user in users[:400]]
        )
        names = await laurels.profiles.names("default", users)
        assert {user: named.display_name for user, named in names.items()} == {
            user: user.upper() for user in users[:400]
        }
        assert asked == [500]
        assert await laurels.profiles.names("default", users[::-1]) == names
        assert asked == [500]
        await profile(laurels, "user-7", display_name="Seven")
        assert (await laurels.profiles.names("default", users))["user-7"].display_name == "Seven"
        assert asked == [500, 1]
        monkeypatch.setattr(profiles, "KEPT_NAMES", 10)
        await laurels.profiles.names("default", ["stranger"])
        assert laurels.profiles.cached_names == 10

    play(Stage("embedded", tmp_path), work)


def test_name_change_on_one_server_reaches_the_other_servers(tmp_path: Path) -> None:
    stage = Stage("shared", tmp_path)

    async def run() -> None:
        async with stage.running() as one, stage.running() as other:
            for name in ("Ada", "Countess", None):
                await profile(one, "ada", display_name=name)
                for _ in range(200):
                    names = await other.profiles.names("default", ["ada"])
                    if names.get("ada", profiles.NO_PROFILE).display_name == name:
                        break
                    await asyncio.sleep(0.05)
                else:
                    raise AssertionError(names)

    asyncio.run(run())


def test_names_come_from_the_cache_while_the_ledger_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(laurels: Laurels) -> None:
        await profile(laurels, "ada", display_name="Ada")
        assert (await laurels.profiles.names("default", ["ada"]))["ada"].display_name == "Ada"
        ledger_people: Any = laurels.ledger.profiles
        asked = 0

        async def silent(*_: Any) -> Any:
            nonlocal asked
            asked += 1
            await asyncio.Event().wait()

        monkeypatch.setattr(ledger_people, "profiles", silent)
        monkeypatch.setattr(profiles, "WAIT_S", 0.05)
        for _ in range(5):
            names = await laurels.profiles.names("default", ["ada", "bob"])
            assert [named.display_name for named in names.values()] == ["Ada"]
        assert asked == 1

    play(Stage("embedded", tmp_path), work)


@pytest.mark.parametrize("style", list(RankStyle))
def test_page_reads_take_the_same_number_of_queries_for_any_page_size(stage: Stage, style: RankStyle) -> None:
    """Index calls and ledger queries are counted at the adapters, for pages of 2, 250 and 500."""

    async def work(laurels: Laurels) -> None:
        board = await create(laurels, windows=(ALL_TIME, DAILY))
        users = [f"user-{number}" for number in range(600)]
        await laurels.profiles.change(
            "default", [ProfileChange(user, display_name=user, region="eu") for user in users]
        )
        await laurels.submissions.submit_many(board, [Submission(user, 1.0) for user in users])
        calls = count_calls(laurels)

        async def cost(read: Callable[[], Awaitable[Any]]) -> int:
            laurels.profiles.on_hint(None)
            await laurels.profiles.names("default", ["warm"])
            calls[0] = 0
            await read()
            return calls[0]

        for segment in ("global", "region:eu"):
            selection = Selection(segment=segment, style=style, viewer="nobody")

            async def named(places: list[Any]) -> None:
                await laurels.profiles.names("default", [place.user_id for place in places])

            async def top_of(limit: int, chosen: Selection = selection) -> None:
                await named((await laurels.reads.top(held(laurels), chosen, 0, limit)).value.entries)

            async def around_of(width: int, chosen: Selection = selection) -> None:
                found = (await laurels.reads.around(held(laurels), chosen, "user-300", width, width)).value
                await named(found.entries)

            async def ranks_of(number: int, chosen: Selection = selection) -> None:
                friends, _ = (await laurels.reads.ranks(held(laurels), chosen, users[:number])).value
                await named([friend.entry for friend in friends])

            # The index may have to prepare dense ranks first.
            await until_prepared(laurels, selection)
            for read in (top_of, around_of, ranks_of):
                costs = [await cost(lambda n=n, read=read: read(n)) for n in (2, 250, 500)]  # type: ignore[misc]
                assert len(set(costs)) == 1, (read.__name__, costs)
                assert costs[0] <= 4

    play(stage, work)


def test_counts_of_ended_boards_take_one_query_even_if_pruned(stage: Stage) -> None:
    async def work(laurels: Laurels) -> None:
        end = stage.clock.now + SECOND_US
        boards = [
            await create(laurels, uuid=f"b{number}", end_at=end, grace_s=0, keep_periods_days=days)
            for number, days in enumerate([None, 1] * 6)
        ]
        for board in boards:
            await laurels.submissions.submit_many(board, [Submission(user, 1.0) for user in ("ada", "bob")])
        for days in (1, 1, 3):
            stage.clock.now += days * 86_400 * SECOND_US
            await laurels.jobs.run_due()
        boards = [held(laurels, board.uuid) for board in boards]
        with pytest.raises(NotFound):
            await laurels.reads.top(boards[1], Selection(), 0, 1)
        calls = count_calls(laurels)
        costs = []
        for some in (boards[:1], boards):
            calls[0] = 0
            assert (await laurels.reads.counts(some)).value == [2] * len(some)
            costs.append(calls[0])
        assert costs == [1, 1]

    play(stage, work)


def count_calls(laurels: Laurels) -> list[int]:
    calls = [0]
    own = asyncio.current_task()
    ledger: Any = laurels.ledger
    index: Any = laurels.index
    places = [(ledger.pool, "read"), (ledger.pool, "scan")] if hasattr(ledger, "pool") else [(ledger.threads, "read")]
    if hasattr(index, "connection"):
        places.append((index.connection, "run"))
    for place, name in places:
        real = getattr(place, name)

        async def counted(*arguments: Any, real: Any = real, **options: Any) -> Any:
            # Do not count the calls of repairs and of the registry.
            task = asyncio.current_task()
            calls[0] += task is own or (task is not None and task.get_name() == "read names")
            return await real(*arguments, **options)

        setattr(place, name, counted)
    return calls


@pytest.mark.parametrize("rule", list(Rule))
def test_metadata_of_entries_are_those_of_the_score_that_counts(stage: Stage, rule: Rule) -> None:
    async def work(laurels: Laurels) -> None:
        await create(laurels, rule=rule)
        now = stage.clock.now

        async def send(score: float, ago_s: int, name: str) -> None:
            at = now - ago_s * SECOND_US
            await submit(laurels, ("ada", score), at=at, metadata={"from": name}, event_id=name)

        async def shown(**selection: Any) -> dict[str, str]:
            page = (await laurels.reads.top(held(laurels), Selection(**selection), 0, 10)).value
            return await laurels.reads.metadata(held(laurels), page.entries)

        await submit(laurels, ("bob", 1))
        await send(5, 30, "first")
        await send(9, 20, "best")
        await send(3, 10, "last")
        await send(3, 10, "another with the same time and score")
        await send(0, 5, "nothing")
        expected = {Rule.INCREMENT: "another with the same time and score", Rule.BEST: "best", Rule.LATEST: "nothing"}
        for window in ("daily", "all"):
            assert await shown(window=window) == {"ada": f'{{"from":"{expected[rule]}"}}'}
        await void(laurels, event_ids=[expected[rule]])
        after = {Rule.INCREMENT: "last", Rule.BEST: "first", Rule.LATEST: "another with the same time and score"}
        assert await shown() == {"ada": f'{{"from":"{after[rule]}"}}'}
        name = await freeze_the_day(laurels, stage)
        assert await shown(period=name) == {"ada": f'{{"from":"{after[rule]}"}}'}

    play(stage, work)


def test_attributes_are_stored_changed_and_erased(stage: Stage) -> None:
    async def work(laurels: Laurels) -> None:
        await profile(laurels, "ada", attributes='{"class":"mage"}', region="eu")
        await profile(laurels, "ada", display_name="Ada")
        (found,) = await laurels.profiles.profiles("default", ["ada", "nobody"])
        assert (found.attributes, found.region, found.display_name) == ('{"class":"mage"}', "eu", "Ada")
        exported = [each async for each in laurels.erasures.export("default", "ada") if each["kind"] == "profile"]
        assert exported[0]["attributes"] == {"class": "mage"}
        await profile(laurels, "ada", attributes=None)
        assert (await laurels.profiles.profile("default", "ada")).attributes is None

    play(stage, work)
