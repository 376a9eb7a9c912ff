"""Conversion of windows, periods, rewards and timestamps between the API and the service."""

from collections.abc import Sequence
from datetime import datetime

import msgspec

from laurels.core.board import Board
from laurels.core.checks import canonical_metadata, exact_score, is_deeper
from laurels.core.instants import LAST_US, to_datetime, to_us
from laurels.core.limits import METADATA_DEPTH, PRIZE_BYTES
from laurels.core.order import Order
from laurels.core.people import GLOBAL, SegmentKind
from laurels.core.reviews import ReviewRule, Rise
from laurels.core.rewards import Between, Reward
from laurels.core.windows import ALL, DAILY, MONTHLY, WEEKLY, Day, Period, PeriodState, Window, check_window
from laurels.errors import Invalid
from laurels.http.answers import PeriodAnswer, PeriodStatus
from laurels.http.requests import (
    BoardDefinition,
    ReviewRuleBody,
    RewardBody,
    RewardRanks,
    RewardScores,
    RiseBody,
    WindowBody,
)
from laurels.ports import ScoreRange

_KNOWN = (ALL, DAILY, WEEKLY, MONTHLY)
_FINAL: dict[PeriodState, PeriodStatus] = {
    PeriodState.FROZEN: "FINAL",
    PeriodState.PRUNED: "PRUNED",
    PeriodState.SUPERSEDED: "SUPERSEDED",
    PeriodState.DISCARDED: "PRUNED",
}


def read_board(body: BoardDefinition) -> Board:
    """Return the board that a caller defines, without its id, UUID, pod and creation."""
    windows = read_windows(body.windows)
    segments = read_segments(body.segments)
    canonical_metadata(body.metadata)
    return Board(
        id=0,
        uuid="",
        pod_id="",
        name=body.name,
        rule=body.rule,
        order=body.order,
        ties=body.ties,
        capacity=body.capacity,
        min_score=_exact_or_none(body.min_score, "minScore"),
        max_score=_exact_or_none(body.max_score, "maxScore"),
        public=body.public,
        public_fields=tuple(dict.fromkeys(body.public_fields)),
        players_may_write=body.players_may_write,
        player_writes_per_minute=body.player_writes_per_minute,
        shards=body.shards,
        rank_on_write=body.rank_on_write,
        windows=windows,
        segments=segments,
        start_at=None if body.start_time is None else read_instant(body.start_time, "startTime"),
        end_at=None if body.end_time is None else read_instant(body.end_time, "endTime"),
        created_at=0,
        metadata=body.metadata,
        grace_s=body.grace_seconds,
        flush_ms=body.flush_ms,
        rewards=read_rewards(body.rewards, windows, segments),
        keep_events_days=body.keep_events_days,
        keep_periods_days=body.keep_periods_days,
        review=read_review(body.review),
        subscore=body.subscore,
        score_ttl_s=body.score_ttl_seconds,
        operations=tuple(dict.fromkeys(body.operations)),
    )


def show_definition(board: Board) -> BoardDefinition:
    """Return what a caller decided about a board: the opposite of `read_board`."""
    return BoardDefinition(
        name=board.name,
        rule=board.rule,
        order=board.order,
        ties=board.ties,
        capacity=board.capacity,
        windows=show_windows(board.windows),
        segments=[SegmentKind(kind) for kind in board.segments],
        start_time=show_moment(board.start_at),
        end_time=show_moment(board.end_at),
        min_score=board.min_score,
        max_score=board.max_score,
        public=board.public,
        public_fields=list(board.public_fields),
        players_may_write=board.players_may_write,
        player_writes_per_minute=board.player_writes_per_minute,
        shards=board.shards,
        rank_on_write=board.rank_on_write,
        metadata=board.metadata,
        grace_seconds=board.grace_s,
        flush_ms=board.flush_ms,
        rewards=show_rewards(board.rewards),
        keep_events_days=board.keep_events_days,
        keep_periods_days=board.keep_periods_days,
        review=show_review(board.review),
        subscore=board.subscore,
        score_ttl_seconds=board.score_ttl_s,
        operations=list(board.operations),
    )


def read_segments(sent: Sequence[SegmentKind]) -> tuple[str, ...]:
    # The global segment is always ranked.
    return tuple(kind.value for kind in SegmentKind if kind is SegmentKind.GLOBAL or kind in sent)


