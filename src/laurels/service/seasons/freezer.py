"""The end of a period: close, freeze, sweep.

- closed: the period takes no more scores. Its terms (capacity, rewards) are those of its board when the period ended.
- frozen: every final rank, global and per segment, is in the ledger together with the grants that it earned. The
  freezer writes them in chunks, one transaction each.
- swept: the ranking is removed from the index and the rows from the ledger, once all servers read the final ranks.

A server may die at any point; the next one continues from there. The rows of a closed period no longer change, so
writing a chunk twice, or on two servers at the same time, writes the same final ranks.

Wrong final ranks are only corrected on request (`refreeze`): the events of that time that count now are folded into a
second period, which is frozen in the same way and then takes over the name of the first one. The replaced period stays,
as `NAME@1`.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

import msgspec
import structlog
from msgspec.structs import replace

from laurels.core.board import Board, RankStyle
from laurels.core.instants import SECOND_US, to_datetime
from laurels.core.people import GLOBAL
from laurels.core.periods import terms_of
from laurels.core.rewards import Terms
from laurels.core.windows import Period, PeriodState
from laurels.errors import Stale
from laurels.metrics import FROZEN_PERIODS, GRANTS
from laurels.ports import BoardUpdate, Clock, Final, Grant, Index, Ledger, Message, ModerationAction, Row, StoredAction
from laurels.service.boards.boards import Boards
from laurels.service.index.expirer import Expirer

log = structlog.get_logger()

# Servers may keep reading the ranking of a period for this long after another server froze it.
SWEEP_AFTER_US = 60 * SECOND_US
SWEEP_ROWS = 2000
SWEEPS_AT_ONCE = 10
REFOLD_USERS = 500
# Places per message. Chunk sizes are a multiple of it, so a retry builds the same messages.
MESSAGE_PLACES = 100


class Freezer:
    def __init__(self, ledger: Ledger, index: Index, boards: Boards, expirer: Expirer, clock: Clock) -> None:
        self._expirer = expirer
        self._ledger = ledger
        self._index = index
        self._boards = boards
        self._clock = clock
        # True after a refreeze was requested on this server: the periods job is due at once.
        self.is_requested = False

    async def begin_refreeze(self, board: Board, period: Period, act: ModerationAction) -> StoredAction:
        begun = await self._ledger.periods.begin_refreeze(board, period, act)
        self.is_requested = True
        return begun

    async def refreezing(self) -> list[tuple[Board, Period]]:
        """Return the requested refreezes as boards and new periods, and reset `is_requested`."""
        self.is_requested = False
        return [(self._boards.by_id(board_id), period) for board_id, period in await self._ledger.periods.refreezing()]

    async def refreeze(self, board: Board, period: Period) -> bool:
        """Continue a refreeze and return True when it is done.

        Returns False if another server finished it first or the period is no longer being refrozen.
        """
        seasons = self._ledger.periods
        after: str | None = await seasons.last_refolded(period.id)
        while after is not None:
            after = await seasons.refold_some(board, period, after, REFOLD_USERS)
            await asyncio.sleep(0)
        try:
            return await self._write(board, period) is not None
        except Stale:
            return False

    def due(self) -> list[tuple[Board, Period]]:
        """Return the periods whose grace time is over or whose freeze has begun, ordered by end."""
        now = self._clock.now_us()
        found = [
            (board.end_of(period) or 0, board, period)
            for board in self._boards.all()
            for period in board.periods
            if period.state is PeriodState.CLOSED or _is_over(board, period, now)
        ]
        return [(board, period) for _, board, period in sorted(found, key=lambda each: (each[0], each[2].id))]

    async def freeze(self, board: Board, period: Period) -> int | None:
        """Close a period, write its final ranks and return how many users are ranked.

        Returns None if another server was faster or the grace time was extended.
        """
        board = await self._boards.update(
            board, lambda fresh: BoardUpdate(_closed(fresh, period.id, self._clock.now_us()))
        )
        closed = next((each for each in board.periods if each.id == period.id), None)
        if closed is None or closed.state is not PeriodState.CLOSED:
            # Another server was faster, or the grace time was extended.
            return None
        try:
            return await self._write(board, closed)
        except Stale:
            await self._boards.announce(board)
            return None

    async def _write(self, board: Board, period: Period) -> int | None:
        terms = msgspec.json.decode(period.terms or "", type=Terms)
        seasons = self._ledger.periods
        await self._expirer.settle_period(board, period)
        ranking = replace(board.ranking(period.id), capacity=terms.capacity)
        total, done = await asyncio.gather(seasons.count_ranked(ranking), seasons.last_place(period.id))
        if not has_begun(board, period):
            # A period that never began has no winners.
            terms = replace(terms, rewards=())
        award = _Award(board, period, terms, total, self._clock.now_us(), await self._ledger.sender())
        tells = await self._ledger.outbox.webhook(board.pod_id) is not None
        numbering = _Numbering(terms.capacity)
        # A user beyond the global capacity can still be within the capacity of a segment.
        async for rows in seasons.ordered_rows(replace(ranking, capacity=None) if board.is_segmented else ranking):
            finals = numbering.number(rows)
            world = [final for final in finals if final.segment == GLOBAL]
            # Rows that an earlier attempt wrote are numbered too, because the ranks after them depend on them.
            if board.is_segmented or world[-1].place > done:
                grants, new = await self._known_grants(period, award.grants(finals, numbering.positions))
                await seasons.write_finals(period.id, finals, grants, award.messages(new) if tells else [])
                GRANTS.inc(len(new))
            await asyncio.sleep(0)
        messages = [award.ended()] if tells and has_begun(board, period) else []
        finish = seasons.finish_freeze if period.replaces is None else seasons.finish_refreeze
        if not await finish(board, period, total, messages, self._clock.now_us()):
            return None
        await self._boards.announce(board)
        if has_begun(board, period):
            FROZEN_PERIODS.inc()
            what = "period_frozen" if period.replaces is None else "period_refrozen"
            log.info(what, board=board.uuid, period=period.name.removesuffix("@"), users=total)
        return total

    async def _known_grants(self, period: Period, grants: list[Grant]) -> tuple[list[Grant], list[Grant]]:
        """Return all grants with the claims of the replaced period, and the grants that are new in this period.

        A refreeze must neither reset claims nor announce a grant twice.
        """
        if period.replaces is None or not grants:
            return grants, grants
        users = sorted({grant.user_id for grant in grants})
        had: dict[tuple[str, str], Grant] = {}
        # The ledger returns claimed grants first, so they win.
        for grant in await self._ledger.periods.grants_of_users(period.replaces, users):
            had.setdefault((grant.user_id, grant.reward), grant)
        known = [
            grant
            if (old := had.get((grant.user_id, grant.reward))) is None
            else replace(grant, granted_at=old.granted_at, claimed_at=old.claimed_at, claimed_by=old.claimed_by)
            for grant in grants
        ]
        return known, [grant for grant in known if (grant.user_id, grant.reward) not in had]

    async def unswept(self) -> list[tuple[Board, Period]]:
        """Return the periods whose final ranks have replaced their rankings and rows `SWEEP_AFTER_US` ago."""
        found = await self._ledger.periods.unswept(self._clock.now_us() - SWEEP_AFTER_US)
        return [(self._boards.by_id(board_id), period) for board_id, period in found]

    async def sweep_some(self, board: Board, period: Period) -> tuple[int, bool]:
        """Remove the ranking of a period and some of its rows.

        Returns how many rows were removed, and whether those were the last ones. Raises `Unavailable` and removes no
        rows if the index can't be reached.
        """
        for ranking in board.rankings(period.id):
            await self._index.drop(ranking)
        removed = 0
        for _ in range(SWEEPS_AT_ONCE):
            count = await self._ledger.periods.sweep(period.id, SWEEP_ROWS)
            removed += count
            if count < SWEEP_ROWS:
                return removed, True
            await asyncio.sleep(0)
        return removed, False


def _is_over(board: Board, period: Period, now: int) -> bool:
    end = board.end_of(period)
    return end is not None and now >= end + board.grace_s * SECOND_US


def has_begun(board: Board, period: Period) -> bool:
    """Return False if a period starts after the end of its board or ends before the start of its board.

    Periods are created ahead of time, so an ended board has periods that never begin.
    """
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
    """Ranks in all three styles, global and per segment, counted across chunks of ordered rows."""

    def __init__(self, capacity: int | None) -> None:
        self._capacity = capacity
        # Per segment, of the last row: place, competition rank, dense rank, and score with subscore.
        self._last: dict[str, tuple[int, int, int, tuple[float, int] | None]] = {}
        self._rows = 0
        # The position of each user of the last chunk among all users, without a capacity.
        self.positions: dict[str, int] = {}

    def number(self, rows: Iterable[Row]) -> list[Final]:
        finals = []
        self.positions = {}
        for row in rows:
            self._rows += 1
            self.positions[row.user_id] = self._rows
            standing = row.ranked
            assert standing is not None, "ordered_rows omits removed and hidden users"
            score, subscore, at = standing.score, standing.subscore, standing.achieved_at
            for segment in (GLOBAL, *row.segments):
                place, competition, dense, last_tie = self._last.get(segment, (0, 0, 0, None))
                if place == self._capacity:
                    continue
                place += 1
                if (score, subscore) != last_tie:
                    competition, dense = place, dense + 1
                self._last[segment] = (place, competition, dense, (score, subscore))
                finals.append(Final(place, row.user_id, score, at, competition, dense, segment, subscore))
        return finals


class _Award:
    """The grants that the final ranks of one period earn, and the messages about them."""

    def __init__(self, board: Board, period: Period, terms: Terms, total: int, now: int, sender: str) -> None:
        self._board = board
        # Part of each message id, because one receiver may get messages from several ledgers.
        self._sender = sender
        self._period = period
        self._total = total
        self._now = now
        self._rewards = [(reward, msgspec.json.encode(reward.prize).decode()) for reward in terms.rewards]

    def grants(self, finals: Sequence[Final], positions: Mapping[str, int]) -> list[Grant]:
        """Return what these final ranks earn. `positions` are those of their users among all users.

        Users who earn a reward in several of their circles get it once, for their best rank.
        """
        best: dict[tuple[str, str], Grant] = {}
        for grant in self._earned(finals, positions):
            known = best.get((grant.user_id, grant.reward))
            if known is None or (grant.rank, grant.segment) < (known.rank, known.segment):
                best[grant.user_id, grant.reward] = grant
        return list(best.values())

    def _earned(self, finals: Sequence[Final], positions: Mapping[str, int]) -> list[Grant]:
        shared = self._board.rank_style is RankStyle.COMPETITION
        return [
            Grant(
                self._period.id,
                positions[final.user_id],
                reward.name,
                final.user_id,
                rank,
                final.score,
                prize,
                self._now,
                segment=final.segment,
            )
            for final in finals
            for reward, prize in self._rewards
            if reward.segment == final.segment.partition(":")[0]
            and reward.is_earned(rank := final.competition if shared else final.place, final.score, self._total)
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
                        "segment": grant.segment,
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
            "period.frozen" if period.replaces is None else "period.refrozen",
            startTime=None if period.start is None else to_datetime(period.start),
            endTime=None if period.end is None else to_datetime(period.end),
            totalUsers=self._total,
        )

    def _message(self, message_id: str, kind: str, **data: Any) -> Message:
        board, period = self._board, self._period
        # A refreezing period is called `NAME@` until it replaces the frozen one.
        name = period.name.removesuffix("@")
        whose = {"podId": board.pod_id, "UUID": board.uuid, "window": period.window, "period": name}
        body = {"type": kind, "timestamp": to_datetime(self._now), "data": whose | data}
        return Message(
            f"{self._sender}-{message_id}",
            board.pod_id,
            period.id,
            kind,
            msgspec.json.encode(body).decode(),
            self._now,
        )


def grant_id(grant: Grant) -> str:
    """Return the public id of a grant."""
    return f"{grant.period_id}.{grant.place}.{grant.reward}"


def parse_grant_id(text: str) -> tuple[int, int, str] | None:
    period_id, _, rest = text.partition(".")
    place, _, reward = rest.partition(".")
    if not (period_id.isascii() and period_id.isdigit() and place.isascii() and place.isdigit() and reward):
        return None
    # SQL integers have 63 bits.
    if len(period_id) > 18 or len(place) > 18:
        return None
    return int(period_id), int(place), reward
