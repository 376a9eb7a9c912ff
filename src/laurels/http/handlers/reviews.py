"""Review lists: scores that wait for a moderator."""

from typing import Any

from laurels.core.instants import to_datetime
from laurels.errors import NotFound
from laurels.http.board_parts import show_moment
from laurels.http.call import Answered, Call
from laurels.http.decode import decode_cursor, encode_cursor
from laurels.http.handlers.moderation import BEGUN, LAST_ID, noted_act, number_of
from laurels.http.people_answers import ActAnswer, ReviewAnswer, ReviewsAnswer
from laurels.http.queries import NoQuery, ReviewsQuery
from laurels.http.requests import ReasonRequest
from laurels.service.moderation.reviews import Review


async def get_reviews(call: Call[ReviewsQuery, None]) -> ReviewsAnswer:
    """List the scores of a board that wait for a moderator, or did, latest first."""
    query = call.query
    before = decode_cursor(query.cursor) or LAST_ID
    found = await call.laurels.reviews.page(call.board, query.status, before, query.limit)
    return ReviewsAnswer(
        reviews=[_answer(review) for review in found],
        next_cursor=encode_cursor(found[-1].stored.review.id) if len(found) == query.limit else None,
    )


async def post_accept(call: Call[NoQuery, ReasonRequest]) -> Answered[ActAnswer]:
    """Accept a score from the review list: it counts, with its own time.

    It counts in every period of its time that is still open. The final ranks of others change only with a refreeze.

    Status 202: the act has begun and is still running.
    """
    act = await call.laurels.reviews.accept(call.caller, call.board, _review_id(call), call.body.reason)
    return Answered(noted_act(call, act), BEGUN if act.done_at is None else 200)


async def post_reject(call: Call[NoQuery, ReasonRequest]) -> ActAnswer:
    """Reject a score from the review list: it never counts, and its event id stays taken."""
    act = await call.laurels.reviews.reject(call.caller, call.board, _review_id(call), call.body.reason)
    return noted_act(call, act)


def _review_id(call: Call[Any, Any]) -> int:
    number = number_of(call.path("reviewId"))
    if number is None:
        raise NotFound("review_not_found", f"The board has no review {call.path('reviewId')!r}.", field="reviewId")
    return number


def _answer(review: Review) -> ReviewAnswer:
    stored, held = review.stored, review.held
    return ReviewAnswer(
        review_id=str(stored.review.id),
        status=review.state,
        rule=None if held is None else held.rule,
        user_id=stored.review.user_id,
        event_id=None if held is None else held.event_id,
        score=None if held is None else held.score,
        timestamp=None if held is None else to_datetime(held.at),
        metadata=None if held is None else held.metadata,
        received_at=to_datetime(stored.review.at),
        decided_by=stored.decided_by,
        decided_at=show_moment(stored.decided_at),
        reason=stored.reason,
    )