def _exact_or_none(score: float | None, name: str) -> float | None:
    return None if score is None else exact_score(score, name)


def read_windows(sent: Sequence[str | WindowBody]) -> tuple[Window, ...]:
    windows: list[Window] = []
    for number, each in enumerate(sent):
        body = WindowBody(window=each) if isinstance(each, str) else each
        window = Window(
            body.window, body.time_zone, body.start_day, body.cron, body.capacity, body.open_seconds, body.attempts
        )
        wrong = _fault(window, {other.name for other in windows})
        if wrong is not None:
            raise Invalid("invalid_window", _sentence(wrong), field=f"windows[{number}]", rule=wrong)
        windows.append(window)
    if sum(window.attempts is not None for window in windows) > 1:
        raise Invalid(
            "invalid_window",
            "Only one window of a board can limit attempts.",
            field="windows",
            rule="attempts in at most one window",
        )
    return tuple(windows)


def _fault(window: Window, taken: set[str]) -> str | None:
    if window.name in taken:
        return f"the window {window.name!r} is listed twice"
    if window.name in _KNOWN and window.cron is not None:
        return f"{window.name!r} takes no cron expression; choose another name for a custom window"
    if window.name not in _KNOWN and window.cron is None:
        return (
            f"{window.name!r} is not {', '.join(_KNOWN[:-1])} or {_KNOWN[-1]}; a custom window needs a cron "
            f'expression, such as {{"window": "{window.name}", "cron": "0 9 * * mon", "timeZone": "Europe/Berlin"}}'
        )
    if window.name != WEEKLY and window.start_day is not Day.MONDAY:
        return "only 'weekly' can have a startDay"
    return check_window(window)


def show_windows(windows: Sequence[Window]) -> list[str | WindowBody]:
    return [
        window.name
        if window == Window(window.name)
        else WindowBody(
            window=window.name,
            time_zone=window.time_zone,
            start_day=window.start_day,
            cron=window.cron,
            capacity=window.capacity,
            open_seconds=window.open_s,
            attempts=window.attempts,
        )
        for window in windows
    ]


def read_rewards(sent: Sequence[RewardBody], windows: Sequence[Window], segments: Sequence[str]) -> tuple[Reward, ...]:
    rewards: list[Reward] = []
    for number, body in enumerate(sent):
        wrong = _reward_fault(body, {other.name for other in rewards}, {window.name for window in windows})
        if wrong is None and body.segment not in segments:
            wrong = f"the board does not rank the segments {body.segment!r}"
        if wrong is not None:
            raise Invalid("invalid_reward", _sentence(wrong), field=f"rewards[{number}]", rule=wrong)
        rewards.append(
            Reward(
                body.name,
                body.prize,
                tuple(body.windows),
                None if body.ranks is None else Between(body.ranks.from_, body.ranks.to),
                body.top_percent,
                None if body.scores is None else Between(_bound(body.scores.at_least), _bound(body.scores.at_most)),
                body.segment,
            )
        )
    return tuple(rewards)


def _reward_fault(body: RewardBody, taken: set[str], windows: set[str]) -> str | None:  # noqa: PLR0911 - one return per rule
    if body.name in taken:
        return f"the reward {body.name!r} is listed twice"
    if sum(each is not None for each in (body.ranks, body.top_percent, body.scores)) != 1:
        return "exactly one of ranks, topPercent and scores is required"
    if body.segment != GLOBAL and body.ranks is None:
        return "a reward for the ranks in each region or circle needs ranks"
    if body.ranks is not None and body.ranks.from_ > body.ranks.to:
        return "in ranks, from must not be greater than to, such as from 1 to 3"
    if body.scores is not None and body.scores.at_least is None and body.scores.at_most is None:
        return "in scores, set atLeast, atMost or both"
    if missing := sorted(set(body.windows) - windows):
        return f"the board has no window {missing[0]!r}"
    if is_deeper(body.prize, METADATA_DEPTH) or len(msgspec.json.encode(body.prize)) > PRIZE_BYTES:
        return f"a prize must be at most {PRIZE_BYTES} bytes of JSON, nested at most {METADATA_DEPTH} levels deep"
    return None


