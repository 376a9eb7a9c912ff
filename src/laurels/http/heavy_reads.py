"""Heavy reads: calls with large answers take turns (service/traffic/turns.py).

Each function returns about how many rows a call reads.
"""

import functools
from collections.abc import Callable
from typing import Any

from laurels.core import limits
from laurels.http.call import Call, Handler

# Reads of up to this many rows are answered at once.
LIGHT_ROWS = 100
# A row of a list of boards has the number of its users, its periods and its rewards.
ROWS_PER_BOARD = 5

Rows = Callable[[Call[Any, Any]], int]


def in_turn(handler: Handler, rows: Rows) -> Handler:
    """Return a handler that waits for its turn if the call reads many rows."""
    is_list = rows in {listed, slow}

    @functools.wraps(handler)
    async def run(call: Call[Any, Any]) -> Any:
        reading = rows(call)
        if reading <= LIGHT_ROWS:
            return await handler(call)
        turns = call.laurels.list_turns if is_list else call.laurels.turns
        async with turns.turn(call.pod_id or "", reading):
            return await handler(call)

    return run


def parts(call: Call[Any, Any]) -> int:
    """Return what the parts of a split board cost: each is one more script."""
    return int(call.board.shards)


def page(call: Call[Any, Any]) -> int:
    if getattr(call.query, "include", None) is not None:
        # The events of each user are looked through.
        return limits.PAGE_ENTRIES
    return int(call.query.limit) + (parts(call) - 1 if hasattr(call, "board") else 0)


def listed(call: Call[Any, Any]) -> int:
    """Return the rows of a page that the ledger reads. It waits for SQL, so several of these run at once."""
    return page(call)


def slow(call: Call[Any, Any]) -> int:
    """Return the rows of a call that waits for SQL for seconds, so that several of these run at once."""
    return most(call)


def boards(call: Call[Any, Any]) -> int:
    return ROWS_PER_BOARD * int(call.query.limit)


def around(call: Call[Any, Any]) -> int:
    if getattr(call.query, "include", None) is not None:
        return limits.PAGE_ENTRIES
    # With `fill`, both sides are read in full.
    sides = 2 if getattr(call.query, "fill", False) else 1
    return sides * int(call.query.above + call.query.below) + parts(call) - 1


def users(call: Call[Any, Any]) -> int:
    if call.query.include is not None:
        return limits.PAGE_ENTRIES
    return len(call.body.user_ids) + parts(call) - 1


def most(call: Call[Any, Any]) -> int:
    """Return the rows of a call that reads as much as the largest page."""
    del call
    return limits.PAGE_ENTRIES


def pod_boards(call: Call[Any, Any]) -> int:
    """Return how many windows the boards of the pod have: each is one read of the index."""
    pod_id = call.query.pod_id or call.pod_id
    return sum(len(board.windows) for board in call.laurels.boards.all() if board.pod_id == pod_id)
