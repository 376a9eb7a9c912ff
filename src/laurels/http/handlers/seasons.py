"""Periods and their results: list, close and extend periods, final ranks and rewards of users."""

from typing import Any

import msgspec
from msgspec import UNSET

from laurels.core.board import Board
from laurels.core.instants import to_datetime
from laurels.core.windows import Period
from laurels.http.answers import (
    ClaimAnswer,
    PeriodAnswer,
    PeriodsAnswer,
    ResultEntry,
    ResultsAnswer,
    RewardEntry,
    RewardsAnswer,
)
from laurels.http.board_parts import read_instant, show_moment, show_period
from laurels.http.call import Call
from laurels.http.decode import decode_named_cursor, decode_pair_cursor, decode_triple_cursor, encode_cursor
from laurels.http.queries import NoQuery, PageQuery, PeriodsQuery, UserQuery
from laurels.http.requests import PeriodExtension
from laurels.service.seasons.freezer import grant_id
from laurels.service.seasons.seasons import Granted


async def get_periods(call: Call[PeriodsQuery, None]) -> PeriodsAnswer:
    """List the next, current and past periods of a board, latest first.

    The name of a period is a value for the `period` parameter of `top`, `rank`, `around`, `ranks` and `distribution`.
    """
    board, query = call.board, call.query
    before = decode_pair_cursor(query.cursor)
    periods = await call.laurels.seasons.page(board, query.window, before, query.limit)
    now = call.laurels.clock.now_us()
    return PeriodsAnswer(
        uuid=board.uuid,
        # Periods are created ahead; those after the end of the board never begin.
        periods=[
            show_period(board, period, now)
            for period in periods
            if board.ended_at is None or period.start is None or period.start < board.ended_at
        ],
        next_cursor=_after(periods[-1].start, periods[-1]) if len(periods) == query.limit else None,
    )


async def post_close(call: Call[NoQuery, None]) -> PeriodAnswer:
    """Close a period now.

    The period ends shortly after the call, at the `endTime` of the response. The time until the next reset becomes a
    separate period. The closed period accepts late scores for the board's grace time, then it is frozen.
    """
    before = await _period(call)
    return _changed(call, before, await call.laurels.seasons.close_now(call.board, call.path("period")))


async def post_extend(call: Call[NoQuery, PeriodExtension]) -> PeriodAnswer:
    """Extend a period.

    The next period begins at the new end. A period can be extended until shortly before its end.
    """
    end = read_instant(call.body.end_time, "endTime")
    before = await _period(call)
    return _changed(call, before, await call.laurels.seasons.extend(call.board, call.path("period"), end))


async def _period(call: Call[Any, Any]) -> Period:
    return await call.laurels.seasons.period(call.board, None, call.path("period"))


def _changed(call: Call[Any, Any], before: Period, after: Period) -> PeriodAnswer:
    now = call.laurels.clock.now_us()
    answer = show_period(call.board, after, now)
    call.note_change(show_period(call.board, before, now), answer)
    return answer


async def get_period_rewards(call: Call[PageQuery, None]) -> RewardsAnswer:
    """List the rewards granted in a period, best ranks first.

    The list is empty until the period is final.
    """
    query = call.query
    period = await call.laurels.seasons.period(call.board, None, call.path("period"))
    after = decode_named_cursor(query.cursor) or (0, "")
    granted = await call.laurels.seasons.rewards_of_period(call.board, period, after, query.limit)
    last = granted[-1].grant if len(granted) == query.limit else None
    return RewardsAnswer(
        rewards=[_entry(each) for each in granted],
        next_cursor=None if last is None else encode_cursor(last.place, last.reward),
    )


async def get_user_results(call: Call[UserQuery, None]) -> ResultsAnswer:
    """List the final ranks of a user in all past periods, latest first.

    The pod is that of the key; an admin key sets `podId`.
    """
    query = call.query
    before = decode_pair_cursor(query.cursor)
    found = await call.laurels.seasons.results(_boards(call), call.user_id, before, query.limit)
    return ResultsAnswer(
        user_id=call.user_id,
        results=[
            ResultEntry(
                uuid=board.uuid,
                name=board.name,
                window=result.period.window,
                period=result.period.name,
                start_time=show_moment(result.period.start),
                end_time=show_moment(result.period.end),
                rank=result.final.rank(board.rank_style),
                score=result.final.score,
                timestamp=to_datetime(result.final.achieved_at),
                total_users=result.period.total_users or 0,
                subscore=UNSET if board.subscore is None else result.final.subscore,
            )
            for board, result in found
        ],
        next_cursor=_after(found[-1][1].period.frozen_at, found[-1][1].period) if len(found) == query.limit else None,
    )


async def get_user_rewards(call: Call[UserQuery, None]) -> RewardsAnswer:
    """List the rewards granted to a user, latest period first.

    The pod is that of the key; an admin key sets `podId`.
    """
    query = call.query
    before = decode_triple_cursor(query.cursor)
    granted = await call.laurels.seasons.rewards_of_user(_boards(call), call.user_id, before, query.limit)
    last = granted[-1] if len(granted) == query.limit else None
    return RewardsAnswer(
        rewards=[_entry(each) for each in granted],
        next_cursor=None if last is None else _after(last.period.frozen_at, last.period, last.grant.reward),
    )


async def post_claim(call: Call[NoQuery, None]) -> ClaimAnswer:
    """Claim a reward, which marks it as handed out.

    Idempotent: the first claim stays, and a repetition returns `alreadyClaimed`.
    """
    granted, first = await call.laurels.seasons.claim(call.caller, call.path("rewardId"))
    return ClaimAnswer(reward=_entry(granted), already_claimed=not first)


def _after(moment: int | None, period: Period, reward: str = "") -> str:
    return encode_cursor(max(moment or 0, 0), f"{period.id}.{reward}" if reward else str(period.id))


def _boards(call: Call[UserQuery, Any]) -> list[Board]:
    pod_id = call.caller.require_pod(call.query.pod_id)
    if call.query.uuid is not None:
        board = call.laurels.boards.to_read_with_key(call.caller, call.query.uuid)
        return [board] if board.pod_id == pod_id else []
    return [board for board in call.laurels.boards.all() if board.pod_id == pod_id]


def _entry(granted: Granted) -> RewardEntry:
    grant = granted.grant
    return RewardEntry(
        reward_id=grant_id(grant),
        uuid=granted.board.uuid,
        window=granted.period.window,
        period=granted.period.name,
        user_id=grant.user_id,
        reward=grant.reward,
        rank=grant.rank,
        segment=grant.segment,
        score=grant.score,
        prize=msgspec.json.decode(grant.prize),
        granted_at=to_datetime(grant.granted_at),
        claimed_at=show_moment(grant.claimed_at),
    )
