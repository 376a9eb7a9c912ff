"""Contract of the Ledger port, call by call: promises that the model in test_ledger_contract.py can't check."""

import random
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from laurels.core.order import Order
from laurels.core.people import ProfileChange
from laurels.core.quotas import Quotas
from laurels.core.scores import Rule
from laurels.errors import Conflict, NotFound, Unavailable
from laurels.ports import (
    AuditEntry,
    AuditFilter,
    BoardUpdate,
    Event,
    Key,
    Ledger,
    ModerationAction,
    Pod,
    RecordOutcome,
    Role,
    Scope,
)
from support.ledgers import Opening, new_board, new_event, open_postgres, open_sqlite, with_ledger

USERS = ["a", "ab", "é", "日本"]


@pytest.fixture(params=[open_sqlite, open_postgres], ids=["sqlite", "postgres"])
def opening(request: pytest.FixtureRequest) -> Opening:
    return request.param  # type: ignore[no-any-return]


def test_rows_do_not_depend_on_event_order_batching_or_repetition(tmp_path: Path, opening: Opening) -> None:
    """For every rule and order: shuffling, batching and repeating events at random does not change the rows."""
    rng = random.Random(20)
    events = [
        (f"e{number}", rng.choice(USERS), rng.choice([0.1, 0.2, 0.3, 1.0, -1.0, 1e16, 0.0]), rng.randrange(9))
        for number in range(60)
    ]

    async def rows_after(ledger: Ledger, rule: Rule, order: Order, sent: list[tuple[str, str, float, int]]) -> Any:
        board = await new_board(ledger, rule=rule, order=order)
        while sent:
            size = rng.randrange(1, 15)
            await ledger.record([new_event(board, *each) for each in sent[:size]])
            sent = sent[size:]
        return [(row.user_id, row.standing) async for chunk in ledger.rows(board.periods[0].id) for row in chunk]

    async def compare(ledger: Ledger) -> None:
        for kind in Rule:
            for order in Order:
                expected = await rows_after(ledger, kind, order, events)
                for _ in range(5):
                    sent = events + rng.choices(events, k=40)
                    rng.shuffle(sent)
                    assert await rows_after(ledger, kind, order, sent) == expected

    with_ledger(opening, tmp_path, compare)


def test_unstamped_event_repeated_at_another_time_is_a_duplicate(tmp_path: Path, opening: Opening) -> None:
    async def repeat(ledger: Ledger) -> list[RecordOutcome]:
        board = await new_board(ledger)
        events = [
            new_event(board, "e", "ada", 1.0, 10, stamped=True),
            new_event(board, "e", "ada", 1.0, 99, stamped=True),
            new_event(board, "e", "ada", 1.0, 10, stamped=False),
            new_event(board, "e", "ada", 1.0, 11, stamped=False),
            new_event(board, "e", "ada", 1.0, 10, stamped=True, metadata='{"a":1}'),
        ]
        return [record.outcome for record in await ledger.record(events)]

    outcomes = with_ledger(opening, tmp_path, repeat)
    assert outcomes == [RecordOutcome.ACCEPTED, *[RecordOutcome.DUPLICATE] * 2, *[RecordOutcome.CONFLICT] * 2]


def test_refused_event_is_compared_only_with_events_before_it(tmp_path: Path, opening: Opening) -> None:
    """A refused event is not stored, so a valid event with its id is accepted; a repetition of that one conflicts."""

    async def record(ledger: Ledger) -> list[list[RecordOutcome]]:
        board = await new_board(ledger)
        late = Conflict("board_ended", "The period has ended.")
        batches = [
            [new_event(board, "x", "ada", 1.0, 10, refused=late), new_event(board, "x", "ada", 2.0, 10)],
            [new_event(board, "y", "ada", 2.0, 10), new_event(board, "y", "ada", 1.0, 10, refused=late)],
            [new_event(board, "x", "ada", 2.0, 10, refused=late), new_event(board, "x", "ada", 2.0, 10)],
        ]
        return [[record.outcome for record in await ledger.record(batch)] for batch in batches]

    outcomes = with_ledger(opening, tmp_path, record)
    assert outcomes == [
        [RecordOutcome.LATE, RecordOutcome.ACCEPTED],
        [RecordOutcome.ACCEPTED, RecordOutcome.CONFLICT],
        [RecordOutcome.DUPLICATE, RecordOutcome.DUPLICATE],
    ]


