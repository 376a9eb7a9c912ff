"""What can be asked of a server, one function a call: where it goes, and what comes back. Nothing is sent here."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Generic, Literal, TypedDict, TypeVar, Unpack
from urllib.parse import quote
from uuid import uuid4

from msgspec import UNSET, Struct, UnsetType
from msgspec.json import encode

from laurels.http.answers import (
    AroundAnswer,
    BatchAnswer,
    BoardAnswer,
    BoardsAnswer,
    DistributionAnswer,
    HistoryAnswer,
    PeriodsAnswer,
    RankAnswer,
    RanksAnswer,
    RegionsAnswer,
    ResultsAnswer,
    ScoreAnswer,
    SearchAnswer,
    TopAnswer,
    UserScoresAnswer,
)
from laurels.http.people_answers import ChangedAnswer, ProfileAnswer

T = TypeVar("T")

# Few enough that a slow ledger takes all of them in time.
SCORES_A_CALL = 1000


class Selection(TypedDict, total=False):
    """Which ranking of a board is meant; without them, the board's own choice."""

    window: str | None
    period: str | None
    segment: str | None
    ranking: Literal["ordinal", "competition", "dense"] | None
    viewer: str | None


class Ask(Struct, Generic[T], frozen=True):
    """One call. It may be sent again and again: it counts once."""

    method: str
    path: str
    answer: type[T]
    query: dict[str, Any] = {}
    body: bytes | None = None
    headers: dict[str, str] = {}


class Score(Struct, rename="camel", omit_defaults=True):
    """One of many scores. It gets an `event_id` when it is made, so that it counts once."""

    user_id: str
    score: float
    event_id: str = ""
    timestamp: datetime | UnsetType = UNSET
    metadata: dict[str, Any] | UnsetType = UNSET
    region: str | UnsetType = UNSET

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
) -> Ask[ScoreAnswer]:
    body = {"score": score, "eventId": event_id or str(uuid4())}
    given = {"timestamp": timestamp, "metadata": metadata, "region": region}
    body |= {name: value for name, value in given.items() if value is not None}
    return _ask("PUT", _user(board, user_id), ScoreAnswer, body=body)


def submit_many(board: str, scores: Sequence[Score]) -> Ask[BatchAnswer]:
    """Up to 10,000; one result a score, in order."""
    return _ask("POST", _board(board) + "/scores", BatchAnswer, body={"scores": list(scores)})


def top(board: str, limit: int = 10, offset: int = 0, **selection: Unpack[Selection]) -> Ask[TopAnswer]:
    query = {"limit": limit, "offset": offset} | _given(**selection)
    return _ask("GET", _board(board) + "/top", TopAnswer, query)


def rank(board: str, user_id: str, **selection: Unpack[Selection]) -> Ask[RankAnswer]:
    return _ask("GET", _user(board, user_id) + "/rank", RankAnswer, _given(**selection))


def around(
    board: str, user_id: str, *, above: int = 4, below: int = 4, **selection: Unpack[Selection]
) -> Ask[AroundAnswer]:
    query = {"above": above, "below": below} | _given(**selection)
    return _ask("GET", _user(board, user_id) + "/around", AroundAnswer, query)


def ranks(board: str, user_ids: Sequence[str], **selection: Unpack[Selection]) -> Ask[RanksAnswer]:
    query = _given(**selection)
    return _ask("POST", _board(board) + "/ranks", RanksAnswer, query, {"userIds": list(user_ids)})


def regions(board: str, *, window: str | None = None) -> Ask[RegionsAnswer]:
    return _ask("GET", _board(board) + "/regions", RegionsAnswer, _given(window=window))


def search(board: str, text: str, limit: int = 10, **selection: Unpack[Selection]) -> Ask[SearchAnswer]:
    """The user with that id, and those whose name begins so."""
    query = {"q": text, "limit": limit} | _given(**selection)
    return _ask("GET", _board(board) + "/search", SearchAnswer, query)


