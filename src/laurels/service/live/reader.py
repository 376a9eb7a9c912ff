"""Reads what a view shows, as `top` and `around` would answer, with names; within a budget."""

import asyncio
import time
from collections.abc import Hashable

from laurels.errors import NotFound
from laurels.ports import Clock, Page
from laurels.service.boards import Boards
from laurels.service.live.view import Facts, Look, LookTop, Shown, State
from laurels.service.people import NOBODY, People
from laurels.service.rank_source import Shown as Read
from laurels.service.reads import Reads

# How many rows a second may be read for views, over all boards: more of them are read less often.
ROWS_PER_S = 100_000
AT_ONCE_ROWS = 5_000


class Budget:
    """Rows that may be read: so many at once, and so many a second. Whoever wants more waits, in order."""

    def __init__(self, rows_per_s: int, at_once: int) -> None:
        self._each_s = 1 / rows_per_s
        self._ahead_s = at_once / rows_per_s
        self._spent_until = 0.0

    async def take(self, rows: int) -> None:
        now = time.monotonic()
        self._spent_until = max(self._spent_until, now) + rows * self._each_s
        # At least one turn is left to others: a read in memory has no pause of its own.
        await asyncio.sleep(max(0.0, self._spent_until - now - self._ahead_s))


class Reader:
    def __init__(self, reads: Reads, boards: Boards, people: People, clock: Clock) -> None:
        self._reads = reads
        self._boards = boards
        self._people = people
        self._clock = clock
        self._budget = Budget(ROWS_PER_S, AT_ONCE_ROWS)

    async def read(
        self, look: Look, known: Hashable | None, before: State | None
    ) -> tuple[Hashable | None, State] | None:
        """What there is to see, and a mark that is the same until it changes; None: it is the one that is known.

        `before`: what was seen, for names that can't be had now.
        """
        board = self._boards.by_id(look.board_id)
        target, revision = await self._reads.revision(board, look.selection)
        now = self._clock.now_us()
        facts = Facts.of(board, target[0], now)
        mark = None if revision is None else (facts, revision, self._people.revision)
        if mark is not None and mark == known:
            return None
        await self._budget.take(look.size)
        try:
            read: Read[Page]
            if isinstance(look, LookTop):
                read = await self._reads.top(board, look.selection, 0, look.limit, target)
            else:
                read = await self._reads.around(board, look.selection, look.user_id, look.above, look.below)
        except NotFound as error:
            if error.code not in {"user_not_found", "user_not_ranked"}:
                raise
            everybody = await self._reads.top(board, look.selection, 0, 1, target)
            return mark, State(facts, [], everybody.value.total, everybody.degraded)
        if look.selection.viewer is not None:
            ((_, ranking), _) = await self._reads.revision(board, look.selection)
            if (ranking.guest is None) != (target[1].guest is None):
                # The one who looks was hidden meanwhile, or is not any more.
                return await self.read(look, None, before)
        page, period = read.value, read.period
        assert period is not None, "reads of ranks say which period they are of"
        if period != target[0]:
            facts, mark = Facts.of(self._boards.by_id(board.id), period, now), None
        names = await self._people.names(board.pod_id, [place.user_id for place in page.places])
        if self._people.is_silent:
            # Nobody knows the names now: those of before stay, and it is read again.
            mark = None
            names = {shown.place.user_id: shown.named for shown in (before.users if before else ())} | names
        users = [Shown(place, names.get(place.user_id, NOBODY)) for place in page.places]
        return mark, State(facts, users, page.total, read.degraded)
