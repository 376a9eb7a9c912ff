"""Contract of the StreamStore of every ledger: schemas, replays, and reading accepted events in order."""

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from laurels.core.periods import terms_of, with_period
from laurels.core.schemas import (
    FieldMappings,
    FieldSource,
    Schema,
    SchemaState,
    SchemaTerms,
    ScoreType,
    TimestampFormat,
)
from laurels.core.windows import ALL_TIME, PeriodState, Window
from laurels.errors import NotFound
from laurels.ports import BoardUpdate, Cursors, Ledger, Pod, Replay
from support.ledgers import Opening, new_board, new_event, open_postgres, open_sqlite, with_ledger
from support.waiting import PATIENCE_S, until_async


@pytest.fixture(params=[open_sqlite, open_postgres], ids=["sqlite", "postgres"])
def opening(request: pytest.FixtureRequest) -> Opening:
    chosen: Opening = request.param
    return chosen


def new_schema(version: str, created_at: int = 0, state: SchemaState = SchemaState.DRAFT) -> Schema:
    terms = SchemaTerms(
        FieldMappings("user.id", "score", "board", None, "where"),
        TimestampFormat.EPOCH_SECONDS,
        ScoreType.INTEGER,
        FieldSource(header="event-id"),
        FieldSource(field="meta.v"),
    )
    return Schema("pod", version, state, terms, created_at, created_at)


def test_schemas_are_stored_updated_and_deleted(opening: Opening, tmp_path: Path) -> None:
    async def check(ledger: Ledger) -> None:
        streams = ledger.streams
        first, second = new_schema("1.0", 5), new_schema("2.0", 6)
        revision = await ledger.registry_revision()
        assert await streams.put_schema(first, keep_state=False) == first
        await streams.put_schema(second, keep_state=True)
        assert await ledger.registry_revision() > revision
        assert await streams.schemas() == [second, first]
        # The creation time does not change.
        changed = replace(first, state=SchemaState.ACTIVE, created_at=9, updated_at=9)
        assert await streams.put_schema(changed, keep_state=False) == replace(changed, created_at=5)
        assert await streams.schemas() == [second, replace(changed, created_at=5)]
        kept = await streams.put_schema(replace(changed, state=SchemaState.DRAFT), keep_state=True)
        assert kept.state is SchemaState.ACTIVE
        # A schema in use can't be deleted.
        assert not await streams.delete_schema("pod", "1.0")
        retired = await streams.set_schema_state("pod", "1.0", SchemaState.RETIRED, 11)
        assert retired == replace(changed, created_at=5, updated_at=11, state=SchemaState.RETIRED)
        assert await streams.set_schema_state("pod", "9", SchemaState.ACTIVE, 11) is None
        revision = await ledger.registry_revision()
        assert await streams.delete_schema("pod", "1.0")
        assert not await streams.delete_schema("pod", "1.0")
        assert await ledger.registry_revision() > revision
        assert await streams.schemas() == [second]
        with pytest.raises(NotFound):
            await streams.put_schema(replace(first, pod_id="nobody"), keep_state=False)

    with_ledger(opening, tmp_path, check)


def test_first_replay_of_a_dead_letter_is_kept(opening: Opening, tmp_path: Path) -> None:
    async def check(ledger: Ledger) -> None:
        streams = ledger.streams
        await streams.note_replays("pod", [Replay("0-1", "accepted", 1), Replay("0-2", "duplicate", 1)])
        await streams.note_replays("pod", [Replay("0-2", "accepted", 2), Replay("1-1", "accepted", 2)])
        found = await streams.replays("pod", ["0-2", "1-1", "9-9"])
        assert sorted(found, key=lambda each: each.record_id) == [
            Replay("0-2", "duplicate", 1),
            Replay("1-1", "accepted", 2),
        ]
        assert await streams.replays("other", ["0-2"]) == []

    with_ledger(opening, tmp_path, check)


