"""The reader of view states: the answers of `top` and `around` with names, within a budget of rows."""

from collections.abc import Hashable

from laurels.errors import NotFound
from laurels.ports import Clock, Page, ranking_topic
from laurels.service.boards.boards import Boards
from laurels.service.live.budget import Budget
from laurels.service.live.view import Facts, NamedEntry, State, TopSpec, ViewSpec
from laurels.service.people.profiles import NO_PROFILE, Profiles
from laurels.service.read.rank_source import ReadResult
from laurels.service.read.reads import Reads

# Rows per second that all views of all boards may read together. With more views, each is read less often.
ROWS_PER_S = 100_000
AT_ONCE_ROWS = 5_000


class Reader:
    def __init__(self, reads: Reads, boards: Boards, people: Profiles, clock: Clock) -> None:
        self._reads = reads
        self._boards = boards
        self._profiles = people
        self._clock = clock
        self._budget = Budget(ROWS_PER_S, AT_ONCE_ROWS)

    async def close(self) -> None:
        await self._budget.close()

    def topic(self, board_id: int, period_id: int) -> str | None:
        """Return the topic on which the changes of a period are published; None if the board is gone."""
        try:
            return ranking_topic(self._boards.by_id(board_id).ranking(period_id))
        except NotFound:
            return None

    async def read(
        self, look: ViewSpec, known: Hashable | None, before: State | None
    ) -> tuple[Hashable | None, State] | None:
        """Return a mark and the state of a view, or None if the mark still equals `known`.

        The mark is the same until the state changes; None if that can't be determined. `before`: the previous state,
        used for names that can't be read now.
        """
        board = self._boards.by_id(look.board_id)
        target, revision = await self._reads.revision(board, look.selection)
        now = self._clock.now_us()
        facts = Facts.of(board, target[0], now)
        mark = None if revision is None else (facts, revision, self._profiles.revision)
        if mark is not None and mark == known:
            return None
        # A view of more rows than there are users reads only the users.
        taken = look.size if before is None else min(look.size, before.total + 1)
        await self._budget.take(board.pod_id, taken)
        try:
            read: ReadResult[Page]
            if isinstance(look, TopSpec):
                read = await self._reads.top(board, look.selection, 0, look.limit, target)
            else:
                read = await self._reads.around(board, look.selection, look.user_id, look.above, look.below)
        except NotFound as error:
            if error.code not in {"user_not_found", "user_not_ranked"}:
                raise
            everybody = await self._reads.top(board, look.selection, 0, 1, target)
            self._budget.correct(board.pod_id, 1 - taken)
            return mark, State(facts, [], everybody.value.total, everybody.degraded)
        self._budget.correct(board.pod_id, len(read.value.entries) - taken)
        if look.selection.viewer is not None:
            ((_, ranking), _) = await self._reads.revision(board, look.selection)
            if (ranking.shadow_viewer is None) != (target[1].shadow_viewer is None):
                # The viewer was shadow banned, or shown again, during the read.
                return await self.read(look, None, before)
        page, period = read.value, read.period
        assert period is not None, "reads of ranks return their period"
        if period != target[0]:
            facts, mark = Facts.of(self._boards.by_id(board.id), period, now), None
        names = await self._profiles.names(board.pod_id, [entry.user_id for entry in page.entries])
        if self._profiles.is_silent:
            # Names can't be read now: keep the previous ones, and read again next time.
            mark = None
            names = {shown.entry.user_id: shown.named for shown in (before.users if before else ())} | names
        users = [NamedEntry(entry, names.get(entry.user_id, NO_PROFILE)) for entry in page.entries]
        return mark, State(facts, users, page.total, read.degraded)
