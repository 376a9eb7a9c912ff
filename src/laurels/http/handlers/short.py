"""The short form: three calls on the default board, for whoever needs no more."""

from laurels.http.answers import ShortEntry, ShortInfo, ShortTop, ShortUser
from laurels.http.call import Answered, Call
from laurels.http.handlers.scores import SPOOLED
from laurels.http.requests import NoQuery, ShortScore
from laurels.ports import Recorded
from laurels.service.reads import Selection
from laurels.service.submit import Submission

TOP = 10


async def post_short_score(call: Call[NoQuery, ShortScore]) -> Answered[ShortUser]:
    """Add points to a user of the default board

    The answer, and the other two calls, tell of its first window: this month.
    """
    board = call.board
    event_id = call.body.event_id or call.idempotency_key
    submission = Submission(call.body.user_id, call.body.points, event_id=event_id)
    accepted = await call.laurels.submissions.submit(board, submission)
    answer = ShortUser(user_info=ShortInfo(user_id=accepted.user_id, score=accepted.score, rank=accepted.rank))
    return Answered(answer, SPOOLED if accepted.outcome is Recorded.SPOOLED else 200)


async def get_short_scores(call: Call[NoQuery, None]) -> ShortTop:
    """The ten best users of the default board"""
    board = call.board
    page = call.show(await call.laurels.reads.top(board, Selection(), 0, TOP))
    data = [
        ShortEntry(user_id=place.user_id, user_name=place.user_id, rank=place.rank, score=place.score)
        for place in page.places
    ]
    return ShortTop(data=data, total=len(data))


async def get_short_score(call: Call[NoQuery, None]) -> ShortUser:
    """A user's score and rank on the default board"""
    board = call.board
    found = call.show(await call.laurels.reads.rank(board, Selection(), call.user_id))
    return ShortUser(user_info=ShortInfo(user_id=found.place.user_id, score=found.place.score, rank=found.place.rank))
