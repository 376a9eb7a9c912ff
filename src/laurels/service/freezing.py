"""The end of a period: closed, frozen, swept. Whoever does it may die at any point; the next one goes on from there.

- closed: it takes no more scores; the terms of its final ranks are those that its board had when it ended;
- frozen: every place is written to the ledger with what it earned, in stretches that are each all or nothing;
- swept: its ranking leaves the index, and its rows the ledger, once every server reads the final ranks.

Places follow from rows that nobody changes any more, so doing a stretch twice, or two servers at once, writes the same.
"""

import asyncio
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

import msgspec
import structlog
from msgspec.structs import replace

from laurels.core.board import Board, RankStyle
from laurels.core.instants import SECOND_US, to_datetime
from laurels.core.periods import terms_of
from laurels.core.rewards import Terms
from laurels.core.windows import Period, PeriodState
from laurels.errors import LaurelsError, Stale
from laurels.metrics import FROZEN_PERIODS, GRANTS
from laurels.ports import BoardChange, Clock, Final, Grant, Index, Ledger, Message, Row
from laurels.service.boards import Boards

log = structlog.get_logger()

# So long a server may go on reading the ranking of a period that was frozen elsewhere.
SWEEP_AFTER_US = 60 * SECOND_US
SWEEP_ROWS = 2000
# So many places share a message. Stretches are a multiple of it, so a message is always made of the same ones.
MESSAGE_PLACES = 100


class Freezer:
    def __init__(self, ledger: Ledger, index: Index, boards: Boards, clock: Clock) -> None:
        self._ledger = ledger
        self._index = index
        self._boards = boards
        self._clock = clock

    def due(self) -> list[tuple[Board, Period]]:
        """Periods whose grace time is over, or whose freeze was begun, in the order of their ends."""
        now = self._clock.now_us()
        found = [
            (board.end_of(period) or 0, board, period)
            for board in self._boards.all()
            for period in board.periods
            if period.state is PeriodState.CLOSED or _is_over(board, period, now)
        ]
        return [(board, period) for _, board, period in sorted(found, key=lambda each: (each[0], each[2].id))]

    async def freeze(self, board: Board, period: Period) -> int | None:
        """Close a period and write its final ranks; gives how many there are. None: another server was quicker."""
        board = await self._boards.update(
            board, lambda fresh: BoardChange(_closed(fresh, period.id, self._clock.now_us()))
        )
        closed = next((each for each in board.periods if each.id == period.id), None)
        if closed is None or closed.state is not PeriodState.CLOSED:
            # Another server was quicker, or the grace time was lengthened.
            return None
        try:
            return await self._write(board, closed)
        except Stale:
            await self._boards.announce(board)
            return None

    async def _write(self, board: Board, period: Period) -> int | None:
        terms = msgspec.json.decode(period.terms or "", type=Terms)
        seasons = self._ledger.seasons
        ranking = replace(board.ranking(period.id), capacity=terms.capacity)
        total, done = await asyncio.gather(seasons.count_ranked(ranking), seasons.last_place(period.id))
        award = _Award(board, period, terms, total, self._clock.now_us(), await self._ledger.identity())
        tells = await self._ledger.outbox.webhook(board.pod_id) is not None
        numbering = _Numbering()
        async for rows in seasons.ordered_rows(ranking):
            finals = numbering.number(rows)
            # What an earlier try wrote is numbered again, for the ranks of the next ones depend on it.
            if finals[-1].place > done:
                grants = award.grants(finals)
                await seasons.write_finals(period.id, finals, grants, award.messages(grants) if tells else [])
                GRANTS.inc(len(grants))
            await asyncio.sleep(0)
        messages = [award.ended()] if tells and _has_begun(board, period) else []
        if not await seasons.finish_freeze(board, period, total, messages, self._clock.now_us()):
            return None
        await self._boards.announce(board)
        if _has_begun(board, period):
            FROZEN_PERIODS.inc()
            log.info("period_frozen", board=board.uuid, period=period.name, users=total)
        return total

    async def sweep(self) -> int:
        """Let go of what the final ranks stand for; gives how many periods were swept."""
        swept = await self._ledger.seasons.unswept(self._clock.now_us() - SWEEP_AFTER_US)
        for board_id, period in swept:
            try:
                await self._index.drop(self._boards.by_id(board_id).ranking(period.id))
            except LaurelsError as error:
                # It is tried again; until then the rows stay, too.
                log.info("sweep_waits", period=period.name, reason=error.message)
                continue
            left = True
            while left:
                left = await self._ledger.seasons.sweep(period.id, SWEEP_ROWS) == SWEEP_ROWS
                await asyncio.sleep(0)
        return len(swept)


