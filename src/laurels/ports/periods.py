"""The PeriodStore: the part of the ledger that stores periods, final ranks, grants and results."""

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from msgspec import Struct

from laurels.core.board import Board, Ranking, RankStyle
from laurels.core.people import GLOBAL, SegmentKind
from laurels.core.windows import Period
from laurels.ports.index import Ranks
from laurels.ports.ledger import Row
from laurels.ports.outbox import Message
from laurels.ports.profiles import ModerationAction, StoredAction


class Final(Struct, frozen=True):
    """A user's final rank in all three styles. `place` is the ordinal one, which is unique in its segment."""

    place: int
    user_id: str
    score: float
    achieved_at: int
    competition: int
    dense: int
    segment: str = GLOBAL
    subscore: int = 0

    def rank(self, style: RankStyle) -> int:
        match style:
            case RankStyle.ORDINAL:
                return self.place
            case RankStyle.COMPETITION:
                return self.competition
            case RankStyle.DENSE:
                return self.dense


class Grant(Struct, frozen=True):
    """A reward that a user earned when a period ended. `prize` is JSON text.

    `place` is the position among all users of the period, so that it is unique. `rank` is the rank in the segment.
    """

    period_id: int
    place: int
    reward: str
    user_id: str
    rank: int
    score: float
    prize: str
    granted_at: int
    claimed_at: int | None = None
    claimed_by: str | None = None
    segment: str = GLOBAL


class Result(Struct, frozen=True):
    """The final rank of a user in a period."""

    board_id: int
    period: Period
    final: Final


