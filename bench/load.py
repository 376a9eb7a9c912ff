"""Code that the benchmarks share: the board that is measured."""

from laurels.bench.data import BOARD, user_name
from laurels.bench.load import SEED
from laurels.core.board import Board
from laurels.core.order import Ties
from laurels.core.scores import Rule
from laurels.service.laurels import Laurels

__all__ = ["BOARD", "CONNECTIONS", "SEED", "Figures", "bench_board", "user_name"]

CONNECTIONS = 32

Figures = dict[str, float]


async def bench_board(laurels: Laurels) -> Board:
    """Create the board that is measured, or return it if it exists."""
    board = Board(
        id=0,
        uuid=BOARD,
        pod_id="default",
        name="Bench",
        rule=Rule.INCREMENT,
        ties=Ties.SHARED,
        public=True,
        created_at=0,
    )
    return await laurels.boards.create(board, None)
