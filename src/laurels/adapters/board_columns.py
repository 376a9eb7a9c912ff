"""A board from the columns that every SQL ledger keeps it in."""

import msgspec

from laurels.core.board import Board
from laurels.core.order import Order, Ties
from laurels.core.scores import Rule
from laurels.core.windows import Period


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