def read_review(sent: Sequence[ReviewRuleBody]) -> tuple[ReviewRule, ...]:
    rules: list[ReviewRule] = []
    for number, body in enumerate(sent):
        wrong = _review_fault(body, {other.name for other in rules})
        if wrong is not None:
            raise Invalid("invalid_review", _sentence(wrong), field=f"review[{number}]", rule=wrong)
        scores = None if body.scores is None else Between(_bound(body.scores.at_least), _bound(body.scores.at_most))
        rise = None if body.rise is None else Rise(exact_score(body.rise.by, f"review[{number}]"), body.rise.seconds)
        rules.append(ReviewRule(body.name, scores, rise, body.match))
    return tuple(rules)


def _review_fault(body: ReviewRuleBody, taken: set[str]) -> str | None:
    if body.name in taken:
        return f"the rule {body.name!r} is listed twice"
    if sum(each is not None for each in (body.scores, body.rise, body.match)) != 1:
        return "exactly one of scores, rise and match is required"
    if body.scores is not None and body.scores.at_least is None and body.scores.at_most is None:
        return "in scores, set atLeast, atMost or both"
    if body.rise is not None and body.rise.by < 0:
        return "in rise, by must not be negative"
    return None


def show_review(rules: Sequence[ReviewRule]) -> list[ReviewRuleBody]:
    return [
        ReviewRuleBody(
            name=rule.name,
            scores=None if rule.scores is None else RewardScores(at_least=rule.scores.low, at_most=rule.scores.high),
            rise=None if rule.rise is None else RiseBody(by=rule.rise.by, seconds=rule.rise.seconds),
            match=rule.match,
        )
        for rule in rules
    ]


def show_rewards(rewards: Sequence[Reward]) -> list[RewardBody]:
    return [
        RewardBody(
            name=reward.name,
            prize=reward.prize,
            windows=list(reward.windows),
            ranks=None
            if reward.ranks is None
            else RewardRanks(from_=_whole(reward.ranks.low), to=_whole(reward.ranks.high)),
            top_percent=reward.top_percent,
            scores=None
            if reward.scores is None
            else RewardScores(at_least=reward.scores.low, at_most=reward.scores.high),
            segment=SegmentKind(reward.segment),
        )
        for reward in rewards
    ]


def show_period(board: Board, period: Period, now: int) -> PeriodAnswer:
    end = board.end_of(period)
    if period.is_final:
        status = _FINAL[period.state]
    elif period.state is PeriodState.CLOSED or (end is not None and now >= end):
        status = "CLOSING"
    else:
        starts = [start for start in (period.start, board.start_at) if start is not None]
        status = "SCHEDULED" if starts and now < max(starts) else "OPEN"
    return PeriodAnswer(
        window=period.window,
        period=period.name,
        status=status,
        start_time=show_moment(period.start),
        end_time=show_moment(period.end if period.is_final else end),
        next_reset=show_moment(end) if end is not None and now < end else None,
        total_users=period.total_users,
    )


def read_range(board: Board, min_score: float | None, max_score: float | None) -> ScoreRange:
    """Return the range between two scores in the order of a board."""
    low, high = (
        None if bound is None else exact_score(bound, name)
        for bound, name in ((min_score, "minScore"), (max_score, "maxScore"))
    )
    if low is not None and high is not None and low > high:
        raise Invalid(
            "bounds_reversed", "maxScore must not be below minScore.", field="maxScore", rule="maxScore >= minScore"
        )
    return ScoreRange(high, low) if board.order is Order.DESC else ScoreRange(low, high)


def read_instant(moment: datetime, field: str) -> int:
    us = to_us(moment)
    if not 0 <= us <= LAST_US:
        raise Invalid(
            "timestamp_out_of_range",
            f"{field} must be between the years 1970 and 9999 in UTC.",
            field=field,
            rule="1970-01-01T00:00:00Z <= time <= 9999-12-31T23:59:59.999999Z",
        )
    return us


def show_moment(us: int | None) -> datetime | None:
    return None if us is None else to_datetime(us)


def _sentence(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}."


def _bound(score: float | None) -> float | None:
    return None if score is None else exact_score(score, "rewards")


def _whole(rank: float | None) -> int:
    assert rank is not None, "ranks have both bounds"
    return int(rank)