def test_batch_is_recorded_completely_or_not_at_all(tmp_path: Path, opening: Opening) -> None:
    async def fail(ledger: Ledger) -> int:
        board = await new_board(ledger)
        good = new_event(board, "good", "ada", 1.0, 0)
        bad = new_event(board, "bad", "ada", float("nan"), 0)  # both ledgers refuse it
        with pytest.raises(Unavailable):
            await ledger.record([good, bad])
        assert [row async for chunk in ledger.rows(board.periods[0].id) for row in chunk] == []
        return await ledger.count_events()

    assert with_ledger(opening, tmp_path, fail) == 0


def test_users_are_found_by_prefix_of_their_display_name(tmp_path: Path, opening: Opening) -> None:
    names = {"u1": "Ada", "u2": "adaLovelace", "u3": "Ad", "u4": "Éva", "u5": "김민아", "u6": "\uff21\uff24\uff21"}

    async def find(ledger: Ledger) -> None:
        await ledger.create_pod(Pod("other", "Other", 0))
        changes = [ProfileChange(user_id, display_name=name) for user_id, name in names.items()]
        await ledger.profiles.change_profiles("pod", changes, 0)
        await ledger.profiles.change_profiles("other", [ProfileChange("u9", display_name="Ada")], 0)
        people = ledger.profiles
        assert await people.users_named("pod", "ADA", 10) == ["u1", "u6", "u2"]
        assert await people.users_named("pod", "ad", 2) == ["u3", "u1"]
        assert await people.users_named("pod", "e\u0301V", 10) == ["u4"]
        assert await people.users_named("pod", "김", 10) == ["u5"]
        assert await people.users_named("pod", "%", 10) == []
        await people.change_profiles(
            "pod", [ProfileChange("u1", display_name="Bo"), ProfileChange("u2", display_name=None)], 0
        )
        assert await people.users_named("pod", "ada", 10) == ["u6"]
        assert await people.users_named("pod", "b", 10) == ["u1"]

    with_ledger(opening, tmp_path, find)


def test_boards_keys_and_pods_are_unchanged_after_reopen(tmp_path: Path, opening: Opening) -> None:
    async def store(ledger: Ledger) -> Any:
        board = await new_board(
            ledger, metadata={"a": [1, None]}, capacity=5, min_score=-1.5, public=True, ties="shared"
        )
        changed = await ledger.update_board(BoardUpdate(board))
        assert changed.revision == board.revision + 1
        with pytest.raises(Conflict):
            await ledger.update_board(BoardUpdate(board))
        with pytest.raises(Conflict):
            await ledger.create_board(board, ())
        key = Key("k1", "pod", Role.CLIENT, None, b"digest", 5)
        await ledger.create_key(key)
        await ledger.create_key(Key("k2", "pod", Role.SERVER, "x", b"digest", 6))
        with pytest.raises(Conflict):
            await ledger.create_key(key)
        with pytest.raises(NotFound):
            await ledger.create_key(Key("k3", "nobody", Role.SERVER, "x", b"digest", 6))
        assert await ledger.revoke_key("k2")
        assert not await ledger.revoke_key("k2")
        with pytest.raises(Conflict):
            await ledger.create_pod(Pod("pod", "Another name", 1))
        return changed, key

    changed, key = with_ledger(opening, tmp_path, store)

    async def read(ledger: Ledger) -> Any:
        return await ledger.boards(), await ledger.keys(), await ledger.pods()

    assert with_ledger(opening, tmp_path, read) == ([changed], [key], [Pod("pod", "Pod", 0)])