class PeriodStore(Protocol):
    @property
    def finals(self) -> Ranks:
        """Return reads of the final ranks of frozen periods, by key.

        They ignore the capacity of the ranking: it was applied when the period was frozen. Reads raise `Stale` if the
        final ranks have been pruned.
        """

    # Periods

    async def find_period(self, board_id: int, name: str) -> Period | None:
        """Return a period of a board by name, in any state; None if there is none."""

    async def periods_at(self, asked: Sequence[tuple[int, str, int]]) -> list[Period | None]:
        """Return the last period of a board's window that began at or before an instant, for each question in `asked`.

        A question is a board id, a window and an instant. Periods that were replaced, or are being refrozen, don't
        count. One query.
        """

    async def periods(
        self, board_id: int, window: str | None, before: tuple[int, int] | None, limit: int
    ) -> list[Period]:
        """Return up to `limit` periods of a board, latest start first, of one window or all.

        `before` is the start and the id of the last period of the page before.
        """

    # The freeze

    def ordered_rows(self, ranking: Ranking) -> AsyncIterator[list[Row]]:
        """Yield the rows of a closed period in the order of the ranking, up to its capacity.

        Leaves out removed and hidden users. Sorted once and returned in chunks: memory does not grow with the period.
        """

    async def count_ranked(self, ranking: Ranking) -> int:
        """Return how many rows `ordered_rows` yields."""

    async def last_place(self, period_id: int) -> int:
        """Return the last place of the global ranking that was written; 0 if none was."""

    async def write_finals(
        self, period_id: int, finals: Sequence[Final], grants: Sequence[Grant], messages: Sequence[Message]
    ) -> None:
        """Store some final ranks with their grants and messages, all or nothing.

        Idempotent: what is stored already stays as it is. Raises `Stale` if the period is neither closed nor being
        refrozen.
        """

    async def finish_freeze(
        self, board: Board, period: Period, total_users: int, messages: Sequence[Message], now: int
    ) -> bool:
        """Set a closed period to FROZEN and release its messages; return False if it is frozen already.

        Atomic. The board's revision grows, so that all servers read the board again.
        """

    # Refreeze

    async def begin_refreeze(self, board: Board, period: Period, act: ModerationAction) -> StoredAction:
        """Create a period that will replace a frozen one, with the same terms. Idempotent by `act.action_id`.

        Raises `Busy` with `refreeze_running` while another period of the board is being refrozen, or `act_running`
        while a moderation action on its events is in progress. Raises `Conflict` with `events_pruned` if some of the
        period's events have been removed, or `period_not_final` if the period is not frozen, or the ledger does not
        know which events had arrived when it was closed.
        """

    async def refreezing(self) -> list[tuple[int, Period]]:
        """Return the periods that are being refrozen, with their board ids."""

    async def last_refolded(self, period_id: int) -> str:
        """Return the last user id that has a row in a period; '' if there is none."""

    async def refold_some(self, board: Board, period: Period, after: str, limit: int) -> str | None:
        """Fold the events of the next users into the rows of a period that is being refrozen.

        Takes up to `limit` users after the user id `after`. Returns the last user id, or None if there are no more
        users. Counts the events of the replaced period's time that are not void and arrived before that period was
        closed. Users who were in its final ranks and have been erased since keep their standing.
        """

    async def grants_of_users(self, period_id: int, user_ids: Sequence[str]) -> list[Grant]:
        """Return the grants of some users in a period and in those that it replaced, claimed ones first."""

    async def finish_refreeze(
        self, board: Board, period: Period, total_users: int, messages: Sequence[Message], now: int
    ) -> bool:
        """Replace a frozen period with the one that corrects it; return False if that is done already.

        Atomic. The new period takes over the name. The old one stays, as SUPERSEDED and under another name. Claims of
        grants are copied, and messages are released.
        """

    async def owned_periods(self, period_ids: Sequence[int]) -> set[int]:
        """Return those of some periods whose rankings are still needed: they exist, and their rows are not swept."""

    async def unswept(self, frozen_before: int) -> list[tuple[int, Period]]:
        """Return the periods frozen before an instant whose rows have not been removed yet, with their board ids."""

    async def sweep(self, period_id: int, limit: int) -> int:
        """Remove up to `limit` rows of a frozen period, and return how many.

        The final ranks have replaced the rows. A result below `limit` means that nothing is left to sweep.
        """

    # Results and grants

    async def results(
        self, board_ids: Sequence[int], user_id: str, before: tuple[int, int] | None, limit: int
    ) -> list[Result]:
        """Return a user's final ranks in the global rankings of some boards, last frozen first. One query.

        Only of frozen periods. `before` is the instant at which a period was frozen, and its id.
        """

    async def finals_of_user(
        self, board_ids: Sequence[int], user_id: str, after: tuple[int, str], limit: int
    ) -> list[Result]:
        """Return all final ranks of a user on some boards, in every segment, also in periods that were replaced.

        `after` is a period's id and a segment.
        """

    async def grants_of_user(
        self,
        board_ids: Sequence[int],
        user_id: str,
        before: tuple[int, int, str] | None,
        limit: int,
        *,
        withdrawn: bool = False,
    ) -> list[tuple[int, Period, Grant]]:
        """Return a user's grants on some boards, last frozen period first, each with the board's id and the period.

        `before` is the instant at which a period was frozen, its id, and the last reward of the page before.
        `withdrawn`: include grants in periods that were replaced.
        """

    async def grants_of_period(self, period_id: int, after: tuple[int, str], limit: int) -> list[Grant]:
        """Return the grants of a period in the order of places, after a place and a reward."""

    async def find_grant(self, period_id: int, place: int, reward: str) -> tuple[int, Period, Grant] | None:
        """Return a grant of a period that is or was final, with the board's id and the period; None if not found."""

    async def successor(self, period_id: int, place: int, reward: str) -> tuple[int, int, str] | None:
        """Return the key of the grant that replaced this one; None if its period was not replaced.

        Raises `Conflict` with `reward_withdrawn` if the user no longer earns the reward.
        """

    async def claimed_edition(self, period_id: int, place: int, reward: str) -> tuple[int, Period, Grant] | None:
        """Return the same user's grant of the same reward in a period that replaced this one, if it was claimed there.

        Returned with the board's id and the period; None if there is none.
        """

    async def claim(self, period_id: int, place: int, reward: str, by: str, now: int) -> bool:
        """Mark a grant as claimed, and return True.

        Returns False, and changes nothing, if it was claimed before or its period has been replaced.
        """

    # Retention

    async def prune_events(
        self, boards: Sequence[Board], received_before: int, after_seq: int, limit: int
    ) -> tuple[int, int | None]:
        """Remove old events of some boards, and keep the standings that they fold to.

        Reads `limit` events after `after_seq` in the order of arrival, and removes those of the boards that were
        received before `received_before`. Returns how many were removed, and the sequence number to continue from; None
        if the rest is newer. Atomic. A fold that starts from the kept standings produces the same rows as before.
        """

    async def prune_progress(self, name: str) -> str | None:
        """Return the progress that an earlier run noted; None if there is none."""

    async def note_prune_progress(self, name: str, text: str) -> None: ...

    async def prunable_periods(self, board_id: int, frozen_before: int) -> list[Period]:
        """Return the periods of a board whose final ranks can be removed.

        These are periods that were frozen before an instant and are swept, and pruned ones that have final ranks left.
        """

    async def final_segments(self, period_id: int, kind: SegmentKind, limit: int) -> list[tuple[str, int]]:
        """Return up to `limit` segments of a kind in the final ranks of a period, by name, with the number of users.

        O(segments · log n).
        """

    async def prune_finals(self, period_id: int, limit: int) -> int:
        """Remove up to `limit` final ranks of a period, and return how many. Grants stay.

        In the same transaction the period becomes PRUNED, or DISCARDED if it was replaced, so no read sees a part of
        the final ranks.
        """
