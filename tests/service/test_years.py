"""The life of periods on a fake clock: years in seconds, with servers that die in between."""

import asyncio
import datetime as dt
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from laurels.core.board import Board, RankStyle
from laurels.core.instants import SECOND_US, to_datetime, to_us
from laurels.core.limits import AHEAD_US
from laurels.core.order import Order, Ties
from laurels.core.scores import Rule
from laurels.core.windows import ALL_TIME, Day, Window
from laurels.ports import Role
from laurels.service.boards.caller import Caller
from laurels.service.laurels import Laurels
from laurels.service.read.reads import Selection
from laurels.service.write.submissions import Submission
from support.model import ModelBoard
from support.services import Stage, differences

DAY = 86_400 * SECOND_US
HOUR = 3_600 * SECOND_US
START = to_us(dt.datetime(2025, 2, 20, 7, tzinfo=dt.UTC))
ADMIN = Caller(Role.ADMIN, None, "test")


async def create(laurels: Laurels, uuid: str, **fields: Any) -> Board:
    board = Board(id=0, uuid=uuid, pod_id="default", name=uuid, created_at=0, **fields)
    return await laurels.boards.create(board, None)


async def final(laurels: Laurels, board: str, period: str, style: RankStyle | None = None) -> list[tuple[Any, ...]]:
    held = laurels.boards.to_read(ADMIN, board)
    page = (await laurels.reads.top(held, Selection(period=period, style=style), 0, 1000)).value
    return [(place.rank, place.user_id, place.score, place.subscore or 0, place.achieved_at) for place in page.entries]


class Dying(BaseException):
    """The simulated end of the process."""


class Mortality:
    """A simulated crash at a given write to the ledger: just before it, or just after it."""

    def __init__(self, laurels: Laurels, rng: random.Random) -> None:
        self.writes_left: int | None = None
        # Count only the writes of this task: lease renewals in other tasks would make the number random.
        playing = asyncio.current_task()
        ledger: Any = laurels.ledger
        store = ledger.pool if hasattr(ledger, "pool") else ledger.threads
        write = store.write

        async def mortal(work: Any, **options: Any) -> Any:
            if self.writes_left is None or asyncio.current_task() is not playing:
                return await write(work, **options)
            self.writes_left -= 1
            if self.writes_left > 0:
                return await write(work, **options)
            self.writes_left = None
            if rng.random() < 0.5:
                await write(work, **options)
            raise Dying

        store.write = mortal


@dataclass
class Mode:
    """A board, and a model for each of its periods, which are derived from the wall clock alone."""

    uuid: str
    fields: dict[str, Any]
    zone: str
    day: Day
    # Has a window that is open from 18:00 to 22:00.
    evenings: bool = False
    periods: dict[str, ModelBoard] = field(default_factory=dict)

    @property
    def windows(self) -> tuple[Window, ...]:
        windows = (Window("daily", self.zone), Window("weekly", self.zone, self.day), ALL_TIME)
        evening = Window("evening", self.zone, cron="0 18 * * *", open_s=4 * 3600)
        return (*windows, evening) if self.evenings else windows

    def names(self, at: int) -> list[str]:
        wall = to_datetime(at).astimezone(ZoneInfo(self.zone))
        first = wall.date() - dt.timedelta(days=(wall.weekday() - list(Day).index(self.day)) % 7)
        names = [f"daily-{wall.date()}", f"weekly-{first}", "all"]
        return [*names, f"evening-{wall.date()}T1800"] if self.evenings and 18 <= wall.hour < 22 else names

    def submit(self, event_id: str, user: str, score: float, at: int, subscore: int) -> None:
        for name in self.names(at):
            model = self.periods.setdefault(
                name,
                ModelBoard(
                    self.fields["rule"],
                    self.fields["order"],
                    self.fields["ties"],
                    self.fields.get("capacity"),
                    sub_order=self.fields.get("subscore"),
                ),
            )
            model.subscores[event_id] = subscore
            model.submit(event_id, user, score, at)

    def expected(self, name: str) -> list[tuple[Any, ...]]:
        model = self.periods[name]
        return [(model.rank(p), p.user, p.score, p.subscore, p.at) for p in model.ranked()]


def modes() -> list[Mode]:
    return [
        Mode(
            "solo",
            {"rule": Rule.BEST, "order": Order.DESC, "ties": Ties.EARLIEST},
            "Europe/Berlin",
            Day.MONDAY,
            evenings=True,
        ),
        Mode(
            "duo",
            {"rule": Rule.INCREMENT, "order": Order.DESC, "ties": Ties.SHARED, "subscore": Order.ASC},
            "Asia/Kathmandu",
            Day.SUNDAY,
        ),
        Mode(
            "race",
            {"rule": Rule.BEST, "order": Order.ASC, "ties": Ties.LATEST, "subscore": Order.DESC},
            "Australia/Lord_Howe",
            Day.FRIDAY,
        ),
        Mode(
            "rating",
            {"rule": Rule.LATEST, "order": Order.DESC, "ties": Ties.EARLIEST, "capacity": 4},
            "America/New_York",
            Day.WEDNESDAY,
        ),
    ]


def play(rng: random.Random, days: int) -> Iterator[int]:
    """Yield times at which something happens: some each day, half of them around a full hour, midnight somewhere."""
    at = START
    while at < START + days * DAY:
        at += rng.choice([HOUR, 5 * HOUR, 9 * HOUR, 20 * HOUR])
        yield at if rng.random() < 0.5 else at - at % HOUR + rng.choice([-1, 0, 1])