def test_scopes_ends_and_uses_of_keys_are_stored(tmp_path: Path, opening: Opening) -> None:
    scopes = (Scope.READ, Scope.SCORES_WRITE)

    async def store(ledger: Ledger) -> Any:
        await new_board(ledger)
        await ledger.create_key(Key("k1", "pod", Role.SERVER, None, b"digest", 5, 9, scopes))
        await ledger.create_key(Key("k2", None, Role.ADMIN, "ada", b"digest", 6))
        before = await ledger.registry_revision()
        await ledger.mark_used([("k2", 20), ("k1", 30), ("gone", 40)])
        await ledger.mark_used([("k1", 10)])
        # The time of the last use is no reason to reload the keys.
        assert await ledger.registry_revision() == before
        assert await ledger.expire_key("k2", 50)
        assert not await ledger.expire_key("gone", 50)
        assert await ledger.registry_revision() > before

    async def read(ledger: Ledger) -> Any:
        return await ledger.keys()

    with_ledger(opening, tmp_path, store)
    assert with_ledger(opening, tmp_path, read) == [
        Key("k1", "pod", Role.SERVER, None, b"digest", 5, 9, scopes, 30),
        Key("k2", None, Role.ADMIN, "ada", b"digest", 6, 50, None, 20),
    ]


def test_revocations_of_tokens_and_origins_of_pods_are_stored(tmp_path: Path, opening: Opening) -> None:
    async def store(ledger: Ledger) -> Any:
        await new_board(ledger)
        await ledger.revoke_tokens("pod", "ada", 100, 0)
        await ledger.revoke_tokens("pod", "bob", 200, 0)
        await ledger.revoke_tokens("pod", "bob", 150, 0)
        assert await ledger.token_revocations(0) == {("pod", "ada"): 100, ("pod", "bob"): 200}
        assert await ledger.token_revocations(101) == {("pod", "bob"): 200}
        before = await ledger.registry_revision()
        await ledger.revoke_tokens("pod", "cyd", 300, 120)
        assert await ledger.registry_revision() > before
        with pytest.raises(NotFound):
            await ledger.revoke_tokens("nobody", "ada", 100, 0)
        with pytest.raises(NotFound):
            await ledger.change_pod("nobody", ["*"], None)
        await ledger.change_pod("pod", None, Quotas(boards=5, users=0))
        return await ledger.change_pod("pod", ["https://a.example", "https://b.example"], None)

    async def read(ledger: Ledger) -> Any:
        return await ledger.token_revocations(0), await ledger.pods()

    pod = with_ledger(opening, tmp_path, store)
    assert pod.allowed_origins == ("https://a.example", "https://b.example")
    assert pod.quotas == Quotas(boards=5, users=0)
    assert with_ledger(opening, tmp_path, read) == ({("pod", "bob"): 200, ("pod", "cyd"): 300}, [pod])


def test_usage_of_a_day_is_added_up(tmp_path: Path, opening: Opening) -> None:
    async def work(ledger: Ledger) -> Any:
        await new_board(ledger)
        await ledger.create_pod(Pod("pod2", "Pod", 0))
        assert await ledger.add_usage(7, []) == {}
        assert await ledger.add_usage(7, [("pod2", 5), ("pod", 3)]) == {"pod": 3, "pod2": 5}
        assert await ledger.add_usage(7, [("pod", 4)]) == {"pod": 7, "pod2": 5}
        assert await ledger.add_usage(8, [("pod", 1)]) == {"pod": 1}
        # Older days are forgotten.
        assert await ledger.add_usage(7, []) == {}

    with_ledger(opening, tmp_path, work)


