"""The calls that the clients make, one function per call: each builds a request with the type of its response.

Nothing is sent here. Most methods of both clients take their signatures and docstrings from these functions.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Generic, Literal, TypedDict, TypeVar, Unpack
from urllib.parse import quote
from uuid import uuid4

from msgspec import UNSET, Struct, UnsetType
from msgspec.json import encode

from laurels.core.reviews import ReviewState
from laurels.http.answers import (
    AroundAnswer,
    BatchAnswer,
    BoardAnswer,
    BoardsAnswer,
    BoardsScoreAnswer,
    DeletionAnswer,
    DistributionAnswer,
    HistoryAnswer,
    PeriodsAnswer,
    RangeAnswer,
    RankAnswer,
    RanksAnswer,
    RegionsAnswer,
    ResultsAnswer,
    RevokedAnswer,
    ScoreAnswer,
    ScorePlaceAnswer,
    SearchAnswer,
    TemplateAnswer,
    TokenAnswer,
    TopAnswer,
    UsageAnswer,
    UserScoresAnswer,
)
from laurels.http.people_answers import ActAnswer, ChangedAnswer, ProfileAnswer, ReviewsAnswer

T = TypeVar("T")

# Small enough that a slow ledger records all of them before the timeout.
SCORES_A_CALL = 1000


Order = Literal["forward", "reverse"]


class Selection(TypedDict, total=False):
    """The ranking of a board to read; what is not set is up to the board."""

    window: str | None
    period: str | None
    segment: str | None
    ranking: Literal["ordinal", "competition", "dense"] | None
    viewer: str | None


class Request(Struct, Generic[T], frozen=True):
    """One call, which can be sent several times and takes effect once."""

    method: str
    path: str
    answer: type[T]
    query: dict[str, Any] = {}
    body: bytes | None = None
    headers: dict[str, str] = {}


class Score(Struct, rename="camel", omit_defaults=True):
    """One score of a batch.

    Without an `event_id`, it gets a new one here, so that it counts once even if it is sent several times.
    """

    user_id: str
    score: float
    event_id: str = ""
    timestamp: datetime | UnsetType = UNSET
    metadata: dict[str, Any] | UnsetType = UNSET
    region: str | UnsetType = UNSET
    subscore: int | UnsetType = UNSET
    operation: str | UnsetType = UNSET

    def __post_init__(self) -> None:
        self.event_id = self.event_id or str(uuid4())


def submit(
    board: str,
    user_id: str,
    score: float,
    *,
    event_id: str | None = None,
    timestamp: datetime | None = None,
    metadata: Mapping[str, Any] | None = None,
    region: str | None = None,
    rank: bool | None = None,
    subscore: int | None = None,
    operation: str | None = None,
) -> Request[ScoreAnswer]:
    """Submit a score. `rank`: whether the answer has ranks; by default as the board's `rankOnWrite` says.

    `operation`: increment, best, latest or set instead of the board's rule, if the board allows it.
    """
    body = {"score": score, "eventId": event_id or str(uuid4())}
    given = {
        "timestamp": timestamp,
        "metadata": metadata,
        "region": region,
        "subscore": subscore,
        "operation": operation,
    }
    body |= {name: value for name, value in given.items() if value is not None}
    return _ask("PUT", _user(board, user_id), ScoreAnswer, _given(rank=rank), body=body)


def submit_to_boards(
    boards: Sequence[str],
    user_id: str,
    score: float,
    *,
    pod_id: str | None = None,
    event_id: str | None = None,
    timestamp: datetime | None = None,
    metadata: Mapping[str, Any] | None = None,
    region: str | None = None,
    rank: bool | None = None,
    subscore: int | None = None,
) -> Request[BoardsScoreAnswer]:
    """Submit a score to several boards of a pod: it counts on all of them or on none."""
    body = {"score": score, "boards": list(boards), "eventId": event_id or str(uuid4())}
    given = {"timestamp": timestamp, "metadata": metadata, "region": region, "subscore": subscore}
    body |= {name: value for name, value in given.items() if value is not None}
    return _ask("POST", _person(user_id) + "/scores", BoardsScoreAnswer, _given(podId=pod_id, rank=rank), body)


def submit_many(
    board: str, scores: Sequence[Score], *, rank: bool | None = None, previous: bool | None = None
) -> Request[BatchAnswer]:
    """Submit up to 10,000 scores; the response has one result per score, in order."""
    query = _given(rank=rank, previous=previous)
    return _ask("POST", _board(board) + "/scores", BatchAnswer, query, body={"scores": list(scores)})


def top(
    board: str,
    limit: int = 10,
    offset: int = 0,
    *,
    order: Order | None = None,
    percent: float | None = None,
    **selection: Unpack[Selection],
) -> Request[TopAnswer]:
    """Return a page of users. `order` reverse: from the worst up. `percent`: only the best (or worst) share."""
    query = {"limit": limit, "offset": offset} | _given(order=order, percent=percent, **selection)
    return _ask("GET", _board(board) + "/top", TopAnswer, query)


def score_range(
    board: str,
    min_score: float | None = None,
    max_score: float | None = None,
    *,
    limit: int = 10,
    offset: int = 0,
    order: Order | None = None,
    **selection: Unpack[Selection],
) -> Request[RangeAnswer]:
    """Return the users whose scores are between two scores, both included, and their number."""
    bounds = _given(minScore=min_score, maxScore=max_score, order=order, **selection)
    return _ask("GET", _board(board) + "/range", RangeAnswer, {"limit": limit, "offset": offset} | bounds)


def score_rank(
    board: str, score: float, *, above: int = 0, below: int = 0, **selection: Unpack[Selection]
) -> Request[ScorePlaceAnswer]:
    """Return the rank that a score would have, and up to `above` and `below` users around it."""
    query = {"score": score, "above": above, "below": below} | _given(**selection)
    return _ask("GET", _board(board) + "/rank", ScorePlaceAnswer, query)


def rank(board: str, user_id: str, **selection: Unpack[Selection]) -> Request[RankAnswer]:
    return _ask("GET", _user(board, user_id) + "/rank", RankAnswer, _given(**selection))


def around(
    board: str,
    user_id: str,
    *,
    above: int = 4,
    below: int = 4,
    fill: bool | None = None,
    **selection: Unpack[Selection],
) -> Request[AroundAnswer]:
    """Return a user's neighbours. `fill`: as many for the first and the last users as for the others."""
    query = {"above": above, "below": below} | _given(fill=fill, **selection)
    return _ask("GET", _user(board, user_id) + "/around", AroundAnswer, query)


