"""The source of ranks: the index, or the ledger while the index is unavailable.

The ledger scans a whole period to compute a rank. Therefore only a few of these reads run at once, equal reads share
one, and further reads get 503: a lost index must not overload the ledger.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, Generic, TypeVar

from msgspec import Struct

from laurels.core.board import Board, Ranking
from laurels.core.windows import Period
from laurels.errors import Stale, Unavailable
from laurels.metrics import DEGRADED_READS, REFUSED_READS
from laurels.ports import Index, InstantRanks, Ledger, Ranks
from laurels.service.index.expirer import Expirer
from laurels.service.index.repairer import IndexRepairer

T = TypeVar("T")

AT_ONCE = 4
WAITING = 100


class ReadResult(Struct, Generic[T], frozen=True):
    """A value and its period. `degraded`: read from the ledger, because the index was unavailable."""

    value: T
    degraded: bool
    period: Period | None = None


class RankSource:
    def __init__(self, ledger: Ledger, index: Index, repairer: IndexRepairer, expirer: Expirer) -> None:
        self._expirer = expirer
        self._ledger = ledger
        self._index = index
        self._repairer = repairer
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._flights: dict[Hashable, asyncio.Task[Any]] = {}

    def instant(self, ranking: Ranking) -> InstantRanks | None:
        """Return reads of the ranking that need no await; None if the index is elsewhere, or the ranking is stale."""
        return None if self._index.instant is None or self._repairer.is_stale(ranking) else self._index.instant

    async def settle(self, board: Board) -> None:
        """Let scores of a board expire that are due: before its rows are read from the ledger."""
        await self._expirer.settle(board)

    async def revision(self, board: Board, ranking: Ranking) -> Hashable | None:
        """Return the cache key of a page of the ranking; None if it must not be cached."""
        await self._expirer.settle(board)
        try:
            self._need_complete(ranking)
            return ranking.capacity, await self._index.revision(ranking)
        except Unavailable as error:
            self._notice(board, ranking, error)
            if self._ledger.ranks is None:
                raise
            return None

    async def segments(self, board: Board, ranking: Ranking) -> list[str]:
        """Return the segments of the ranking's period that have users.

        Raises Unavailable if the index can't answer, because the ledger does not know them.
        """
        await self._expirer.settle(board)
        try:
            self._need_complete(ranking)
            return await self._index.segments(ranking)
        except Unavailable as error:
            self._notice(board, ranking, error)
            raise

    async def read(
        self, board: Board, ranking: Ranking, ask: Callable[[Ranks], Awaitable[T]], question: Hashable
    ) -> ReadResult[T]:
        """Read from the index, or from the ledger if the index is stale or unreachable.

        Concurrent reads of the ledger with the same ranking and `question` share one query. Raises Unavailable if the
        ledger can't answer either, or if too many reads wait for it.
        """
        await self._expirer.settle(board)
        try:
            self._need_complete(ranking)
            return ReadResult(await ask(self._index), degraded=False)
        except Unavailable as error:
            self._notice(board, ranking, error)
            ranks = self._ledger.ranks
            if ranks is None:
                raise
            return ReadResult(await self._share(ranks, ask, (ranking, question), error), degraded=True)

    def _need_complete(self, ranking: Ranking) -> None:
        if self._repairer.is_stale(ranking):
            self._repairer.wake()
            raise Unavailable("catching_up", "This ranking is being repaired. Try again in a moment.")

    def _notice(self, board: Board, ranking: Ranking, error: Unavailable) -> None:
        if error.code == "catching_up" and not self._repairer.is_stale(ranking):
            self._repairer.schedule(board, ranking, (), error)

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
            # A caller that is cancelled must not cancel the read for the others.
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
