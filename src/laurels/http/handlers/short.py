"""The short form: three simple calls on the default board."""

from laurels.http.answers import ShortEntry, ShortInfo, ShortTop, ShortUser
from laurels.http.call import Answered, Call
from laurels.http.handlers.scores import status_of_score
from laurels.http.queries import NoQuery
from laurels.http.requests import ShortScore
from laurels.service.people.profiles import NO_PROFILE
from laurels.service.read.reads import Selection
from laurels.service.write.submissions import Submission

TOP = 10


async def post_short_score(call: Call[NoQuery, ShortScore]) -> Answered[ShortUser]:
    """Add points to a user on the default board.

    The response and the other two calls show the board's first window: the current month.
    """
    board = call.board
    event_id = call.body.event_id or call.idempotency_key
    submission = Submission(call.body.user_id, call.body.points, event_id=event_id)
    accepted = await call.laurels.submissions.submit(board, submission)
    answer = ShortUser(user_info=ShortInfo(user_id=accepted.user_id, score=accepted.score, rank=accepted.rank))
    return Answered(answer, status_of_score(accepted))


async def get_short_scores(call: Call[NoQuery, None]) -> ShortTop:
    """Return the ten best users of the default board.

    `user_name` is the display name of the user's profile or, without one, the user id.
    """
    board = call.board
    page = call.show(await call.laurels.reads.top(board, Selection(), 0, TOP))
    names = await call.laurels.profiles.names(board.pod_id, [entry.user_id for entry in page.entries])
    data = [
        ShortEntry(
            user_id=entry.user_id,
            user_name=names.get(entry.user_id, NO_PROFILE).display_name or entry.user_id,
            rank=entry.rank,
            score=entry.score,
        )
        for entry in page.entries
    ]
    return ShortTop(data=data, total=len(data))


async def get_short_score(call: Call[NoQuery, None]) -> ShortUser:
    """Return the score and rank of a user on the default board."""
    board = call.board
    found = call.show(await call.laurels.reads.rank(board, Selection(), call.user_id))
    rank = found.entry.rank if found.is_ranked else None
    return ShortUser(user_info=ShortInfo(user_id=found.entry.user_id, score=found.entry.score, rank=rank))