def ranks(board: str, user_ids: Sequence[str], **selection: Unpack[Selection]) -> Request[RanksAnswer]:
    query = _given(**selection)
    return _ask("POST", _board(board) + "/ranks", RanksAnswer, query, {"userIds": list(user_ids)})


def regions(
    board: str,
    *,
    window: str | None = None,
    period: str | None = None,
    kind: Literal["region", "circle"] | None = None,
) -> Request[RegionsAnswer]:
    """List the regions, or the circles, that have ranked users, largest first."""
    return _ask("GET", _board(board) + "/regions", RegionsAnswer, _given(window=window, period=period, kind=kind))


def search(board: str, text: str, limit: int = 10, **selection: Unpack[Selection]) -> Request[SearchAnswer]:
    """Find the user with this id and the users whose name starts with the text."""
    query = {"q": text, "limit": limit} | _given(**selection)
    return _ask("GET", _board(board) + "/search", SearchAnswer, query)


def distribution(
    board: str,
    buckets: int = 20,
    *,
    percentiles: Sequence[float] | None = None,
    sum: bool | None = None,  # noqa: A002 - the name of the parameter in the API
    **selection: Unpack[Selection],
) -> Request[DistributionAnswer]:
    """Return the distribution of scores, the scores at percentiles, and with `sum` their sum and mean."""
    texts = None if percentiles is None else ",".join(f"{each:.4f}".rstrip("0").rstrip(".") for each in percentiles)
    query = {"buckets": buckets} | _given(percentiles=texts, sum=sum, **selection)
    return _ask("GET", _board(board) + "/distribution", DistributionAnswer, query)


def history(board: str, user_id: str, *, limit: int = 100, cursor: str | None = None) -> Request[HistoryAnswer]:
    return _ask("GET", _user(board, user_id) + "/history", HistoryAnswer, _page(limit, cursor))


def boards(
    *, pod_id: str | None = None, status: str | None = None, limit: int = 100, cursor: str | None = None
) -> Request[BoardsAnswer]:
    query = _page(limit, cursor) | _given(podId=pod_id, status=status)
    return _ask("GET", "/api/v1/leaderboards", BoardsAnswer, query)


def board(board: str) -> Request[BoardAnswer]:
    return _ask("GET", _board(board), BoardAnswer)


def create_board(name: str, **fields: Any) -> Request[BoardAnswer]:
    """Create a board, once even if the call is retried.

    The fields are those of the API: `UUID`, `podId`, `rule`, `windows` and so on.
    """
    headers = {"Idempotency-Key": str(uuid4())}
    return _ask("POST", "/api/v1/leaderboards", BoardAnswer, body={"name": name} | fields, headers=headers)


def change_board(board: str, **fields: Any) -> Request[BoardAnswer]:
    return _ask("PATCH", _board(board), BoardAnswer, body=fields)


def delete_board(board: str) -> Request[DeletionAnswer]:
    """Delete a board for good, with all its scores. Needs an admin key."""
    return _ask("POST", _board(board) + "/deletion", DeletionAnswer, body={"confirm": board})


def set_template(
    pod_id: str, name: str, board: Mapping[str, Any], *, prefix: str | None = None
) -> Request[TemplateAnswer]:
    """Set what new boards of a pod are like. The first score for a board whose UUID has the prefix creates it."""
    path = f"{_pod(pod_id)}/templates/{quote(name, safe='')}"
    return _ask("PUT", path, TemplateAnswer, body={"board": dict(board), "prefix": prefix})


