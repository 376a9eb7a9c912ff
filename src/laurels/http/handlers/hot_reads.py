"""`top`, `rank` and `around` in the hot lane (http/hot_lane.py), answered from an index in this process.

Each function returns a plan. Its answers equal those of the handlers in reads.py. The handler answers instead if a page
or a name is not cached, the user has no rank, or the ranking is stale.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from laurels.core.board import Ranking
from laurels.core.people import GLOBAL
from laurels.http import heavy_reads
from laurels.http.answers import AroundAnswer
from laurels.http.call import Call, HotPlan, ShownRanking
from laurels.http.entries import show_entries
from laurels.http.handlers.reads import RETRIEVED_AT, page_key, rank_answer
from laurels.http.instants import encode_instant
from laurels.http.queries import AroundQuery, SelectionQuery, TopQuery
from laurels.service.read.reads import fill_page

_encode = msgspec.json.Encoder().encode

AnswerNow = Callable[[str], bytes | None]


def hot_top(call: Call[TopQuery, None]) -> HotPlan | None:
    reads, profiles, clock, pages, query = (
        call.laurels.reads,
        call.laurels.profiles,
        call.laurels.clock,
        call.pages,
        call.query,
    )

    def plan(ranking: Ranking, shown_ranking: ShownRanking) -> AnswerNow:
        del shown_ranking
        key = page_key(ranking, query)

        def answer_now(_user: str) -> bytes | None:
            ranks = reads.instant(ranking)
            if ranks is None:
                return None
            page = pages.get(key, ((ranking.capacity, ranks.revision_now(ranking)), profiles.revision))
            return None if page is None else b"%b%b%b}" % (page, RETRIEVED_AT, encode_instant(clock.now_us()))

        return answer_now

    return _plan_read(call, plan)


def hot_rank(call: Call[SelectionQuery, None]) -> HotPlan | None:
    reads, board = call.laurels.reads, call.board
    style = call.query.ranking or board.rank_style

    def plan(ranking: Ranking, shown_ranking: ShownRanking) -> AnswerNow:
        def answer_now(user_id: str) -> bytes | None:
            ranks = reads.instant(ranking)
            found = None if ranks is None else ranks.find_now(ranking, user_id, style)
            return None if found is None else _encode(rank_answer(board, shown_ranking, found))

        return answer_now

    return _plan_read(call, plan)


def hot_around(call: Call[AroundQuery, None]) -> HotPlan | None:
    reads, profiles, board, query = call.laurels.reads, call.laurels.profiles, call.board, call.query
    style = query.ranking or board.rank_style
    size = query.above + query.below
    above, below = (size, size) if query.fill else (query.above, query.below)

    def plan(ranking: Ranking, shown_ranking: ShownRanking) -> AnswerNow:
        def answer_now(user_id: str) -> bytes | None:
            ranks = reads.instant(ranking)
            page = None if ranks is None else ranks.around_now(ranking, user_id, above, below, style)
            if page is None:
                return None
            if query.fill:
                page = fill_page(page, user_id, query.above, query.below)
            names = profiles.names_now(board.pod_id, [entry.user_id for entry in page.entries])
            if names is None:
                return None
            users = show_entries(page.entries, names)
            return _encode(AroundAnswer(uuid=board.uuid, **shown_ranking, users=users, total_users=page.total))

        return answer_now

    # A large one takes turns with others.
    return _plan_read(call, plan, is_light=heavy_reads.around(call) <= heavy_reads.LIGHT_ROWS)


def _plan_read(
    call: Call[Any, Any], plan: Callable[[Ranking, ShownRanking], AnswerNow], *, is_light: bool = True
) -> HotPlan | None:
    """Return a plan for reads of a current period without a viewer; None for others, which need the ledger."""
    query: SelectionQuery = call.query
    reads = call.laurels.reads
    if call.board.score_ttl_s is not None:
        # Scores that are due must expire first.
        return None
    if query.period is not None or query.viewer is not None or getattr(query, "include", None) is not None:
        return None
    target = reads.current_target(call.board, query.window, query.segment)
    span = reads.current_span(call.board, query.window)
    if target is None or span is None:
        return None
    period, ranking = target
    shown_ranking: ShownRanking = {"window": period.window, "period": period.name, "segment": query.segment or GLOBAL}
    since, until = span
    is_instant = is_light and call.laurels.index.instant is not None
    return HotPlan(plan(ranking, shown_ranking) if is_instant else None, since=since, until=until)
