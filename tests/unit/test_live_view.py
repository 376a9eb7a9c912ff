"""A view: a subscriber that applies its frames has its state, from whichever frame it resumed."""

from hypothesis import given
from hypothesis import strategies as st

from laurels.client import LiveView
from laurels.core.board import Status
from laurels.core.windows import Period
from laurels.http.live_frames import show_frame
from laurels.ports import RankEntry
from laurels.service.live import Facts, FrameKind, State, TopSpec, View
from laurels.service.live.view import KEPT_CHANGES, NamedEntry
from laurels.service.people.profiles import NO_PROFILE, PublicProfile
from laurels.service.read.reads import Selection

LOOK = TopSpec(1, Selection(), 8)


def period(number: int) -> Period:
    return Period(id=number, window="daily", name=f"daily-{number}", start=number, end=number + 1)


def state(users: list[tuple[str, float]], number: int, name: str = "Board", *, degraded: bool = False) -> State:
    ordered = sorted(dict(users).items(), key=lambda each: (-each[1], each[0]))
    shown = [
        NamedEntry(RankEntry(user, score, 5, rank), PublicProfile("Ada", None) if user == "a" else NO_PROFILE)
        for rank, (user, score) in enumerate(ordered, 1)
    ]
    return State(Facts(name, Status.ACTIVE, period(number), number, number + 1), shown, len(shown), degraded)


states = st.builds(
    state,
    st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(0, 5).map(float)), max_size=8),
    st.integers(1, 2),
    st.sampled_from(["Board", "Renamed"]),
    degraded=st.booleans(),
)


def seen(view: LiveView) -> object:
    assert view.board is not None
    users = [(entry.user_id, entry.rank, entry.score, entry.display_name) for entry in view.users]
    return users, view.total_users, view.board.name, view.board.period, view.degraded


@given(states, st.lists(st.tuples(states, st.booleans()), max_size=40))
def test_frames_produce_the_current_state_from_any_sequence_number(
    first: State, then: list[tuple[State, bool]]
) -> None:
    view = View(LOOK, first)
    fresh, lazy = LiveView(), LiveView()
    last: dict[LiveView, int | None] = {fresh: None, lazy: None}

    def take(one: LiveView) -> None:
        for frame in view.after(last[one]):
            one.apply(show_frame(frame))
            assert frame.sequence > (last[one] or 0)
            last[one] = frame.sequence
        assert last[one] == view.sequence
        assert view.after(last[one]) == []

    take(fresh)
    for each, also_lazy in then:
        before = view.sequence
        assert view.advance(each) == (view.sequence > before)
        take(fresh)
        if also_lazy:
            take(lazy)
    take(lazy)
    newcomer = LiveView()
    last[newcomer] = None
    take(newcomer)
    assert seen(fresh) == seen(lazy) == seen(newcomer)
    # The changes kept for slow subscribers never take much more than the state itself.
    assert view.size <= len(view.state.users) + max(KEPT_CHANGES, len(view.state.users))


def test_frames_contain_only_changes_or_a_snapshot_if_too_many() -> None:
    view = View(LOOK, state([("a", 5), ("b", 4), ("c", 3)], 1))
    assert not view.advance(state([("a", 5), ("b", 4), ("c", 3)], 1))
    assert view.advance(state([("a", 5), ("b", 4.5), ("c", 3)], 1))
    (frame,) = view.after(1)
    assert [(change.position, change.shown.entry.user_id) for change in frame.changes] == [(1, "b")]
    assert (frame.facts, frame.length) == (None, 3)
    for number in range(2 * KEPT_CHANGES):
        view.advance(state([("a", 6 + number), ("b", 4.5), ("c", 3)], 1))
    (frame,) = view.after(1)
    assert frame.kind is FrameKind.SNAPSHOT
    assert view.after(view.sequence - 3)[0].kind is FrameKind.CHANGES
    # A sequence number that was never sent.
    assert view.after(view.sequence + 1)[0].kind is FrameKind.SNAPSHOT
    view.advance(state([], 2))
    (frame,) = view.after(view.sequence - 1)
    assert (frame.kind, frame.previous_period) == (FrameKind.RESET, "daily-1")