def test_each_accepted_event_is_returned_once(opening: Opening, tmp_path: Path) -> None:
    """Even if several writers record events while a reader follows."""

    async def check(ledger: Ledger) -> None:
        boards = [await new_board(ledger, uuid=f"b{n}") for n in range(3)]
        await ledger.record([new_event(boards[0], "before", "u", 1.0, 1)])
        begun = await ledger.streams.begin_publishing()
        cursor = begun.every
        seen: list[str] = []
        done = asyncio.Event()
        rng = random.Random(4)

        async def write(writer: int) -> None:
            for number in range(30):
                events = [
                    new_event(rng.choice(boards), f"{writer}-{number}-{each}", f"u{each}", 1.0, 1)
                    for each in range(rng.randrange(1, 6))
                ]
                written.extend(event.event_id for event in events)
                await ledger.record(events)

        async def follow() -> None:
            nonlocal cursor
            # Another transaction on the same PostgreSQL may delay the last events for a moment.
            while not done.is_set() or len(seen) < len(written):
                events, cursor = await ledger.streams.accepted_after(cursor, 7)
                seen.extend(event.event_id for _, event in events)
                await asyncio.sleep(0)

        written: list[str] = []
        following = asyncio.create_task(follow())
        await asyncio.gather(*(write(writer) for writer in range(4)))
        done.set()
        async with asyncio.timeout(PATIENCE_S):
            await following
        assert sorted(seen) == sorted(written)
        assert await ledger.streams.move_cursors(begun, Cursors(cursor))
        assert await ledger.streams.begin_publishing() == Cursors(cursor)
        # A caller with outdated cursors can't move them.
        assert not await ledger.streams.move_cursors(begun, Cursors(begun.every, {"pod": begun.every}))
        assert await ledger.streams.begin_publishing() == Cursors(cursor)
        # A duplicate is not an accepted event, so it is not returned.
        await ledger.record([new_event(boards[0], "before", "u", 1.0, 1)])
        assert await ledger.streams.accepted_after(cursor, 10) == ([], cursor)

    with_ledger(opening, tmp_path, check)


def test_accepted_events_can_be_read_per_pod(opening: Opening, tmp_path: Path) -> None:
    """One pod up to the cursor of the other pods, and the other pods without it."""

    async def check(ledger: Ledger) -> None:
        ours = await new_board(ledger, uuid="ours", pod_id="pod")
        await ledger.create_pod(Pod("other", "Other", 1))
        theirs = await new_board(ledger, uuid="theirs", pod_id="other")
        begun = await ledger.streams.begin_publishing()
        for number in range(3):
            await ledger.record(
                [new_event(ours, f"a{number}", "u", 1.0, 1), new_event(theirs, f"b{number}", "u", 1.0, 1)]
            )

        async def given(**choice: Any) -> tuple[list[str], str]:
            found, cursor = await ledger.streams.accepted_after(begun.every, 10, **choice)
            return [event.event_id for _, event in found], cursor

        async def complete() -> bool:
            return len((await given())[0]) == 6

        await until_async(complete, "all events")
        names, cursor = await given(without=["other"])
        assert names == ["a0", "a1", "a2"]
        await ledger.record([new_event(theirs, "b3", "u", 1.0, 1)])
        assert (await given(pod_id="other", up_to=cursor))[0] in (["b0", "b1"], ["b0", "b1", "b2"])
        assert await ledger.streams.move_cursors(begun, Cursors(cursor, {"other": begun.every}))
        assert await ledger.streams.begin_publishing() == Cursors(cursor, {"other": begun.every})

    with_ledger(opening, tmp_path, check)


def test_only_frozen_periods_are_returned_for_publishing(opening: Opening, tmp_path: Path) -> None:
    async def check(ledger: Ledger) -> None:
        board = await new_board(ledger, windows=(Window("daily"), ALL_TIME))
        await ledger.streams.begin_publishing()
        assert await ledger.streams.unpublished_periods(10) == []
        (day, *_) = board.periods
        closed = replace(day, state=PeriodState.CLOSED, terms=terms_of(board, day))
        board = await ledger.update_board(BoardUpdate(with_period(board, closed), periods=(closed,)))
        assert await ledger.streams.unpublished_periods(10) == []
        assert await ledger.periods.finish_freeze(board, closed, 0, [], 1)
        ((board_id, period),) = await ledger.streams.unpublished_periods(10)
        assert (board_id, period.id, period.state) == (board.id, day.id, PeriodState.FROZEN)
        await ledger.streams.period_published(period.id)
        assert await ledger.streams.unpublished_periods(10) == []

    with_ledger(opening, tmp_path, check)
