"""Contract of the Ledger port: a state machine that compares every adapter with a plain model.

Promises that a model can't check are in test_ledger_calls.py.
"""

import asyncio
import dataclasses
import itertools
import tempfile
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from laurels.adapters.memory_index import MemoryIndex
from laurels.core.board import Board, Ranking, RankStyle, ShadowViewer
from laurels.core.distribution import DECILES
from laurels.core.order import Order, Ties
from laurels.core.people import GLOBAL, Hidden, ProfileChange
from laurels.core.scores import Rule, Standing
from laurels.errors import NotFound
from laurels.ports import (
    ActionStep,
    Ledger,
    ModerationAction,
    Position,
    Ranks,
    RecordedEvent,
    RecordOutcome,
    Row,
    ScoreRange,
    StoredAction,
)
from support.effort import examples
from support.ledgers import new_board, new_event, open_postgres, open_sqlite
from support.model import ModelBoard, ModelPerson

T = TypeVar("T")

USERS = ["a", "ab", "é", "日本"]
SCORES = [-1.5, 0.0, 0.1, 0.2, 1.0, 2.0, 2.0**53, 1e308]
submissions = st.tuples(
    st.integers(0, 40).map(lambda number: f"event-{number}"),
    st.sampled_from(USERS),
    st.sampled_from(SCORES),
    st.integers(0, 5),
    st.sampled_from([None, None, "eu", "us"]),
    st.sampled_from([-1, 0, 0, 2]),
)
Submitted = tuple[str, str, float, int, str | None, int]
KINDS = [("global",), ("global", "region"), ("global", "circle"), ("global", "region", "circle")]


def _told(standing: Standing | None) -> tuple[float, int, int] | None:
    return None if standing is None else (standing.score, standing.achieved_at, standing.subscore)


