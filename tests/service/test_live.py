"""The live hub on both kinds of stores: ticks, sharing, skipping ahead, going on after a break, and who may look."""

import asyncio
import time
from typing import Any

import pytest

from laurels.core.people import GLOBAL, Hidden
from laurels.errors import Invalid, LaurelsError, NotFound, TooMany, Unavailable
from laurels.service.laurels import Laurels
from laurels.service.live import Audience, Frame, Kind, Look, LookAround, LookTop, Subscription, hub, reader
from laurels.service.reads import Selection
from support.people import ADMIN, create, held, play, submit
from support.services import Stage
from support.waiting import until_so

PATIENCE_S = 20
ALL = Selection(window="all")


def anybody() -> Audience:
    return Audience("key", lambda: None, lambda: None)


def top(laurels: Laurels, limit: int = 10, selection: Selection = ALL) -> LookTop:
    return LookTop(held(laurels).id, selection, limit)


async def next_frame(subscription: Subscription) -> Frame:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            for frame in subscription.take():
                return frame
            if subscription.ended is not None:
                raise subscription.ended
            await subscription.wait()


def users(frame: Frame) -> list[tuple[int, str]]:
    return [(change.position, change.shown.place.user_id) for change in frame.changes]


def test_all_who_look_at_the_same_get_the_same_frame_once_a_tick(stage: Stage) -> None:
    async def work(laurels: Laurels) -> None:
        await create(laurels)
        await submit(laurels, ("ada", 1))
        one = await laurels.live.subscribe(anybody(), [top(laurels)], None)
        other = await laurels.live.subscribe(anybody(), [top(laurels)], None)
        third = await laurels.live.subscribe(anybody(), [top(laurels, 3)], None)
        first = await next_frame(one)
        assert first is await next_frame(other)
        assert first is not await next_frame(third)
        frames, began = 0, time.monotonic()
        for _ in range(150):
            await submit(laurels, ("ada", 1))
            taken = list(one.take())
            assert len(taken) <= 1
            frames += len(taken)
        passed = time.monotonic() - began
        # At the beginning of a tick, and then one each.
        assert 1 <= frames <= passed / 0.05 + 2
        while one._views[0].state.users[0].place.score < 151:
            await one.wait()
        # Who took nothing meanwhile skips ahead: no more rows than there are, or a few changes of them.
        late = list(other.take())
        assert late[-1].sequence == one._views[0].sequence
        assert len(late) <= 16

    play(stage, work, live_tick_ms=50)


def test_who_comes_back_goes_on_and_after_a_while_begins_anew(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "SWEEP_S", 0.05)

    async def work(laurels: Laurels) -> None:
        await create(laurels)
        await submit(laurels, ("ada", 5), ("bob", 3))
        live = laurels.live
        around = LookAround(held(laurels).id, ALL, "bob", 1, 1)
        before = await live.subscribe(anybody(), [top(laurels), around], None)
        assert [frame.kind for frame in before.take()] == [Kind.SNAPSHOT, Kind.SNAPSHOT]
        live.leave(before)
        live.leave(before)
        assert (live._watches, live._rows, live._subscriptions, live._per_key) == ({}, 0, set(), {})
        await submit(laurels, ("bob", 1))
        back = await live.subscribe(anybody(), [top(laurels), around], before.position)
        assert [(frame.kind, users(frame)) for frame in back.take()] == [(Kind.CHANGES, [(1, "bob")])] * 2
        live.leave(back)
        monkeypatch.setattr(hub, "PAUSED_S", 0.1)
        await until_so(lambda: not live._paused, "the end of the pause")
        late = await live.subscribe(anybody(), [top(laurels), around], back.position)
        assert [frame.kind for frame in late.take()] == [Kind.SNAPSHOT, Kind.SNAPSHOT]

    play(stage, work)


