"""The live hub in embedded and shared mode: ticks, sharing, skipping ahead, resuming, and access."""

import asyncio
import time
from typing import Any

import pytest

from laurels.core.people import GLOBAL, Hidden
from laurels.errors import Invalid, LaurelsError, NotFound, TooMany, Unavailable
from laurels.service.laurels import Laurels
from laurels.service.live import (
    AroundSpec,
    Frame,
    FrameKind,
    SubscriberAccess,
    Subscription,
    TopSpec,
    ViewSpec,
    hub,
    room,
)
from laurels.service.read.reads import Selection
from support.people import ADMIN, create, held, play, submit
from support.services import Stage
from support.waiting import until_so

PATIENCE_S = 20
ALL = Selection(window="all")


def anybody() -> SubscriberAccess:
    return SubscriberAccess("key", "default", lambda: None, lambda: None)


def top(laurels: Laurels, limit: int = 10, selection: Selection = ALL) -> TopSpec:
    return TopSpec(held(laurels).id, selection, limit)


async def next_frame(subscription: Subscription) -> Frame:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            for frame in subscription.take():
                return frame
            if subscription.ended is not None:
                raise subscription.ended
            await subscription.wait()


def users(frame: Frame) -> list[tuple[int, str]]:
    return [(change.position, change.shown.entry.user_id) for change in frame.changes]


def test_subscribers_of_a_view_share_at_most_one_frame_per_tick(stage: Stage) -> None:
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
        # One frame at the start, and then at most one per tick.
        assert 1 <= frames <= passed / 0.05 + 2
        while one.views[0].state.users[0].entry.score < 151:
            await one.wait()
        # A subscriber that has read nothing meanwhile skips ahead: it gets a snapshot or a few changes.
        late = list(other.take())
        assert late[-1].sequence == one.views[0].sequence
        assert len(late) <= 16

    play(stage, work, live_tick_ms=50)


def test_subscriber_resumes_with_changes_until_the_paused_view_expires(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "SWEEP_S", 0.05)

    async def work(laurels: Laurels) -> None:
        await create(laurels)
        await submit(laurels, ("ada", 5), ("bob", 3))
        live = laurels.live
        around = AroundSpec(held(laurels).id, ALL, "bob", 1, 1)
        before = await live.subscribe(anybody(), [top(laurels), around], None)
        assert [frame.kind for frame in before.take()] == [FrameKind.SNAPSHOT, FrameKind.SNAPSHOT]
        live.leave(before)
        live.leave(before)
        assert live.usage[:4] == (0, 0, 0, 0)
        await submit(laurels, ("bob", 1))
        back = await live.subscribe(anybody(), [top(laurels), around], before.position)
        assert [(frame.kind, users(frame)) for frame in back.take()] == [(FrameKind.CHANGES, [(1, "bob")])] * 2
        live.leave(back)
        monkeypatch.setattr(hub, "PAUSED_S", 0.1)
        await until_so(lambda: not live.usage.paused_views, "the end of the pause")
        late = await live.subscribe(anybody(), [top(laurels), around], back.position)
        assert [frame.kind for frame in late.take()] == [FrameKind.SNAPSHOT, FrameKind.SNAPSHOT]

    play(stage, work)


def test_new_subscriber_gets_current_state_and_frames_keep_to_the_tick(stage: Stage) -> None:
    """A new subscriber may come from another server, where it has already seen the current state."""

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
            assert [change.shown.entry.score for change in snapshot.changes] == [score]
        assert [frame.sequence for frame in first.take()] == [2, 3, 4]
        assert time.monotonic() - begin >= 2

    play(stage, work, live_tick_ms=1000)


