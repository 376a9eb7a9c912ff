"""Checks of values that callers send. Pure functions that raise or return an error."""

import math
from typing import Any

import msgspec

from laurels.core.board import Board, Status
from laurels.core.instants import SECOND_US, to_datetime
from laurels.core.limits import AHEAD_US, METADATA_BYTES, METADATA_DEPTH
from laurels.errors import Conflict, Invalid, LaurelsError

_CLOSED = {
    Status.SCHEDULED: ("board_not_started", "has not started and accepts no scores yet"),
    Status.ENDED: ("board_ended", "has ended and no longer accepts scores"),
    Status.ARCHIVED: ("board_archived", "is archived and accepts no scores"),
}


def exact_score(score: float, field: str = "score") -> float:
    """Return a score as a double. Raise `Invalid` if no double equals it exactly."""
    try:
        double = float(score)
    except OverflowError:
        double = math.inf
    if not math.isfinite(double):
        raise Invalid(
            "not_finite", "A score must be a finite number that a double can hold.", field=field, rule="finite"
        )
    if isinstance(score, int) and int(double) != score:
        raise Invalid(
            "not_exact",
            f"The integer {score} can't be stored exactly: the nearest double is {int(double)}. "
            "Integers up to 2^53 are always exact.",
            field=field,
            rule="exact as a double",
        )
    # Adding 0.0 turns -0.0 into 0.0, because the ledger stores only one zero.
    return double + 0.0


def canonical_metadata(
    metadata: dict[str, Any] | None, field: str = "metadata", limit: int = METADATA_BYTES
) -> str | None:
    """Return metadata, or another object, as canonical JSON; None for None.

    Equal metadata have equal texts. Raises `Invalid` if the metadata is over the size or depth limit.
    """
    if metadata is None:
        return None
    encoded = b"" if is_deeper(metadata, METADATA_DEPTH) else msgspec.json.encode(metadata, order="sorted")
    if not encoded or len(encoded) > limit:
        raise Invalid(
            "metadata_too_large",
            f"{field} must be at most {limit} bytes of JSON, nested at most {METADATA_DEPTH} levels deep.",
            field=field,
            rule=f"<= {limit} bytes, <= {METADATA_DEPTH} deep",
        )
    return encoded.decode()


def is_deeper(value: Any, levels: int) -> bool:
    """Return True if a JSON value is nested deeper than `levels`. Looks no deeper than that."""
    if not isinstance(value, dict | list):
        return False
    children = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(is_deeper(each, levels - 1) for each in children)


def why_closed(board: Board, now: int) -> LaurelsError | None:
    """Return the reason why a board accepts no scores now, or None."""
    status = board.status_at(now)
    # An ended board accepts late events until its grace time is over.
    if status in _CLOSED and not (status is Status.ENDED and now < (board.end_at or 0) + board.grace_s * SECOND_US):
        code, what = _CLOSED[status]
        return Conflict(code, f"Board {board.uuid!r} {what}.")
    return None


def why_refused(board: Board, score: float, at: int | None, now: int) -> LaurelsError | None:
    """Return the reason why a board does not accept a score now, or None.

    `at` is None if the sender gave no timestamp.
    """
    if at is None and board.status_at(now) is Status.ENDED:
        return Conflict(
            "board_ended", f"Board {board.uuid!r} has ended. Send late scores with a timestamp before its endTime."
        )
    if (board.min_score is not None and score < board.min_score) or (
        board.max_score is not None and score > board.max_score
    ):
        low = "" if board.min_score is None else f"{board.min_score:g} <= "
        high = "" if board.max_score is None else f" <= {board.max_score:g}"
        return Invalid(
            "score_out_of_bounds",
            f"The board accepts scores where {low}score{high}.",
            field="score",
            rule=f"{low}score{high}",
        )
    return None if at is None else _why_time_refused(board, at, now)


def _why_time_refused(board: Board, at: int, now: int) -> LaurelsError | None:
    """Return the reason why a board does not accept scores of the time `at` now, or None."""
    if at < 0 or at > now + AHEAD_US:
        return Invalid(
            "timestamp_out_of_range",
            "A timestamp must not be before 1970 or more than five minutes ahead of the server's clock "
            f"({to_datetime(now).isoformat(timespec='seconds')}).",
            field="timestamp",
            rule="1970-01-01T00:00:00Z <= timestamp <= now + 5 min",
        )
    if (board.start_at is not None and at < board.start_at) or (board.end_at is not None and at >= board.end_at):
        return Invalid(
            "outside_board_time",
            "The timestamp must not be before the board's startTime, and must be before its endTime.",
            field="timestamp",
            rule="startTime <= timestamp < endTime",
        )
    return None