class LedgerMachine(RuleBasedStateMachine):
    open_ledger: "staticmethod[[Path], Awaitable[Ledger]]"

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.folder = tempfile.TemporaryDirectory()
        self.ledger: Ledger = self.run(type(self).open_ledger(Path(self.folder.name)))

    def run(self, work: Awaitable[T]) -> T:
        async def wait() -> T:
            return await work

        return self.runner.run(wait())

    def teardown(self) -> None:
        self.run(self.ledger.close())
        self.runner.close()
        self.folder.cleanup()

    @initialize(
        rule=st.sampled_from(Rule),
        order=st.sampled_from(Order),
        kinds=st.sampled_from(KINDS),
        subscore=st.sampled_from([None, *Order]),
    )
    def begin(self, rule: Rule, order: Order, kinds: tuple[str, ...], subscore: Order | None) -> None:
        self.board = self.run(new_board(self.ledger, rule=rule, order=order, segments=kinds, subscore=subscore))
        # Another board of the pod, where each user has a row whose segments must follow the profile.
        self.other = self.run(new_board(self.ledger, segments=("global", "region", "circle")))
        self.run(self.ledger.record([new_event(self.other, user, user, 1.0, 0) for user in USERS]))
        self.model = ModelBoard(rule, order, "earliest", sub_order=subscore)
        self.profiles = {user: ModelPerson() for user in USERS}
        self.voided: dict[str, tuple[str, float, int]] = {}
        # Void actions, with the events that each voided.
        self.acts: list[tuple[StoredAction, list[str]]] = []
        self.acts_were_undone = False
        self.erased: dict[str, int] = {}
        self.erased_ids: set[str] = set()
        self.versions: dict[str, int] = {}
        self.numbers = itertools.count()
        self.look()

    @rule(batch=st.lists(submissions, min_size=1, max_size=12))
    def record(self, batch: list[Submitted]) -> None:
        if self.board.subscore is None:
            batch = [(*each[:5], 0) for each in batch]
        before = {user: self.model.fold(user) for user in USERS}
        where = {user: person.region for user, person in self.profiles.items()}
        expected = [self.expect(*each) for each in batch]
        events = [new_event(self.board, *each[:4], region=each[4], subscore=each[5]) for each in batch]
        records = self.run(self.ledger.record(events))
        assert [record.outcome for record in records] == expected
        for (_, user, *_), record in zip(batch, records, strict=True):
            self.check_record(user, before[user], record)
        moved = {user for user, person in self.profiles.items() if person.region != where[user]}
        told = {row.user_id: row for record in records for row in record.resegmented}
        # A repeated event returns the moved rows again. An erased user may have no row on the other board.
        assert {user for user in moved if user not in self.erased} <= set(told)
        for user, row in told.items():
            assert row.period_id == self.other.periods[0].id
            assert row.segments == self.profiles[user].segments(self.other.segments)

    def expect(
        self, event_id: str, user: str, score: float, at: int, region: str | None, subscore: int
    ) -> RecordOutcome:
        # All events are received at 0, as if they came from a spool, so a later erasure applies to them.
        if user in self.erased and self.erased[user] > 0:
            return RecordOutcome.ERASED
        if event_id in self.erased_ids:
            return RecordOutcome.CONFLICT
        known = self.model.events.get(event_id) or self.voided.get(event_id)
        if known is not None:
            same = known == (user, score, at) and self.model.subscores[event_id] == subscore
            return RecordOutcome.DUPLICATE if same else RecordOutcome.CONFLICT
        self.model.subscores[event_id] = subscore
        self.model.submit(event_id, user, score, at)
        if region is not None:
            self.profiles[user].tell_region(region, at)
        return RecordOutcome.ACCEPTED

    def check_record(self, user: str, before: Any, record: RecordedEvent) -> None:
        """Check that a result has the committed row after the whole batch, and the row before the batch."""
        if record.outcome is RecordOutcome.ERASED:
            assert record.changes == ()
            return
        after = self.model.fold(user)
        if after is None:
            assert all(change.row.standing is None for change in record.changes)
            return
        (change,) = record.changes
        assert change.row.standing is not None
        assert _told(change.row.standing) == (after.score, after.at, after.subscore)
        shown = change.before.standing if change.before else None
        assert _told(shown) == (before and (before.score, before.at, before.subscore))

    @rule(user=st.sampled_from(USERS), number=st.integers(0, 3))
    def remove(self, user: str, number: int) -> None:
        act = ModerationAction(f"{user}-{len(self.voided)}-{number}", "remove", "tester", 0)
        mine = {event_id: event for event_id, event in self.model.events.items() if event[0] == user}
        if not mine:
            with pytest.raises(NotFound):
                self.run(self.ledger.remove_user(self.board, user, act))
            return
        rows = self.run(self.ledger.remove_user(self.board, user, act))
        assert [row.standing for row in rows] == [None]
        assert self.run(self.ledger.remove_user(self.board, user, act)) == rows
        for event_id in mine:
            self.voided[event_id] = self.model.events.pop(event_id)

    def act(self, kind: str, at: int = 0) -> ModerationAction:
        return ModerationAction(f"{kind}-{next(self.numbers)}", kind, "tester", at, "because", None)

    @rule(
        user=st.sampled_from(USERS),
        at=st.integers(0, 6),
        region=st.sampled_from([None, "eu", "us"]),
        circles=st.sets(st.sampled_from(["x", "y"])),
        both=st.booleans(),
    )
    def change_profile(self, user: str, at: int, region: str | None, circles: set[str], both: bool) -> None:
        person = self.profiles[user]
        change = ProfileChange(user, display_name=f"{user} {at}", circles=tuple(circles))
        if both:
            change = replace(change, region=region)
            person.region, person.region_at = region, max(at, person.region_at)
        person.circles = frozenset(circles)
        rows = self.run(self.ledger.profiles.change_profiles("pod", [change], at))
        for row in rows:
            board = self.board if row.period_id == self.board.periods[0].id else self.other
            assert row.segments == person.segments(board.segments)
        (profile,) = self.run(self.ledger.profiles.profiles("pod", [user, "nobody"]))
        assert (profile.display_name, profile.region, profile.region_at) == (
            f"{user} {at}",
            person.region,
            person.region_at,
        )
        assert profile.circles == tuple(sorted(circles))

    @rule(user=st.sampled_from(USERS), circle=st.sampled_from(["x", "y"]), join=st.booleans())
    def join_or_leave(self, user: str, circle: str, join: bool) -> None:
        change = ProfileChange(user, join=(circle,)) if join else ProfileChange(user, leave=(circle,))
        self.run(self.ledger.profiles.change_profiles("pod", [change], 0))
        person = self.profiles[user]
        person.circles = person.circles | {circle} if join else person.circles - {circle}

    @rule(user=st.sampled_from(USERS), everywhere=st.booleans(), hidden=st.sampled_from(Hidden))
    def hide(self, user: str, everywhere: bool, hidden: Hidden) -> None:
        where = 0 if everywhere else self.board.id
        act = self.act("hide")
        number, rows = self.run(self.ledger.profiles.hide("pod", where, user, hidden, act))
        if hidden is Hidden.NO:
            self.profiles[user].hidden.pop(where, None)
        else:
            self.profiles[user].hidden[where] = int(hidden)
        for row in rows:
            board = self.board if row.period_id == self.board.periods[0].id else self.other
            assert row.hidden == self.profiles[user].hidden_on(board.id)
        again, _ = self.run(self.ledger.profiles.hide("pod", where, user, hidden, act))
        assert again == number
        assert self.run(self.ledger.profiles.hides("pod", user)) == self.profiles[user].hidden

    @rule(chosen=st.sets(st.integers(0, 40).map(lambda number: f"event-{number}"), min_size=1))
    def void(self, chosen: set[str]) -> None:
        events = self.run(self.ledger.profiles.events_by_id(self.board.id, [*chosen, "nothing"]))
        assert {e.event_id for e in events} - self.erased_ids == {
            event_id for event_id in chosen if event_id in self.model.events or event_id in self.voided
        }
        act = self.run(self.ledger.profiles.begin_action("pod", self.board.id, None, self.act("void")))
        assert act.done_at is None
        assert act in self.run(self.ledger.profiles.unfinished_actions(1))
        counted = [event_id for event_id in chosen if event_id in self.model.events]
        for event_id in counted:
            self.voided[event_id] = self.model.events.pop(event_id)
        touched = self.run(self.ledger.profiles.void(self.board, act, [event.seq for event in events]))
        assert touched.events == len(counted)
        self.check_touched(touched)
        act = self.run(self.ledger.profiles.finish_action(act, 9))
        assert (act.events, act.done_at, act.reason) == (len(counted), 9, "because")
        self.acts.append((act, counted))

    @precondition(lambda self: self.acts)
    @rule(data=st.data())
    def restore(self, data: st.DataObject) -> None:
        act, event_ids = data.draw(st.sampled_from(self.acts))
        self.acts.remove((act, event_ids))
        self.acts_were_undone = True
        events = self.run(self.ledger.profiles.voided_by(act.id, 100))
        left = [event_id for event_id in event_ids if event_id not in self.erased_ids]
        assert sorted(event.event_id for event in events) == sorted(left)
        undo = self.run(self.ledger.profiles.begin_action("pod", self.board.id, None, self.act("restore")))
        for event_id in left:
            self.model.events[event_id] = self.voided.pop(event_id)
        touched = self.run(self.ledger.profiles.restore(self.board, act, undo, [event.seq for event in events]))
        assert touched.events == len(left)
        self.check_touched(touched)
        self.run(self.ledger.profiles.finish_action(undo, 9, undoes=act.id))
        found = self.run(self.ledger.profiles.find_action("pod", act.id))
        assert found is not None
        assert found.undone_by == undo.id

    def check_touched(self, touched: ActionStep) -> None:
        for row in touched.rows:
            player, standing = self.model.fold(row.user_id), row.standing
            assert (player and (player.score, player.at, player.subscore)) == _told(standing)

    @rule(user=st.sampled_from(USERS), at=st.integers(0, 5))
    def erase(self, user: str, at: int) -> None:
        stand_in = f"erased-{next(self.numbers)}"
        rows = self.run(self.ledger.profiles.erase("pod", user, stand_in, self.act("erase", at)))
        assert rows is not None
        assert all(row.user_id == user and row.standing is None for row in rows)
        gone = [e for e, (who, _, _) in [*self.model.events.items(), *self.voided.items()] if who == user]
        for event_id in gone:
            self.model.events.pop(event_id, None)
            self.voided.pop(event_id, None)
        self.erased_ids |= set(gone)
        self.erased[user] = at
        self.profiles[user] = ModelPerson()
        assert self.run(self.ledger.profiles.profiles("pod", [user])) == []

    @rule()
    def sweep_erasures(self) -> None:
        for erasure in self.run(self.ledger.profiles.unswept_erasures(100)):
            self.run(self.ledger.profiles.sweep_erasure(erasure))
            if self.model.fold(erasure.user_id) is None:
                self.versions.pop(erasure.user_id, None)
                self.known.pop(erasure.user_id, None)
        assert self.run(self.ledger.profiles.unswept_erasures(100)) == []

    @rule()
    def look(self) -> None:
        """Take a position, from which `changes` must return every row changed since."""
        self.position = self.run(self.ledger.position())
        self.known = dict(self.versions)

    @rule()
    def reopen(self) -> None:
        """Reopen the ledger: a restart loses nothing."""
        self.run(self.ledger.close())
        self.ledger = self.run(type(self).open_ledger(Path(self.folder.name)))
        self.board, self.other = self.run(self.ledger.boards())

    @precondition(lambda self: hasattr(self, "board"))
    @invariant()
    def rows_equal_the_model(self) -> None:
        self.run(self.check_rows())
        self.run(self.check_others())

    async def check_others(self) -> None:
        async for chunk in self.ledger.rows(self.other.periods[0].id):
            for row in chunk:
                self.check_person(self.other, row)

    async def check_rows(self) -> None:
        (period,) = self.board.periods
        rows = [row async for chunk in self.ledger.rows(period.id) for row in chunk]
        stored = {row.user_id: row.standing for row in rows}
        assert [row.user_id for row in rows] == sorted(stored, key=str.encode)
        for user in USERS:
            player, standing = self.model.fold(user), stored.get(user)
            assert (player and (player.score, player.at, player.subscore)) == _told(standing)
        for row in rows:
            assert row.version >= self.versions.get(row.user_id, 0)
            self.versions[row.user_id] = row.version
            self.check_person(self.board, row)
        assert len({row.version for row in rows}) == len(rows)
        changed = {
            row.user_id: row
            async for chunk in self.ledger.changes(self.position)
            for row in chunk
            if row.period_id == period.id
        }
        late = {row.user_id: row for row in rows if row.version > self.known.get(row.user_id, 0)}
        assert {user: changed.get(user) for user in late} == late
        assert (await self.ledger.count_changes(self.position, 1000) > 0) >= bool(
            [row for row in late.values() if row.standing is not None]
        )
        for ties in Ties:
            model = dataclasses.replace(self.model, capacity=None, ties=ties, events=self.visible_events())
            ranking = Ranking(period.id, GLOBAL, self.board.order, ties, 3, subscore=self.board.subscore)
            best = [row async for chunk in self.ledger.periods.ordered_rows(ranking) for row in chunk]
            assert [row.user_id for row in best] == [player.user for player in model.everybody()[:3]]
        refolded = [user async for chunk in self.ledger.refold(self.board) for user in chunk]
        for each in refolded:
            if each.user_id not in self.profiles or (each.user_id in self.erased and each.user_id not in self.versions):
                # The user was erased, or was removed after an erasure and swept.
                assert (each.rows, each.fresh) == ((), {})
                continue
            (row,) = each.rows
            assert each.fresh.get(period.id) == row.standing
            if row.standing is not None:
                assert (each.segments, each.hidden) == (row.segments, row.hidden)
        assert await self.ledger.count_events(self.board.id) == len(self.model.events)
        exported = await self.ledger.board_events(self.board.id, after_seq=0, limit=1000, voided=False)
        assert {e.event_id: (e.user_id, e.score, e.at) for e in exported} == self.model.events
        if not self.acts_were_undone:
            # In order of arrival, also within a batch.
            assert [e.event_id for e in exported] == list(self.model.events)
        every = await self.ledger.board_events(self.board.id, after_seq=0, limit=1000, voided=True)
        voided = {e.event_id: (e.user_id, e.score, e.at) for e in every if e.voided}
        assert {key: event for key, event in voided.items() if event[0] in USERS} == self.voided
        assert {key for key, event in voided.items() if event[0] not in USERS} == self.erased_ids
        assert [e for e in every if not e.voided] == exported
        for user_id in USERS:
            history = await self.ledger.user_events(self.board.id, user_id, before_seq=None, limit=1000)
            assert [event.seq for event in history] == sorted((event.seq for event in history), reverse=True)
            assert {e.event_id for e in history if not e.voided} == {
                event_id for event_id, event in self.model.events.items() if event[0] == user_id
            }
            assert {e.event_id for e in history if e.voided} == {
                event_id for event_id, event in self.voided.items() if event[0] == user_id
            }

    def check_person(self, board: Board, row: Row) -> None:
        if row.standing is not None:
            person = self.profiles[row.user_id]
            assert row.segments == person.segments(board.segments)
            assert row.hidden == person.hidden_on(board.id)

    def visible_events(self) -> dict[str, tuple[str, float, int]]:
        return {
            event_id: event
            for event_id, event in self.model.events.items()
            if not self.profiles[event[0]].hidden_on(self.board.id)
        }

    async def check_ranks(self, ranks: Ranks, ties: Ties, capacity: int | None) -> None:
        """Check that ranks computed in SQL equal those of an index with the same rows, for every kind of read."""
        (period,) = self.board.periods
        rows = [row async for chunk in self.ledger.rows(period.id) for row in chunk]
        hidden = next((row for row in rows if row.hidden is not Hidden.NO and row.standing is not None), None)
        used = {segment for row in rows for segment in row.segments}
        for segment in ["global", *sorted(used)[:1], "region:nowhere"]:
            ranking = Ranking(period.id, segment, self.board.order, ties, capacity, subscore=self.board.subscore)
            if hidden is not None and hidden.standing is not None and segment in {"global", *hidden.segments}:
                standing = hidden.standing
                viewer = ShadowViewer(hidden.user_id, standing.score, standing.achieved_at, standing.subscore)
                ranking = replace(ranking, shadow_viewer=viewer)
            index = MemoryIndex()
            await index.load(ranking, self.ledger.rows(period.id), Position())
            assert await ranks.count(ranking) == await index.count(ranking)
            for buckets in (1, 2, 20):
                for percentiles in (DECILES, (0, 333_333, 1_000_000)):
                    spread = [await each.distribution(ranking, buckets, percentiles) for each in (ranks, index)]
                    assert spread[0] == spread[1]
            for style in RankStyle:
                for offset, limit in [(0, 10), (1, 1), (1, 2), (5, 5)]:
                    assert await ranks.top(ranking, offset, limit, style) == await index.top(
                        ranking, offset, limit, style
                    )
                for scores, from_end in ((ScoreRange(), True), (ScoreRange(2, 1), False), (ScoreRange(1, 2), True)):
                    near = [
                        await each.in_range(ranking, scores, -1, 3, style, from_end=from_end) for each in (ranks, index)
                    ]
                    assert near[0] == near[1]
                assert await ranks.find_many(ranking, USERS, style) == await index.find_many(ranking, USERS, style)
                for user in [*USERS, "nobody"]:
                    assert await ranks.find(ranking, user, style) == await index.find(ranking, user, style)
                    assert await ranks.around(ranking, user, 1, 1, style) == await index.around(
                        ranking, user, 1, 1, style
                    )


class SqliteLedgerMachine(LedgerMachine):
    open_ledger = staticmethod(open_sqlite)


TestSqliteLedger = SqliteLedgerMachine.TestCase
TestSqliteLedger.settings = settings(max_examples=examples(100), stateful_step_count=20)


class PostgresLedgerMachine(LedgerMachine):
    open_ledger = staticmethod(open_postgres)

    @rule(ties=st.sampled_from(Ties), capacity=st.sampled_from([None, 2]))
    def read(self, ties: Ties, capacity: int | None) -> None:
        assert self.ledger.ranks is not None
        self.run(self.check_ranks(self.ledger.ranks, ties, capacity))


TestPostgresLedger = PostgresLedgerMachine.TestCase
TestPostgresLedger.settings = settings(max_examples=examples(40), stateful_step_count=20)
