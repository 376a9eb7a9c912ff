"""What every SQL ledger does in Python: boards as columns, events that came before, a fresh fold."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from laurels.core.board import Board
from laurels.core.order import Order, Ties
from laurels.core.scores import Rule, Standing, fold
from laurels.core.windows import Period
from laurels.ports import Event, Recorded, Refolded, Row


def insert_values(board: Board) -> tuple[Any, ...]:
    """A new board, in the order of the statement `insert_board`."""
    return (
        board.uuid,
        board.pod_id,
        board.name,
        board.rule.value,
        board.order.value,
        board.ties.value,
        board.capacity,
        board.min_score,
        board.max_score,
        board.public,
        msgspec.json.encode(board.windows).decode(),
        msgspec.json.encode(board.segments).decode(),
        board.start_at,
        board.end_at,
        board.archived_at,
        board.created_at,
        board.revision,
        _metadata_text(board),
    )


def update_values(board: Board) -> tuple[Any, ...]:
    """A changed board, in the order of the statement `update_board`."""
    return (
        board.name,
        board.capacity,
        board.min_score,
        board.max_score,
        board.public,
        board.start_at,
        board.end_at,
        board.archived_at,
        _metadata_text(board),
        board.id,
        board.revision,
    )


def read_board(columns: tuple[object, ...], periods: tuple[Period, ...]) -> Board:
    """`columns` are in the order of the fields of `Board`, without the periods."""
    fields = dict(zip(Board.__struct_fields__, (*columns, periods), strict=True))
    fields["rule"] = Rule(str(fields["rule"]))
    fields["order"] = Order(str(fields["order"]))
    fields["ties"] = Ties(str(fields["ties"]))
    fields["public"] = bool(fields["public"])
    for name in ("windows", "segments"):
        fields[name] = tuple(msgspec.json.decode(str(fields[name])))
    if fields["metadata"] is not None:
        fields["metadata"] = msgspec.json.decode(str(fields["metadata"]))
    return Board(**fields)  # type: ignore[arg-type]


def compare(event: Event, user_id: str, score: float, at: int, stamped: bool, metadata: str | None) -> Recorded:
    """What an event is whose id was there before, with this payload."""
    # Where the server's clock gave the time, a repetition has another; an export that comes back has the same.
    same_time = at == event.at if not event.stamped else bool(stamped)
    same = same_time and (user_id, score, metadata) == (event.user_id, event.score, event.metadata)
    return Recorded.DUPLICATE if same else Recorded.CONFLICT


def refold_users(
    board: Board, users: Sequence[str], rows: Iterable[Row], events: Iterable[tuple[str, float, int]]
) -> list[Refolded]:
    """The users with their stored rows, and what their events say that these should be."""
    stored: dict[str, list[Row]] = {user_id: [] for user_id in users}
    for row in rows:
        stored[row.user_id].append(row)
    fresh: dict[str, dict[int, Standing]] = {user_id: {} for user_id in users}
    for user_id, score, at in events:
        for period in board.periods_at(at):
            standing = fresh[user_id].get(period.id)
            fresh[user_id][period.id] = fold(board.rule, board.order, standing, score, at)
    return [Refolded(user_id, tuple(stored[user_id]), fresh[user_id]) for user_id in users]


def _metadata_text(board: Board) -> str | None:
    return None if board.metadata is None else msgspec.json.encode(board.metadata).decode()
