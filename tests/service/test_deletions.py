"""Boards that are deleted for good: nothing of them is left, and nothing of others is gone."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from laurels.core.board import Board
from laurels.core.instants import SECOND_US
from laurels.core.people import Hidden
from laurels.core.rewards import Between, Reward
from laurels.core.scores import Rule
from laurels.core.windows import ALL_TIME, Window
from laurels.errors import Invalid, LaurelsError, NotFound
from laurels.ports import Ledger, Role
from laurels.service.boards import deletions
from laurels.service.boards.caller import Caller
from laurels.service.laurels import Laurels
from laurels.service.moderation.moderation import EventFilter
from laurels.service.read.reads import Selection
from laurels.service.write.submissions import Submission
from support.services import Stage, differences

ADMIN = Caller(Role.ADMIN, None, "test")
DAY = 86_400 * SECOND_US
# Where a deleted board leaves its own row and its last period.
TOMBSTONES = {"boards", "periods"}


async def create(laurels: Laurels, uuid: str) -> Board:
    board = Board(
        id=0,
        uuid=uuid,
        pod_id="default",
        name=uuid,
        created_at=0,
        rule=Rule.INCREMENT,
        windows=(Window("daily"), ALL_TIME),
        rewards=(Reward("cup", "gold", ranks=Between(1, 1)),),
    )
    return await laurels.boards.create(board, None)


async def contents(ledger: Ledger) -> dict[str, set[str]]:
    """Return all rows of a SQLite ledger that name a board or a period, by table."""
    found: dict[str, set[str]] = {}
    batches: AsyncIterator[Any] = ledger.contents()  # type: ignore[attr-defined]
    async for batch in batches:
        if {"board_id", "period_id"} & set(batch.columns) or batch.table == "boards":
            found.setdefault(batch.table, set()).update(map(repr, batch.rows))
    return found


async def play(laurels: Laurels, uuid: str) -> None:
    """Give a board events, rows, voided and hidden users, final ranks, grants and messages."""
    for number in range(25):
        board = laurels.boards.to_read(ADMIN, uuid)
        await laurels.submissions.submit(board, Submission(f"u{number % 7}", number + 1))
    board = laurels.boards.to_read(ADMIN, uuid)
    await laurels.moderation.void(ADMIN, board, EventFilter(user_id="u3"), "test", f"void-{uuid}")
    await laurels.moderation.hide(ADMIN, board.pod_id, board, "u4", Hidden.YES, "test", None)


async def purged(laurels: Laurels) -> None:
    while await laurels.ledger.boards_to_purge():
        await laurels.deletions.purge()


def test_deleted_board_leaves_nothing_and_others_keep_everything(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deletions, "ROWS_PER_STEP", 3)

    async def run() -> None:
        async with stage.running() as laurels:
            await create(laurels, "stays")
            await play(laurels, "stays")
            before = await laurels.reads.top(laurels.boards.to_read(ADMIN, "stays"), Selection(window="all"), 0, 100)
            stored = await contents(laurels.ledger) if stage.kind == "embedded" else {}
            await create(laurels, "goes")
            await play(laurels, "goes")
            stage.clock.now += DAY
            await laurels.jobs.run_due()
            board = laurels.boards.to_read(ADMIN, "goes")
            events = await laurels.ledger.count_events(board.id)
            assert events > 0

            await laurels.deletions.delete(board, "goes")
            with pytest.raises(NotFound):
                laurels.boards.to_read(ADMIN, "goes")
            # The events that are left can't come back with another board that takes the UUID.
            fresh = await create(laurels, "goes")
            assert fresh.id > board.id
            assert {period.id for period in fresh.periods}.isdisjoint(period.id for period in board.periods)
            assert await laurels.ledger.count_events(fresh.id) == 0

            await purged(laurels)
            assert await laurels.ledger.count_events(board.id) == 0
            for period in board.periods:
                assert await laurels.ledger.rows_of_users(period.id, [f"u{number}" for number in range(7)]) == []
            if stage.kind == "embedded":
                left = await contents(laurels.ledger)
                own = {str(board.id)} | {str(period.id) for period in board.periods}
                for table in left.keys() - TOMBSTONES:
                    more = left[table] - stored.get(table, set())
                    assert not [row for row in more if any(f"({each}," in row for each in own)], table
            after = await laurels.reads.top(laurels.boards.to_read(ADMIN, "stays"), Selection(window="all"), 0, 100)
            assert after.value.entries == before.value.entries
            await laurels.submissions.submit(fresh, Submission("ada", 5))
            assert await differences(laurels) == []

    asyncio.run(run())


def test_deletion_needs_the_uuid_again(stage: Stage) -> None:
    async def run() -> None:
        async with stage.running() as laurels:
            board = await create(laurels, "careful")
            with pytest.raises(Invalid) as caught:
                await laurels.deletions.delete(board, "careless")
            assert (caught.value.code, caught.value.field) == ("not_confirmed", "confirm")
            assert laurels.boards.to_read(ADMIN, "careful").id == board.id

    asyncio.run(run())


def test_scores_that_arrive_during_a_deletion_count_or_are_refused(stage: Stage) -> None:
    async def run() -> None:
        async with stage.running() as laurels:
            board = await create(laurels, "busy")

            async def submit(number: int) -> bool:
                try:
                    await laurels.submissions.submit(board, Submission(f"u{number}", number))
                except LaurelsError as error:
                    assert error.code == "board_not_found"  # noqa: PT017 - both ends are allowed
                    return False
                return True

            writes = [asyncio.create_task(submit(number)) for number in range(200)]
            await asyncio.sleep(0)
            await laurels.deletions.delete(board, "busy")
            writes += [asyncio.create_task(submit(number)) for number in range(200, 220)]
            accepted = await asyncio.gather(*writes)
            assert not any(accepted[200:])
            assert await laurels.ledger.count_events(board.id) <= sum(accepted)
            await purged(laurels)
            assert await laurels.ledger.count_events(board.id) == 0

    asyncio.run(run())


def test_other_servers_forget_a_deleted_board(stage: Stage) -> None:
    if stage.kind == "embedded":
        # One server owns the file. A restarted one must not know the board either.
        async def restart() -> None:
            async with stage.running() as laurels:
                await laurels.deletions.delete(await create(laurels, "goes"), "goes")
            async with stage.running() as laurels:
                with pytest.raises(NotFound):
                    laurels.boards.to_read(ADMIN, "goes")
                assert await laurels.ledger.boards_to_purge() != []
                await laurels.jobs.run_due()
                assert await laurels.ledger.boards_to_purge() == []

        asyncio.run(restart())
        return

    async def run() -> None:
        async with stage.running() as one, stage.running() as other:
            board = await create(one, "goes")
            await other.registry.refresh()
            theirs = other.boards.to_read(ADMIN, "goes")
            await one.deletions.delete(board, "goes")
            with pytest.raises(LaurelsError) as caught:
                await other.submissions.submit(theirs, Submission("ada", 1))
            assert caught.value.code == "board_not_found"
            with pytest.raises(NotFound):
                other.boards.to_read(ADMIN, "goes")

    asyncio.run(run())


def test_acts_of_a_deleted_board_are_not_listed(stage: Stage) -> None:
    async def run() -> None:
        async with stage.running() as laurels:
            for uuid in ("goes", "stays"):
                await create(laurels, uuid)
                await play(laurels, uuid)
            stays = laurels.boards.to_read(ADMIN, "stays")
            await laurels.deletions.delete(laurels.boards.to_read(ADMIN, "goes"), "goes")
            acts = await laurels.moderation.actions("default", None, 2**62, 100)
            assert {act.board_id for act in acts} == {stays.id}

    asyncio.run(run())