def distribution(board: str, buckets: int = 20, **selection: Unpack[Selection]) -> Ask[DistributionAnswer]:
    query = {"buckets": buckets} | _given(**selection)
    return _ask("GET", _board(board) + "/distribution", DistributionAnswer, query)


def history(board: str, user_id: str, *, limit: int = 100, cursor: str | None = None) -> Ask[HistoryAnswer]:
    return _ask("GET", _user(board, user_id) + "/history", HistoryAnswer, _page(limit, cursor))


def boards(
    *, pod_id: str | None = None, status: str | None = None, limit: int = 100, cursor: str | None = None
) -> Ask[BoardsAnswer]:
    query = _page(limit, cursor) | _given(podId=pod_id, status=status)
    return _ask("GET", "/api/v1/leaderboards", BoardsAnswer, query)


def board(board: str) -> Ask[BoardAnswer]:
    return _ask("GET", _board(board), BoardAnswer)


def create_board(name: str, **fields: Any) -> Ask[BoardAnswer]:
    """Fields as in the API: `UUID`, `podId`, `rule`, `windows` and so on. Sent twice, it is made once."""
    headers = {"Idempotency-Key": str(uuid4())}
    return _ask("POST", "/api/v1/leaderboards", BoardAnswer, body={"name": name} | fields, headers=headers)


def change_board(board: str, **fields: Any) -> Ask[BoardAnswer]:
    return _ask("PATCH", _board(board), BoardAnswer, body=fields)


def periods(
    board: str, *, window: str | None = None, limit: int = 100, cursor: str | None = None
) -> Ask[PeriodsAnswer]:
    return _ask("GET", _board(board) + "/periods", PeriodsAnswer, _page(limit, cursor) | _given(window=window))


def user_scores(user_id: str, *, pod_id: str | None = None) -> Ask[UserScoresAnswer]:
    return _ask("GET", _person(user_id) + "/scores", UserScoresAnswer, _given(podId=pod_id))


def user_results(
    user_id: str, *, board: str | None = None, pod_id: str | None = None, limit: int = 100, cursor: str | None = None
) -> Ask[ResultsAnswer]:
    query = _page(limit, cursor) | _given(podId=pod_id, UUID=board)
    return _ask("GET", _person(user_id) + "/results", ResultsAnswer, query)


def profile(user_id: str, *, pod_id: str | None = None) -> Ask[ProfileAnswer]:
    return _ask("GET", _person(user_id), ProfileAnswer, _given(podId=pod_id))


def set_profiles(profiles: Sequence[Mapping[str, Any]], *, pod_id: str | None = None) -> Ask[ChangedAnswer]:
    """Up to 1,000, each with its `userId` and what is to change, as in the API."""
    return _ask("POST", "/api/v1/users", ChangedAnswer, _given(podId=pod_id), {"users": list(profiles)})


def live(
    board: str,
    limit: int = 10,
    *,
    user_id: str | None = None,
    above: int = 4,
    below: int = 4,
    **selection: Unpack[Selection],
) -> Ask[None]:
    """The board as it is, then again after each change, for ever. It comes back by itself when it is cut off.

    The same `LiveView` each time, as it is then.
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
) -> Ask[T]:
    sent = {"Content-Type": "application/json"} if body is not None else {}
    return Ask(method, path, answer, query or {}, None if body is None else encode(body), sent | (headers or {}))


def _page(limit: int, cursor: str | None) -> dict[str, Any]:
    return _given(limit=limit, cursor=cursor)


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _board(uuid: str) -> str:
    return f"/api/v1/leaderboards/{quote(uuid, safe='')}"


def _user(board: str, user_id: str) -> str:
    return f"{_board(board)}/users/{quote(user_id, safe='')}"


def _person(user_id: str) -> str:
    return f"/api/v1/users/{quote(user_id, safe='')}"
