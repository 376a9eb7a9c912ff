"""The client for programs that wait."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, Unpack

import httpx
import msgspec

from laurels.client import asks
from laurels.client.asks import Ask, Score, Selection
from laurels.client.following import SILENCE_S, Following, Gap, LiveView
from laurels.client.trying import STREAM_LIMITS, TIMEOUT_S, TRIES, error_of, may_try_again, pause_before, unreachable
from laurels.core.limits import PAGE_ENTRIES
from laurels.errors import LaurelsError
from laurels.http.answers import BoardAnswer, Entry, HistoryEvent, PeriodAnswer, ScoreResult

P = ParamSpec("P")
T = TypeVar("T")


def _ask(ask: Callable[P, Ask[T]]) -> Callable[Concatenate["Client", P], T]:
    def call(self: "Client", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.call(ask(*args, **kwargs))

    call.__doc__ = ask.__doc__
    call.__name__ = ask.__name__
    return call


def _follow(ask: Callable[P, Ask[None]]) -> Callable[Concatenate["Client", P], Iterator[LiveView]]:
    def live(self: "Client", /, *args: P.args, **kwargs: P.kwargs) -> Iterator[LiveView]:
        return self.follow(ask(*args, **kwargs))

    live.__doc__ = ask.__doc__
    return live


class Client:
    """`tries`: how often a call is sent before its failure is raised."""

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
        self.http = httpx.Client(base_url=url, headers=headers, timeout=timeout_s, transport=transport)
        self._options: dict[str, Any] = {"base_url": url, "headers": headers, "transport": transport}
        self._making = threading.Lock()
        self._made: httpx.Client | None = None
        self._tries = tries

    @property
    def _streams(self) -> httpx.Client:
        """For live iterators: each keeps a connection, and must not take it from other calls."""
        with self._making:
            if self._made is None:
                self._made = httpx.Client(**self._options, timeout=SILENCE_S, limits=STREAM_LIMITS)
            return self._made

    submit = _ask(asks.submit)
    top = _ask(asks.top)
    rank = _ask(asks.rank)
    around = _ask(asks.around)
    ranks = _ask(asks.ranks)
    regions = _ask(asks.regions)
    search = _ask(asks.search)
    distribution = _ask(asks.distribution)
    history = _ask(asks.history)
    boards = _ask(asks.boards)
    board = _ask(asks.board)
    create_board = _ask(asks.create_board)
    change_board = _ask(asks.change_board)
    periods = _ask(asks.periods)
    user_scores = _ask(asks.user_scores)
    user_results = _ask(asks.user_results)
    profile = _ask(asks.profile)
    set_profiles = _ask(asks.set_profiles)
    live = _follow(asks.live)

    def call(self, ask: Ask[T], *, tries: int | None = None) -> T:
        tries = tries or self._tries
        for number in range(tries):
            last = number == tries - 1
            response = None
            try:
                response = self.http.request(
                    ask.method, ask.path, params=ask.query or None, content=ask.body, headers=ask.headers
                )
            except httpx.TransportError as error:
                if last:
                    raise unreachable(self.http.base_url, error) from error
            else:
                if response.is_success:
                    return msgspec.json.decode(response.content, type=ask.answer)
                if last or not may_try_again(response):
                    raise error_of(response)
            time.sleep(pause_before(number + 1, response))
        raise AssertionError("unreachable")

    def submit_many(self, board: str, scores: Sequence[Score]) -> list[ScoreResult]:
        """Any number of scores; one result a score, in order."""
        results: list[ScoreResult] = []
        for first in range(0, len(scores), asks.SCORES_A_CALL):
            answer = self.call(asks.submit_many(board, scores[first : first + asks.SCORES_A_CALL]))
            results += answer.results
        return results

    def each_entry(self, board: str, **selection: Unpack[Selection]) -> Iterator[Entry]:
        """Everybody who is ranked, page by page. Who moves meanwhile may be seen twice, or not."""
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
        """A user's events on a board, last arrived first."""
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

    def follow(self, ask: Ask[None], lost: Callable[[str], None] = lambda _reason: None) -> Iterator[LiveView]:
        """See `live`. `lost` is told why the connection is gone; it is tried to get it back."""
        following = Following()
        while True:
            reason = "it ended"
            try:
                with self._streams.stream(
                    "GET", ask.path, params=ask.query, headers=ask.headers | following.headers
                ) as response:
                    if not response.is_success:
                        response.read()
                        raise error_of(response)
                    for chunk in response.iter_bytes():
                        yield from following.take(chunk)
            except Gap:
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