def test_audit_entries_are_stored_and_found(tmp_path: Path, opening: Opening) -> None:
    def entry(at: int, **fields: Any) -> AuditEntry:
        shared = {"pod_id": "pod", "uuid": None, "user_id": None, "key_id": "k1", "role": "server"}
        where = {"address": "203.0.113.5", "request_id": "r1", "route": "PATCH /x", "path": "{}"}
        return AuditEntry(0, at, **(shared | where | fields))

    async def work(ledger: Ledger) -> Any:
        await new_board(ledger)
        given = [
            entry(10, uuid="b1"),
            entry(20, pod_id=None, key_id="admin", role="admin"),
            entry(30, uuid="b1", user_id="ada"),
            entry(40, pod_id="nosuch", user_id="ada"),
        ]
        stored = [replace(each, entry_id=await ledger.audit.begin(each)) for each in given]
        stored[0] = replace(stored[0], before='{"a":1}', after='{"a":2}', status=200)
        stored[1] = replace(stored[1], uuid="b2", status=409, error="board_exists")
        for each in stored[:2]:
            await ledger.audit.finish(each)

        async def found(limit: int = 100, **wanted: Any) -> list[int]:
            return [stored.index(each) for each in await ledger.audit.entries(AuditFilter(**wanted), limit)]

        assert await found() == [3, 2, 1, 0]
        assert await found(2) == [3, 2]
        assert await found(2, before_id=stored[2].entry_id) == [1, 0]
        assert await found(pod_id="pod") == [2, 0]
        assert await found(uuid="b1") == [2, 0]
        assert await found(uuid="b2") == [1]
        assert await found(key_id="admin") == [1]
        assert await found(since=20, until=40) == [2, 1]
        # An erased user is not named any longer, but only in the pod of the erasure.
        await ledger.profiles.erase("pod", "ada", "erased-1", ModerationAction("e1", "erase", "k1", 50))
        stored[2] = replace(stored[2], user_id="erased-1")
        assert await found(user_id="ada") == [3]
        assert await found(user_id="erased-1") == [2]
        assert await ledger.audit.forget(30, 1) == 1
        assert await ledger.audit.forget(30, 10) == 1
        assert await ledger.audit.forget(30, 10) == 0
        assert await found() == [3, 2]

    with_ledger(opening, tmp_path, work)


def test_events_of_one_call_are_recorded_on_all_boards_or_on_none(tmp_path: Path, opening: Opening) -> None:
    async def work(ledger: Ledger) -> None:
        one, two = await new_board(ledger, rule=Rule.INCREMENT), await new_board(ledger, rule=Rule.INCREMENT)

        async def rows() -> list[list[tuple[str, float]]]:
            return [
                [
                    (row.user_id, row.standing.score)
                    async for chunk in ledger.rows(board.periods[0].id)
                    for row in chunk
                    if row.standing is not None
                ]
                for board in (one, two)
            ]

        def both(event_id: str, score: int) -> list[Event]:
            return [new_event(board, event_id, "ada", float(score), 1) for board in (one, two)]

        stored = await ledger.record_all(both("e1", 5))
        assert [record.outcome for record in stored] == [RecordOutcome.ACCEPTED] * 2
        assert [record.changes[0].row.standing.score for record in stored if record.changes[0].row.standing] == [5, 5]
        again = await ledger.record_all(both("e1", 5))
        assert [record.outcome for record in again] == [RecordOutcome.DUPLICATE] * 2
        # An event id that one board knows with another score.
        await ledger.record([new_event(two, "e2", "ada", 1.0, 1)])
        for others in (both("e2", 7), both("e2", 7)[::-1]):
            refused = await ledger.record_all(others)
            assert {record.outcome for record in refused} == {RecordOutcome.ACCEPTED, RecordOutcome.CONFLICT}
            # Nobody may take rows that were not stored for stored ones.
            assert [list(record.rows) for record in refused] == [[], []]
            assert await rows() == [[("ada", 5)], [("ada", 6)]]
        # One board refuses its event.
        error = Conflict("board_ended", "over")
        first, second = both("e3", 2)
        late = await ledger.record_all([first, replace(second, refused=error)])
        assert [record.outcome for record in late] == [RecordOutcome.ACCEPTED, RecordOutcome.LATE]
        assert await rows() == [[("ada", 5)], [("ada", 6)]]
        assert await ledger.count_events() == 3
        # The ids are free, and the ledger still works.
        assert [record.outcome for record in await ledger.record_all(both("e3", 2))] == [RecordOutcome.ACCEPTED] * 2
        assert await rows() == [[("ada", 7)], [("ada", 8)]]

    with_ledger(opening, tmp_path, work)