def test_who_comes_sees_what_there_is_now_and_others_hear_once_a_tick(stage: Stage) -> None:
    """Somebody may come from another server, and has seen that much there."""

    async def work(laurels: Laurels) -> None:
        await create(laurels)
        await submit(laurels, ("ada", 5))
        first = await laurels.live.subscribe(anybody(), [top(laurels)], None)
        assert [frame.sequence for frame in first.take()] == [1]
        begin = time.monotonic()
        for score in range(6, 9):
            await submit(laurels, ("ada", 1))
            other = await laurels.live.subscribe(anybody(), [top(laurels)], None)
            (snapshot,) = other.take()
            assert [change.shown.place.score for change in snapshot.changes] == [score]
        assert [frame.sequence for frame in first.take()] == [2, 3, 4]
        assert time.monotonic() - begin >= 2

    play(stage, work, live_tick_ms=1000)


def test_a_read_that_fails_is_one_for_all_who_come(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(laurels: Laurels) -> None:
        await create(laurels)
        await submit(laurels, ("ada", 5))
        first = await laurels.live.subscribe(anybody(), [top(laurels)], None)
        assert [users(frame) for frame in first.take()] == [[(0, "ada")]]
        reads = 0

        async def fails(*_: Any) -> Any:
            nonlocal reads
            reads += 1
            await asyncio.sleep(0.1)
            raise Unavailable("ledger_unavailable", "It does not answer.")

        monkeypatch.setattr(laurels.live.reader, "read", fails)
        # What is shown to one is shown to all; what nobody has seen yet can't be shown.
        coming = (laurels.live.subscribe(anybody(), [top(laurels)], None) for _ in range(50))
        assert [users(frame) for each in await asyncio.gather(*coming) for frame in each.take()] == [[(0, "ada")]] * 50
        others = (laurels.live.subscribe(anybody(), [top(laurels, 3)], None) for _ in range(50))
        refused = await asyncio.gather(*others, return_exceptions=True)
        assert {getattr(each, "code", None) for each in refused} == {"ledger_unavailable"}
        # Some of them by the regular looks.
        assert reads < 20

    play(stage, work)


def test_who_is_refused_leaves_nothing_behind(stage: Stage) -> None:
    async def work(laurels: Laurels) -> None:
        await create(laurels, segments=(GLOBAL,))
        for wrong, kind in (
            (Selection(segment="region:eu"), Invalid),
            (Selection(window="hourly"), Invalid),
            (Selection(window="all", period="all-3"), NotFound),
        ):
            with pytest.raises(kind):
                await laurels.live.subscribe(anybody(), [top(laurels), top(laurels, 5, wrong)], None)
            assert (laurels.live._watches, laurels.live._rows, laurels.live._subscriptions) == ({}, 0, set())
        kept = await laurels.live.subscribe(anybody(), [top(laurels)], None)
        await laurels.live.close()
        with pytest.raises(Unavailable):
            await laurels.live.subscribe(anybody(), [top(laurels)], None)
        assert [frame.kind for frame in kept.take()] == [Kind.SNAPSHOT]
        assert kept.ended is not None
        assert kept.ended.code == "stopping"

    play(stage, work)


def test_a_right_that_ends_and_one_who_takes_nothing(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "SWEEP_S", 0.05)
    monkeypatch.setattr(hub, "SLOW_S", 0.2)
    monkeypatch.setattr(hub, "HEARTBEAT_S", 0.1)
    may: list[LaurelsError] = []
    cut: list[str] = []

    def check() -> None:
        if may:
            raise may[0]

    async def work(laurels: Laurels) -> None:
        await create(laurels)
        one = await laurels.live.subscribe(Audience("", check, lambda: cut.append("one")), [top(laurels)], None)
        stuck = await laurels.live.subscribe(
            Audience("", lambda: None, lambda: cut.append("stuck")), [top(laurels)], None
        )
        stuck.sending_since = time.monotonic()
        async with asyncio.timeout(PATIENCE_S):
            while not one.wants_heartbeat:
                await one.wait()
            await until_so(lambda: "stuck" in cut, "the stuck one")
        may.append(NotFound("board_not_found", "It is not public any more."))
        await until_so(lambda: one.ended is may[0], "the end")
        assert "one" not in cut

    play(stage, work)


def test_one_who_is_hidden_from_others_sees_themselves(stage: Stage) -> None:
    async def work(laurels: Laurels) -> None:
        await create(laurels)
        await submit(laurels, ("ada", 5), ("bob", 9))
        board = held(laurels)
        own = Selection(window="all", viewer="bob")
        looks: list[Look] = [LookTop(board.id, own, 10), LookAround(board.id, own, "bob", 1, 1)]
        others = await laurels.live.subscribe(anybody(), [top(laurels)], None)
        bob = await laurels.live.subscribe(anybody(), looks, None)
        assert [users(frame) for frame in (await next_frame(others), *bob.take())] == [[(0, "bob"), (1, "ada")]] * 3
        await laurels.moderation.hide(ADMIN, "default", board, "bob", Hidden.SHADOW, None, None)
        assert users(await next_frame(others)) == [(0, "ada")]
        await submit(laurels, ("bob", 1))
        # Nothing has changed for bob, but the score.
        assert users(await next_frame(bob)) == [(0, "bob")]
        await submit(laurels, ("ada", 1))
        assert users(await next_frame(others)) == [(0, "ada")]

        def shown() -> list[tuple[str, float, int]]:
            places = [view.state.users[0].place for view in bob._views]
            return [(place.user_id, place.score, place.rank) for place in places]

        await until_so(lambda: shown() == [("bob", 10, 1)] * 2, "the state")

    play(stage, work)


def test_a_view_that_takes_its_time_holds_up_nobody_else(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(laurels: Laurels) -> None:
        await create(laurels)
        await submit(laurels, ("ada", 5))
        live, release = laurels.live, asyncio.Event()
        slow, fast = top(laurels, 7), top(laurels, 8)
        one = await live.subscribe(anybody(), [slow], None)
        other = await live.subscribe(anybody(), [fast], None)
        assert [frame.sequence for each in (one, other) for frame in each.take()] == [1, 1]
        reads: list[Look] = []
        read = live.reader.read

        async def hanging(look: Look, *rest: Any) -> Any:
            if look == slow:
                reads.append(look)
                await release.wait()
            return await read(look, *rest)

        monkeypatch.setattr(live.reader, "read", hanging)
        for number in range(2, 6):
            await submit(laurels, ("ada", 1))
            assert (await next_frame(other)).sequence == number
        assert (len(reads), list(one.take())) == (1, [])
        # Those who come meanwhile share one read.
        coming = [asyncio.create_task(live.subscribe(anybody(), [slow], None)) for _ in range(20)]
        await asyncio.sleep(0.1)
        release.set()
        assert {next(iter((await each).take())).kind for each in coming} == {Kind.SNAPSHOT}
        assert (await next_frame(one)).kind is Kind.CHANGES
        assert len(reads) <= 4

    play(stage, work, live_tick_ms=20)


def test_rows_that_nobody_looks_at_yet_are_counted_at_once(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "VIEW_ROWS", 2000)

    async def work(laurels: Laurels) -> None:
        await create(laurels)
        live = laurels.live
        looks: list[Look] = [top(laurels, 900), LookAround(held(laurels).id, ALL, "ada", 50, 49)]
        first = await live.subscribe(anybody(), looks, None)
        # The same again costs nothing, another much.
        again = await live.subscribe(anybody(), looks, None)
        bob = LookAround(held(laurels).id, ALL, "bob", 49, 50)
        coming = (live.subscribe(anybody(), [top(laurels, 600 + number), bob], None) for number in range(5))
        joined = await asyncio.gather(*coming, return_exceptions=True)
        assert [isinstance(each, TooMany) for each in joined] == [False, True, True, True, True]
        assert live._rows == 1700
        live.leave(next(each for each in joined if isinstance(each, Subscription)))
        live.leave(first)
        live.leave(again)
        assert live._rows == 0

    play(stage, work)


def test_reading_leaves_time_to_others() -> None:
    async def run() -> None:
        budget = reader.Budget(10_000, 100)
        began = time.monotonic()
        await asyncio.gather(*(budget.take(50) for _ in range(20)))
        # A hundred at once, nine hundred at ten thousand a second.
        assert time.monotonic() - began >= 0.08

    asyncio.run(run())
