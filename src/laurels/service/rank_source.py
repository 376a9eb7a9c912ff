"""Where ranks come from: the index, and the ledger for as long as the index can't be asked.

The ledger has to look through a whole period for a rank. So few such reads run at once, those who ask the same share
one, and beyond that the answer is 503: a lost index must not take the ledger with it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, Generic, TypeVar

from msgspec import Struct

from laurels.core.board import Board, Ranking
from laurels.core.windows import Period
from laurels.errors import Stale, Unavailable
from laurels.metrics import DEGRADED_READS, REFUSED_READS
from laurels.ports import Index, Ledger, Ranks
from laurels.service.healing import Healer

T = TypeVar("T")

AT_ONCE = 4
WAITING = 100


class Shown(Struct, Generic[T], frozen=True):
    """What was read, and of which period. `degraded`: from the ledger, for the index could not be asked."""

    value: T
    degraded: bool
    period: Period | None = None


class RankSource:
    def __init__(self, ledger: Ledger, index: Index, healer: Healer) -> None:
        self._ledger = ledger
        self._index = index
        self._healer = healer
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._flights: dict[Hashable, asyncio.Task[Any]] = {}

    async def revision(self, board: Board, ranking: Ranking) -> Hashable | None:
        """What a page may be kept under; None: it may not be kept."""
        try:
            self._need_complete(ranking)
            return await self._index.revision(ranking)
        except Unavailable as error:
            self._notice(board, ranking, error)
            if self._ledger.ranks is None:
                raise
            return None

    async def segments(self, board: Board, ranking: Ranking) -> list[str]:
        """Those of the ranking's period that have somebody. Only the index knows."""
        try:
            self._need_complete(ranking)
            return await self._index.segments(ranking)
        except Unavailable as error:
            self._notice(board, ranking, error)
            raise

    async def read(
        self, board: Board, ranking: Ranking, ask: Callable[[Ranks], Awaitable[T]], question: Hashable
    ) -> Shown[T]:
        """`question` tells reads apart: the same question gets the same answer."""
        try:
            self._need_complete(ranking)
            return Shown(await ask(self._index), degraded=False)
        except Unavailable as error:
            self._notice(board, ranking, error)
            ranks = self._ledger.ranks
            if ranks is None:
                raise
            return Shown(await self._share(ranks, ask, (ranking, question), error), degraded=True)

    def _need_complete(self, ranking: Ranking) -> None:
        if self._healer.is_behind(ranking):
            self._healer.hurry()
            raise Unavailable("catching_up", "This ranking is being completed. Try again in a moment.")

    def _notice(self, board: Board, ranking: Ranking, error: Unavailable) -> None:
        if error.code == "catching_up" and not self._healer.is_behind(ranking):
            self._healer.mend(board, ranking, (), error)

    async def _share(
        self, ranks: Ranks, ask: Callable[[Ranks], Awaitable[T]], question: Hashable, error: Unavailable
    ) -> T:
        flight = self._flights.get(question)
        if flight is None:
            if len(self._flights) >= WAITING:
                REFUSED_READS.inc()
                raise error
            flight = asyncio.create_task(self._ask_ledger(ranks, ask), name="read from the ledger")
            self._flights[question] = flight
            flight.add_done_callback(lambda _: self._flights.pop(question, None))
        try:
            # Whoever gives up does not end it for the others.
            answer: T = await asyncio.shield(flight)
        except Stale:
            raise
        except Unavailable as failure:
            REFUSED_READS.inc()
            raise Unavailable(error.code, f"{error.message} {failure.message}") from failure
        DEGRADED_READS.inc()
        return answer

    async def _ask_ledger(self, ranks: Ranks, ask: Callable[[Ranks], Awaitable[T]]) -> T:
        async with self._slots:
            return await ask(ranks)
