"""The part of the ledger that keeps what became of periods: final ranks, rewards, results."""

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from msgspec import Struct

from laurels.core.board import Board, Ranking, RankStyle
from laurels.core.people import GLOBAL
from laurels.core.windows import Period
from laurels.ports.index import Ranks
from laurels.ports.ledger import Row
from laurels.ports.outbox import Message
from laurels.ports.people import Act, StoredAct


class Final(Struct, frozen=True):
    """A final place, with the ranks of the three styles: `place` is the ordinal one."""

    place: int
    user_id: str
    score: float
    achieved_at: int
    competition: int
    dense: int
    segment: str = GLOBAL

    def rank(self, style: RankStyle) -> int:
        match style:
            case RankStyle.ORDINAL:
                return self.place
            case RankStyle.COMPETITION:
                return self.competition
            case RankStyle.DENSE:
                return self.dense


class Grant(Struct, frozen=True):
    """A prize that a user got at the end of a period. `prize` is JSON text."""

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


class Result(Struct, frozen=True):
    """Where a user ended in a period."""

    board_id: int
    period: Period
    final: Final


class Seasons(Protocol):
    @property
    def finals(self) -> Ranks:
        """The final ranks of frozen periods, by key. The capacity of a ranking plays no part: it is what was frozen."""

    # Periods

    async def find_period(self, board_id: int, name: str) -> Period | None:
        """A period of a board, whatever became of it."""

    async def periods_at(self, asked: Sequence[tuple[int, str, int]]) -> list[Period | None]:
        """The last period of a board's window that began up to an instant, for each that is asked for; one query."""

    async def periods(
        self, board_id: int, window: str | None, before: tuple[int, int] | None, limit: int
    ) -> list[Period]:
        """A board's periods, those that begin last first. `before`: the start and the id of one."""

    # The freeze

    def ordered_rows(self, ranking: Ranking) -> AsyncIterator[list[Row]]:
        """The rows of a closed period in the order of the ranking, up to its capacity, without removed and hidden ones.

        Sorted once, given in chunks: memory does not grow with the period.
        """

    async def count_ranked(self, ranking: Ranking) -> int:
        """How many rows `ordered_rows` gives."""

    async def last_place(self, period_id: int) -> int:
        """The last final place that was written; 0: none."""

    async def write_finals(
        self, period_id: int, finals: Sequence[Final], grants: Sequence[Grant], messages: Sequence[Message]
    ) -> None:
        """Store a stretch of final places with the rewards and messages that follow from it, all or nothing.

        What is there stays: doing it again changes nothing. Stale if the period is not closed (or being set right), or
        not any more.
        """

    async def finish_freeze(
        self, board: Board, period: Period, total_users: int, messages: Sequence[Message], now: int
    ) -> bool:
        """Make a closed period FROZEN and release its messages. False if it is frozen already."""

    # Setting final ranks right

    async def begin_refreeze(self, board: Board, period: Period, act: Act) -> StoredAct:
        """Make a period beside a frozen one, with its terms, that is to stand in its place. Idempotent by `act.act_id`.

        Conflict while another one of the board is being set right, or an act on its events is going on; if not all of
        its events are kept; and if it is not frozen, or not any more.
        """

    async def refreezing(self) -> list[tuple[int, Period]]:
        """The periods that are to stand in another one's place, with their board ids."""

    async def last_refolded(self, period_id: int) -> str:
        """The last user that has a row there; nobody is ''."""

    async def refold_some(self, board: Board, period: Period, after: str, limit: int) -> str | None:
        """Fold what counts of the next users' events of the time of the replaced period; gives the last one, or None.

        What came after that one was closed does not count, as it did not then.
        """

    async def grants_of_users(self, period_id: int, user_ids: Sequence[str]) -> list[Grant]:
        """What some users were granted in a period and in those that it replaced; claimed ones first."""

    async def finish_refreeze(
        self, board: Board, period: Period, total_users: int, messages: Sequence[Message], now: int
    ) -> bool:
        """Put a period in the place of the one that it replaces, which stays under another name. False: it is done."""

    async def owned_periods(self, period_ids: Sequence[int]) -> set[int]:
        """Those of some periods whose rankings are still needed: they are there, and their rows were not swept."""

    async def unswept(self, frozen_before: int) -> list[tuple[int, Period]]:
        """Frozen periods, with their board ids, whose rows have not been removed yet."""

    async def sweep(self, period_id: int, limit: int) -> int:
        """Remove some rows of a frozen period, for its final ranks stand in their place; gives how many.

        Fewer than the limit: nothing is left to sweep.
        """

    # What users got

    async def results(
        self, board_ids: Sequence[int], user_id: str, before: tuple[int, int] | None, limit: int
    ) -> list[Result]:
        """A user's final places on some boards, the last frozen first, in one query.

        `before`: when a period was frozen, and its id.
        """

    async def finals_of_user(
        self, board_ids: Sequence[int], user_id: str, after: tuple[int, str], limit: int
    ) -> list[Result]:
        """All final places of a user on some boards, in every segment, also those that were set right since.

        `after`: a period's id and a segment.
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
        """What a user was granted on some boards, with the board's id, the last frozen period first.

        `before`: when a period was frozen, its id, and the reward that was given last. `withdrawn`: also in periods
        that were replaced.
        """

    async def grants_of_period(self, period_id: int, after: tuple[int, str], limit: int) -> list[Grant]:
        """What was granted in a period, in the order of places, after a place and a reward."""

    async def find_grant(self, period_id: int, place: int, reward: str) -> tuple[int, Period, Grant] | None:
        """One grant of a period that is final, or was, with the board's id."""

    async def successor(self, period_id: int, place: int, reward: str) -> tuple[int, int, str] | None:
        """What stands in the place of a grant now, for its period was replaced; None: nothing does.

        Conflict with `reward_withdrawn` if it is not earned any more.
        """

    async def claimed_edition(self, period_id: int, place: int, reward: str) -> tuple[int, Period, Grant] | None:
        """The same user's same reward, in a period that replaced this one, if it was claimed there."""

    async def claim(self, period_id: int, place: int, reward: str, by: str, now: int) -> bool:
        """Mark a grant as claimed. False: it was before, and that stays; or another one stands in its place by now."""

    async def latest_act(self, board_id: int) -> int | None:
        """When somebody last did something to the stored scores of a board."""

    # Retention

    async def prune_events(
        self, boards: Sequence[Board], received_before: int, after_seq: int, limit: int
    ) -> tuple[int, int | None]:
        """Remove old events of some boards, from a place in the order of arrival on, and keep what they add up to.

        Looks at `limit` events; gives how many were removed, and where to go on, or None if the rest is younger.
        A fold that starts from what was kept gives the same rows as before.
        """

    async def prune_progress(self, name: str) -> str | None:
        """What was noted of an earlier run."""

    async def note_prune_progress(self, name: str, text: str) -> None: ...

    async def prunable_periods(self, board_id: int, frozen_before: int) -> list[Period]:
        """Frozen periods whose final ranks need not be kept any longer, and pruned ones that have some left."""

    async def prune_finals(self, period_id: int, limit: int) -> int:
        """Remove some final ranks of a period. Grants stay.

        It is PRUNED, or DISCARDED if it was replaced, from before the first goes.
        """