def reviews(
    board: str, *, status: ReviewState | None = None, limit: int = 100, cursor: str | None = None
) -> Request[ReviewsAnswer]:
    """List the scores of a board that wait for a moderator (`status` pending), or did, latest first."""
    return _ask("GET", _board(board) + "/reviews", ReviewsAnswer, _page(limit, cursor) | _given(status=status))


def accept_review(board: str, review_id: str, *, reason: str | None = None) -> Request[ActAnswer]:
    """Let a score from the review list count, with its own time."""
    return _ask("POST", f"{_board(board)}/reviews/{review_id}/accept", ActAnswer, body=_given(reason=reason))


def reject_review(board: str, review_id: str, *, reason: str | None = None) -> Request[ActAnswer]:
    """Decide that a score from the review list never counts."""
    return _ask("POST", f"{_board(board)}/reviews/{review_id}/reject", ActAnswer, body=_given(reason=reason))


def periods(
    board: str, *, window: str | None = None, limit: int = 100, cursor: str | None = None
) -> Request[PeriodsAnswer]:
    return _ask("GET", _board(board) + "/periods", PeriodsAnswer, _page(limit, cursor) | _given(window=window))


def user_scores(
    user_id: str, *, pod_id: str | None = None, boards: Sequence[str] | None = None
) -> Request[UserScoresAnswer]:
    """Return the current scores of a user on all boards of a pod, or on some of them."""
    query = _given(podId=pod_id, boards=None if boards is None else ",".join(boards))
    return _ask("GET", _person(user_id) + "/scores", UserScoresAnswer, query)


def user_results(
    user_id: str, *, board: str | None = None, pod_id: str | None = None, limit: int = 100, cursor: str | None = None
) -> Request[ResultsAnswer]:
    query = _page(limit, cursor) | _given(podId=pod_id, UUID=board)
    return _ask("GET", _person(user_id) + "/results", ResultsAnswer, query)


def profile(user_id: str, *, pod_id: str | None = None) -> Request[ProfileAnswer]:
    return _ask("GET", _person(user_id), ProfileAnswer, _given(podId=pod_id))


def set_profiles(profiles: Sequence[Mapping[str, Any]], *, pod_id: str | None = None) -> Request[ChangedAnswer]:
    """Change up to 1,000 profiles, each with its `userId` and the fields to change, as in the API."""
    return _ask("POST", "/api/v1/users", ChangedAnswer, _given(podId=pod_id), {"users": list(profiles)})


def create_token(
    pod_id: str, user_id: str, *, expires_in_s: int = 3600, may_write: bool = False
) -> Request[TokenAnswer]:
    """Issue a token with which a player's device reads, and with `may_write` submits, the player's own scores."""
    body = {"userId": user_id, "expiresInSeconds": expires_in_s, "mayWrite": may_write}
    return _ask("POST", _pod(pod_id) + "/tokens", TokenAnswer, body=body)


def revoke_tokens(pod_id: str, user_id: str) -> Request[RevokedAnswer]:
    return _ask("DELETE", f"{_pod(pod_id)}/tokens/{quote(user_id, safe='')}", RevokedAnswer)


def usage(pod_id: str) -> Request[UsageAnswer]:
    """Return how much of its quotas a pod uses."""
    return _ask("GET", _pod(pod_id) + "/usage", UsageAnswer)


def live(
    board: str,
    limit: int = 10,
    *,
    user_id: str | None = None,
    above: int = 4,
    below: int = 4,
    **selection: Unpack[Selection],
) -> Request[None]:
    """Yield the board now and after each change, forever; reconnect when the connection is lost.

    Yields the same `LiveView` each time, updated in place.
    """
    query = {"limit": limit} | _given(**selection)
    if user_id is not None:
        query |= {"userId": user_id, "above": above, "below": below}
    return _ask("GET", _board(board) + "/stream", type(None), query, headers={"Accept": "text/event-stream"})


def _ask(
    method: str,
    path: str,
    answer: type[T],
    query: dict[str, Any] | None = None,
    body: Any = None,
    headers: dict[str, str] | None = None,
) -> Request[T]:
    sent = {"Content-Type": "application/json"} if body is not None else {}
    return Request(method, path, answer, query or {}, None if body is None else encode(body), sent | (headers or {}))


def _page(limit: int, cursor: str | None) -> dict[str, Any]:
    return _given(limit=limit, cursor=cursor)


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _board(uuid: str) -> str:
    return f"/api/v1/leaderboards/{quote(uuid, safe='')}"


def _user(board: str, user_id: str) -> str:
    return f"{_board(board)}/users/{quote(user_id, safe='')}"


def _pod(pod_id: str) -> str:
    return f"/api/v1/pods/{quote(pod_id, safe='')}"


def _person(user_id: str) -> str:
    return f"/api/v1/users/{quote(user_id, safe='')}"
