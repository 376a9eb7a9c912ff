"""Guards: the permission that a call needs.

Each address in the route table names one guard. It runs before the query and the body are read.
"""

from typing import Any

from laurels.core.board import DEFAULT_BOARD
from laurels.http.call import Call

AnyCall = Call[Any, Any]


def anyone(call: AnyCall) -> None:
    del call


def known(call: AnyCall) -> None:
    """Accept calls with a valid key or without a key; reject an unknown key."""
    call.caller  # noqa: B018 - raises if the key is unknown


def key(call: AnyCall) -> None:
    call.caller.require_key()


def writer(call: AnyCall) -> None:
    call.caller.require_writer()


def admin(call: AnyCall) -> None:
    call.caller.require_admin()


def board_reader(call: AnyCall) -> None:
    call.board = call.laurels.boards.to_read(call.caller, call.board_uuid)
    call.is_public = call.board.public


def board_pod_reader(call: AnyCall) -> None:
    call.board = call.laurels.boards.to_read_with_key(call.caller, call.board_uuid)


def score_writer(call: AnyCall) -> None:
    """Accept server keys, and the player token of the user if the board accepts scores from players."""
    call.board = call.laurels.boards.to_score(call.caller, call.board_uuid)
    if call.caller.player is not None:
        call.caller.require_person(call.user_id)


def board_writer(call: AnyCall) -> None:
    call.board = call.laurels.boards.to_write(call.caller, call.board_uuid)


def board_admin(call: AnyCall) -> None:
    call.board = call.laurels.boards.to_write(call.caller, call.board_uuid)
    call.caller.require_admin()


def default_board_reader(call: AnyCall) -> None:
    call.board = call.laurels.boards.to_read(call.caller, DEFAULT_BOARD)
    call.is_public = call.board.public


def default_board_writer(call: AnyCall) -> None:
    call.board = call.laurels.boards.to_write(call.caller, DEFAULT_BOARD)