def test_concurrent_new_subscribers_share_a_failed_read(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
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
        # New subscribers get the last state of a known view; a view without a state can't be shown.
        coming = (laurels.live.subscribe(anybody(), [top(laurels)], None) for _ in range(50))
        assert [users(frame) for each in await asyncio.gather(*coming) for frame in each.take()] == [[(0, "ada")]] * 50
        others = (laurels.live.subscribe(anybody(), [top(laurels, 3)], None) for _ in range(50))
        refused = await asyncio.gather(*others, return_exceptions=True)
        assert {getattr(each, "code", None) for each in refused} == {"ledger_unavailable"}
        # Some of these reads are the regular ones of the hub.
        assert reads < 20

    play(stage, work)


def test_refused_subscription_leaves_no_views_behind(stage: Stage) -> None:
    async def work(laurels: Laurels) -> None:
        await create(laurels, segments=(GLOBAL,))
        for wrong, kind in (
            (Selection(segment="region:eu"), Invalid),
            (Selection(window="hourly"), Invalid),
            (Selection(window="all", period="all-3"), NotFound),
        ):
            with pytest.raises(kind):
                await laurels.live.subscribe(anybody(), [top(laurels), top(laurels, 5, wrong)], None)
            assert laurels.live.usage[:3] == (0, 0, 0)
        kept = await laurels.live.subscribe(anybody(), [top(laurels)], None)
        await laurels.live.close()
        with pytest.raises(Unavailable):
            await laurels.live.subscribe(anybody(), [top(laurels)], None)
        assert [frame.kind for frame in kept.take()] == [FrameKind.SNAPSHOT]
        assert kept.ended is not None
        assert kept.ended.code == "stopping"

    play(stage, work)


def test_subscriptions_end_on_lost_access_or_blocked_sending(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
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
        one = await laurels.live.subscribe(
            SubscriberAccess("", "default", check, lambda: cut.append("one")), [top(laurels)], None
        )
        stuck = await laurels.live.subscribe(
            SubscriberAccess("", "default", lambda: None, lambda: cut.append("stuck")), [top(laurels)], None
        )
        stuck.sending_since = time.monotonic()
        async with asyncio.timeout(PATIENCE_S):
            while not one.wants_heartbeat:
                await one.wait()
            await until_so(lambda: "stuck" in cut, "the end of the stuck subscriber")
        may.append(NotFound("board_not_found", "It is not public any more."))
        await until_so(lambda: one.ended is may[0], "the end")
        assert "one" not in cut

    play(stage, work)


def test_shadow_banned_user_sees_their_own_entry_in_live_views(stage: Stage) -> None:
    async def work(laurels: Laurels) -> None:
        await create(laurels)
        await submit(laurels, ("ada", 5), ("bob", 9))
        board = held(laurels)
        own = Selection(window="all", viewer="bob")
        specs: list[ViewSpec] = [TopSpec(board.id, own, 10), AroundSpec(board.id, own, "bob", 1, 1)]
        others = await laurels.live.subscribe(anybody(), [top(laurels)], None)
        bob = await laurels.live.subscribe(anybody(), specs, None)
        assert [users(frame) for frame in (await next_frame(others), *bob.take())] == [[(0, "bob"), (1, "ada")]] * 3
        await laurels.moderation.hide(ADMIN, "default", board, "bob", Hidden.SHADOW, None, None)
        assert users(await next_frame(others)) == [(0, "ada")]
        await submit(laurels, ("bob", 1))
        # For bob only the score has changed.
        assert users(await next_frame(bob)) == [(0, "bob")]
        await submit(laurels, ("ada", 1))
        assert users(await next_frame(others)) == [(0, "ada")]

        def shown() -> list[tuple[str, float, int]]:
            places = [view.state.users[0].entry for view in bob.views]
            return [(place.user_id, place.score, place.rank) for place in places]

        await until_so(lambda: shown() == [("bob", 10, 1)] * 2, "the state")

    play(stage, work)


def test_slow_view_does_not_delay_other_views(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(laurels: Laurels) -> None:
        await create(laurels)
        await submit(laurels, ("ada", 5))
        live, release = laurels.live, asyncio.Event()
        slow, fast = top(laurels, 7), top(laurels, 8)
        one = await live.subscribe(anybody(), [slow], None)
        other = await live.subscribe(anybody(), [fast], None)
        assert [frame.sequence for each in (one, other) for frame in each.take()] == [1, 1]
        reads: list[ViewSpec] = []
        read = live.reader.read

        async def hanging(look: ViewSpec, *rest: Any) -> Any:
            if look == slow:
                reads.append(look)
                await release.wait()
            return await read(look, *rest)

        monkeypatch.setattr(live.reader, "read", hanging)
        for number in range(2, 6):
            await submit(laurels, ("ada", 1))
            assert (await next_frame(other)).sequence == number
        assert (len(reads), list(one.take())) == (1, [])
        # Subscribers that arrive meanwhile share one read.
        coming = [asyncio.create_task(live.subscribe(anybody(), [slow], None)) for _ in range(20)]
        await asyncio.sleep(0.1)
        release.set()
        assert {next(iter((await each).take())).kind for each in coming} == {FrameKind.SNAPSHOT}
        assert (await next_frame(one)).kind is FrameKind.CHANGES
        assert len(reads) <= 4

    play(stage, work, live_tick_ms=20)


def test_rows_of_new_views_count_towards_the_limit_at_once(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "VIEW_ROWS", 2000)

    async def work(laurels: Laurels) -> None:
        await create(laurels)
        live = laurels.live
        specs: list[ViewSpec] = [top(laurels, 900), AroundSpec(held(laurels).id, ALL, "ada", 50, 49)]
        first = await live.subscribe(anybody(), specs, None)
        # Subscribing to the same views again costs nothing; other views do.
        again = await live.subscribe(anybody(), specs, None)
        bob = AroundSpec(held(laurels).id, ALL, "bob", 49, 50)
        coming = (live.subscribe(anybody(), [top(laurels, 600 + number), bob], None) for number in range(5))
        joined = await asyncio.gather(*coming, return_exceptions=True)
        assert [isinstance(each, TooMany) for each in joined] == [False, True, True, True, True]
        assert live.usage.views_rows == 1700
        live.leave(next(each for each in joined if isinstance(each, Subscription)))
        live.leave(first)
        live.leave(again)
        assert live.usage.views_rows == 0

    play(stage, work)


def test_views_of_one_pod_leave_room_for_those_of_another(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "POD_VIEW_ROWS", 1000)

    async def work(laurels: Laurels) -> None:
        await create(laurels)
        await laurels.access.create_pod("other", "Other")
        await create(laurels, uuid="theirs", pod_id="other")
        theirs = TopSpec(held(laurels, "theirs").id, ALL, 900)
        first = await laurels.live.subscribe(anybody(), [top(laurels, 900)], None)
        with pytest.raises(TooMany, match="this pod"):
            await laurels.live.subscribe(anybody(), [top(laurels, 200)], None)
        other = SubscriberAccess("another key", "other", lambda: None, lambda: None)
        second = await laurels.live.subscribe(other, [theirs], None)
        laurels.live.leave(first)
        third = await laurels.live.subscribe(anybody(), [top(laurels, 200)], None)
        for each in (second, third):
            laurels.live.leave(each)
        assert laurels.live.usage.views_rows == 0

    play(stage, work)