class Story:
    """Servers that run one after the other on one ledger, and the model to compare them with."""

    def __init__(self, stage: Stage, seed: int) -> None:
        self.stage = stage
        self.rng = random.Random(seed)
        self.clock = stage.clock
        self.clock.now = START
        self.modes = modes()
        self.users = [f"user-{number}" for number in range(7)]
        self.events = 0
        self.deaths = 0

    async def begin(self) -> None:
        async with self.stage.running() as laurels:
            for mode in self.modes:
                await create(laurels, mode.uuid, windows=mode.windows, **mode.fields)

    async def live(self, days: int) -> None:
        times = play(self.rng, days)
        while True:
            try:
                # A short lease, because a dead server leaves its lease behind.
                async with self.stage.running(jobs_lease_ms=20) as laurels:
                    await self.check_users(laurels)
                    await self.play(laurels, Mortality(laurels, self.rng), times)
                    return
            except Dying:
                # Downtime: none, hours or days.
                self.deaths += 1
                self.clock.now += self.rng.choice([0, 2 * HOUR, 3 * DAY])

    async def play(self, laurels: Laurels, fate: Mortality, times: Iterator[int]) -> None:
        """Submit scores and run jobs until the server dies or no times are left."""
        for at in times:
            self.clock.now = max(self.clock.now, at)
            for mode in self.modes:
                await self.submit(laurels, mode)
            if self.rng.random() < 0.7:
                fate.writes_left = self.rng.randrange(1, 60) if self.rng.random() < 0.1 else None
                await laurels.jobs.run_due()
                fate.writes_left = None

    async def submit(self, laurels: Laurels, mode: Mode) -> None:
        """Submit one score, which counts in one period of each of the three windows."""
        board = laurels.boards.to_read(ADMIN, mode.uuid)
        user, score = self.rng.choice(self.users), float(self.rng.randrange(-5, 100))
        # Some scores are late, but within the grace time of all their periods.
        late = self.rng.randrange(50) * SECOND_US if self.rng.random() < 0.3 else 0
        self.events += 1
        subscore = self.rng.randrange(3) if board.subscore is not None else None
        if subscore is not None:
            # Few different scores, so that subscores decide.
            score = float(self.rng.randrange(4))
        submission = Submission(user, score, at=self.clock.now - late, event_id=f"e{self.events}", subscore=subscore)
        answer = await laurels.submissions.submit(board, submission)
        assert [each.period.name for each in answer.counted] == mode.names(self.clock.now - late)
        assert len(answer.counted) + len(answer.late) == len(mode.windows)
        mode.submit(f"e{self.events}", user, score, self.clock.now - late, subscore or 0)

    async def check_users(self, laurels: Laurels) -> None:
        """Check all twelve scores of each user, which one call returns."""
        every = [laurels.boards.to_read(ADMIN, mode.uuid) for mode in self.modes]
        for user in self.users:
            shown = (await laurels.reads.scores_of_user(every, user)).value
            found = {(each.board.uuid, each.period.name): (each.score, each.rank) for each in shown}
            expected = {}
            for mode in self.modes:
                for name in mode.names(self.clock.now):
                    model = mode.periods.get(name)
                    if model is not None and (player := model.fold(user)) is not None:
                        ranked = user in [p.user for p in model.ranked()]
                        expected[mode.uuid, name] = (player.score, model.rank(player) if ranked else None)
            assert found == expected

    async def check_periods(self, laurels: Laurels) -> int:
        """Compare the final ranks of all past periods with the model; return the number of periods."""
        past = [(mode, name) for mode in self.modes for name in mode.periods if name not in mode.names(self.clock.now)]
        for mode, name in past:
            assert await final(laurels, mode.uuid, name) == mode.expected(name), (mode.uuid, name)
        return len(past)


def check_live(board: Board, at: int) -> None:
    """Check that ended periods are frozen, and that each window has at most one period that starts far ahead."""
    for window in board.window_names:
        live = [period for period in board.periods if period.window == window]
        assert all(period.end is None or period.end + board.grace_s * SECOND_US > at for period in live), live
        assert sum(period.start is not None and period.start > at + AHEAD_US for period in live) <= 1, live


@pytest.mark.parametrize(("kind", "days"), [("embedded", 730), ("shared", 60)])
def test_final_ranks_of_years_equal_the_model_despite_crashes(tmp_path: Path, kind: str, days: int) -> None:
    """Servers die at random writes; the final ranks of every period equal the model's."""

    async def run() -> None:
        story = Story(Stage(kind, tmp_path), seed=1)
        await story.begin()
        await story.live(days)
        assert story.deaths > days // 70
        story.clock.now += 8 * DAY
        async with story.stage.running() as laurels:
            await asyncio.sleep(0.1)
            for _ in range(3):
                await laurels.jobs.run_due()
                story.clock.now += HOUR
            assert await story.check_periods(laurels) > 3 * days
            assert await differences(laurels) == []
            # Neither the index nor the boards in memory grow with history.
            live = [period for board in laurels.boards.all() for period in board.periods]
            looked_at = story.clock.now - HOUR
            for board in laurels.boards.all():
                check_live(board, looked_at)
            if kind == "embedded":
                unswept = await laurels.ledger.periods.unswept(story.clock.now)
                assert len(laurels.index.held_periods) == len(live) + len(unswept)  # type: ignore[attr-defined]
                assert len(unswept) <= 4

    asyncio.run(run())
