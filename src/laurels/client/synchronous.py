"""The client for synchronous programs."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, Unpack

import httpx
import msgspec

from laurels.client import endpoints
from laurels.client.endpoints import Request, Score, Selection
from laurels.client.live import SILENCE_S, LiveSubscription, LiveView, MissingFrame
from laurels.client.retry import STREAM_LIMITS, TIMEOUT_S, TRIES, error_of, may_try_again, pause_before, unreachable
from laurels.client.tls import tls_for
from laurels.core.limits import PAGE_ENTRIES
from laurels.errors import LaurelsError
from laurels.http.answers import BoardAnswer, Entry, HistoryEvent, PeriodAnswer, ScoreResult

P = ParamSpec("P")
T = TypeVar("T")


def _ask(request: Callable[P, Request[T]]) -> Callable[Concatenate["Client", P], T]:
    def call(self: "Client", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.call(request(*args, **kwargs))

    call.__doc__ = request.__doc__
    call.__name__ = request.__name__
    return call


def _follow(request: Callable[P, Request[None]]) -> Callable[Concatenate["Client", P], Iterator[LiveView]]:
    def live(self: "Client", /, *args: P.args, **kwargs: P.kwargs) -> Iterator[LiveView]:
        return self.follow(request(*args, **kwargs))

    live.__doc__ = request.__doc__
    return live


class Client:
    """A client for synchronous programs.

    `tries` is the number of attempts before the failure of a call is raised.
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:8080",
        key: str | None = None,
        *,
        tries: int = TRIES,
        timeout_s: float = TIMEOUT_S,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        self._options: dict[str, Any] = {
            "base_url": url,
            "headers": headers,
            "transport": transport,
            "verify": tls_for(url),
        }
        self.http = httpx.Client(**self._options, timeout=timeout_s)
        self._making = threading.Lock()
        self._made: httpx.Client | None = None
        self._tries = tries

    @property
    def _streams(self) -> httpx.Client:
        """Return the HTTP client of live iterators.

        Each iterator keeps a connection open, so it must not use up the connection pool of the other calls.
        """
        with self._making:
            if self._made is None:
                self._made = httpx.Client(**self._options, timeout=SILENCE_S, limits=STREAM_LIMITS)
            return self._made

    submit = _ask(endpoints.submit)
    submit_to_boards = _ask(endpoints.submit_to_boards)
    top = _ask(endpoints.top)
    rank = _ask(endpoints.rank)
    around = _ask(endpoints.around)
    score_rank = _ask(endpoints.score_rank)
    score_range = _ask(endpoints.score_range)
    ranks = _ask(endpoints.ranks)
    regions = _ask(endpoints.regions)
    search = _ask(endpoints.search)
    distribution = _ask(endpoints.distribution)
    history = _ask(endpoints.history)
    boards = _ask(endpoints.boards)
    board = _ask(endpoints.board)
    create_board = _ask(endpoints.create_board)
    change_board = _ask(endpoints.change_board)
    delete_board = _ask(endpoints.delete_board)
    set_template = _ask(endpoints.set_template)
    reviews = _ask(endpoints.reviews)
    accept_review = _ask(endpoints.accept_review)
    reject_review = _ask(endpoints.reject_review)
    periods = _ask(endpoints.periods)
    user_scores = _ask(endpoints.user_scores)
    user_results = _ask(endpoints.user_results)
    profile = _ask(endpoints.profile)
    set_profiles = _ask(endpoints.set_profiles)
    create_token = _ask(endpoints.create_token)
    revoke_tokens = _ask(endpoints.revoke_tokens)
    usage = _ask(endpoints.usage)
    live = _follow(endpoints.live)

    def call(self, request: Request[T], *, tries: int | None = None) -> T:
        tries = tries or self._tries
        for number in range(tries):
            last = number == tries - 1
            response = None
            try:
                response = self.http.request(
                    request.method,
                    request.path,
                    params=request.query or None,
                    content=request.body,
                    headers=request.headers,
                )
            except httpx.TransportError as error:
                if last:
                    raise unreachable(self.http.base_url, error) from error
            else:
                if response.is_success:
                    return msgspec.json.decode(response.content, type=request.answer)
                if last or not may_try_again(response):
                    raise error_of(response)
            time.sleep(pause_before(number + 1, response))
        raise AssertionError("unreachable")

    def submit_many(
        self, board: str, scores: Sequence[Score], *, rank: bool | None = None, previous: bool | None = None
    ) -> list[ScoreResult]:
        """Submit any number of scores, and return one result per score, in order."""
        results: list[ScoreResult] = []
        for first in range(0, len(scores), endpoints.SCORES_A_CALL):
            some = scores[first : first + endpoints.SCORES_A_CALL]
            answer = self.call(endpoints.submit_many(board, some, rank=rank, previous=previous))
            results += answer.results
        return results

    def each_entry(self, board: str, **selection: Unpack[Selection]) -> Iterator[Entry]:
        """Yield all ranked users, reading page by page.

        A user whose rank changes during the iteration may be yielded twice or not at all.
        """
        offset = 0
        while True:
            page = self.top(board, PAGE_ENTRIES, offset, **selection)
            yield from page.users
            offset += len(page.users)
            if len(page.users) < PAGE_ENTRIES:
                return

    def each_board(self, **query: Any) -> Iterator[BoardAnswer]:
        cursor: str | None = None
        while True:
            page = self.boards(cursor=cursor, **query)
            yield from page.leaderboards
            if (cursor := page.next_cursor) is None:
                return

    def each_event(self, board: str, user_id: str) -> Iterator[HistoryEvent]:
        """Yield a user's events on a board, last received first."""
        cursor: str | None = None
        while True:
            page = self.history(board, user_id, cursor=cursor)
            yield from page.events
            if (cursor := page.next_cursor) is None:
                return

    def each_period(self, board: str, *, window: str | None = None) -> Iterator[PeriodAnswer]:
        cursor: str | None = None
        while True:
            page = self.periods(board, window=window, cursor=cursor)
            yield from page.periods
            if (cursor := page.next_cursor) is None:
                return

    def follow(self, request: Request[None], lost: Callable[[str], None] = lambda _reason: None) -> Iterator[LiveView]:
        """Yield the views of a request made by `endpoints.live`.

        When the connection is lost, calls `lost` with the reason, then reconnects.
        """
        following = LiveSubscription()
        while True:
            reason = "the stream ended"
            try:
                with self._streams.stream(
                    "GET", request.path, params=request.query, headers=request.headers | following.headers
                ) as response:
                    if not response.is_success:
                        response.read()
                        raise error_of(response)
                    for chunk in response.iter_bytes():
                        yield from following.take(chunk)
            except MissingFrame:
                following.start_again()
            except httpx.TransportError as error:
                reason = unreachable(self.http.base_url, error).message
            except LaurelsError as error:
                if not error.retryable:
                    raise
                reason = error.message
            following.lost()
            lost(reason)
            time.sleep(pause_before(following.failures))

    def close(self) -> None:
        self.http.close()
        if self._made is not None:
            self._made.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