def _is_over(board: Board, period: Period, now: int) -> bool:
    end = board.end_of(period)
    return end is not None and now >= end + board.grace_s * SECOND_US


def _has_begun(board: Board, period: Period) -> bool:
    """What an ended board had made ahead never began, and what was over before a board started is nobody's."""
    after_end = board.ended_at is not None and period.start is not None and period.start >= board.ended_at
    before_start = board.start_at is not None and period.end is not None and period.end <= board.start_at
    return not (after_end or before_start)


def _closed(board: Board, period_id: int, now: int) -> Board:
    def close(period: Period) -> Period:
        if period.id != period_id or period.state is not PeriodState.OPEN or not _is_over(board, period, now):
            return period
        terms = period.terms or terms_of(board, period)
        return replace(period, state=PeriodState.CLOSED, end=board.end_of(period), terms=terms)

    return replace(board, periods=tuple(close(period) for period in board.periods))


class _Numbering:
    """Ranks in all three styles, from one stretch of ordered rows to the next."""

    def __init__(self) -> None:
        self._place = 0
        self._competition = 0
        self._dense = 0
        self._score: float | None = None

    def number(self, rows: Iterable[Row]) -> list[Final]:
        finals = []
        for row in rows:
            standing = row.standing
            assert standing is not None, "removed users are left out"
            self._place += 1
            if standing.score != self._score:
                self._competition, self._dense, self._score = self._place, self._dense + 1, standing.score
            finals.append(
                Final(self._place, row.user_id, standing.score, standing.achieved_at, self._competition, self._dense)
            )
        return finals


class _Award:
    """What the places of one period earn, and what is told of it."""

    def __init__(self, board: Board, period: Period, terms: Terms, total: int, now: int, ledger_id: str) -> None:
        self._board = board
        # A receiver may hear of several ledgers, and must not take one's message for the other's.
        self._ledger_id = ledger_id
        self._period = period
        self._total = total
        self._now = now
        self._rewards = [(reward, msgspec.json.encode(reward.prize).decode()) for reward in terms.rewards]

    def grants(self, finals: Sequence[Final]) -> list[Grant]:
        shared = self._board.rank_style is RankStyle.COMPETITION
        return [
            Grant(self._period.id, final.place, reward.name, final.user_id, rank, final.score, prize, self._now)
            for final in finals
            for reward, prize in self._rewards
            if reward.is_earned(
                rank := final.competition if shared else final.place, final.score, final.competition - 1, self._total
            )
        ]

    def messages(self, grants: Sequence[Grant]) -> list[Message]:
        blocks = groupby(grants, lambda grant: (grant.place - 1) // MESSAGE_PLACES)
        return [
            self._message(
                f"rewards-{self._period.id}-{block}",
                "rewards.granted",
                rewards=[
                    {
                        "rewardId": grant_id(grant),
                        "userId": grant.user_id,
                        "reward": grant.reward,
                        "rank": grant.rank,
                        "score": grant.score,
                        "prize": msgspec.Raw(grant.prize.encode()),
                    }
                    for grant in some
                ],
            )
            for block, some in blocks
        ]

    def ended(self) -> Message:
        period = self._period
        return self._message(
            f"period-{period.id}",
            "period.frozen",
            startTime=None if period.start is None else to_datetime(period.start),
            endTime=None if period.end is None else to_datetime(period.end),
            totalUsers=self._total,
        )

    def _message(self, message_id: str, kind: str, **data: Any) -> Message:
        board, period = self._board, self._period
        whose = {"podId": board.pod_id, "UUID": board.uuid, "window": period.window, "period": period.name}
        body = {"type": kind, "timestamp": to_datetime(self._now), "data": whose | data}
        return Message(
            f"{self._ledger_id}-{message_id}",
            board.pod_id,
            period.id,
            kind,
            msgspec.json.encode(body).decode(),
            self._now,
        )


def grant_id(grant: Grant) -> str:
    """What a grant is called outside."""
    return f"{grant.period_id}.{grant.place}.{grant.reward}"


def parse_grant_id(text: str) -> tuple[int, int, str] | None:
    period_id, _, rest = text.partition(".")
    place, _, reward = rest.partition(".")
    # SQL's integers have 63 bits.
    if not (period_id.isascii() and period_id.isdigit() and place.isascii() and place.isdigit() and reward):
        return None
    if len(period_id) > 18 or len(place) > 18:
        return None
    return int(period_id), int(place), reward
