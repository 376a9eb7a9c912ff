"""Who may make a call. Each address in the route table names one of these; it runs before anything else is read."""

from typing import Any

from laurels.core.board import DEFAULT_BOARD
from laurels.http.call import Call

AnyCall = Call[Any, Any]


def anyone(call: AnyCall) -> None:
    del call


def known(call: AnyCall) -> None:
    """With a key or without one, but not with a wrong one."""
    call.caller  # noqa: B018 - raises if the key is not known


def key(call: AnyCall) -> None:
    call.caller.require_key()


def writer(call: AnyCall) -> None:
    call.caller.require_writer()


def admin(call: AnyCall) -> None:
    call.caller.require_admin()


def board_reader(call: AnyCall) -> None:
    call.board = call.laurels.boards.to_read(call.caller, call.board_uuid)


def board_pod_reader(call: AnyCall) -> None:
    call.board = call.laurels.boards.to_read_with_key(call.caller, call.board_uuid)


def board_writer(call: AnyCall) -> None:
    call.board = call.laurels.boards.to_write(call.caller, call.board_uuid)


def default_board_reader(call: AnyCall) -> None:
    call.board = call.laurels.boards.to_read(call.caller, DEFAULT_BOARD)


def default_board_writer(call: AnyCall) -> None:
    call.board = call.laurels.boards.to_write(call.caller, DEFAULT_BOARD)
