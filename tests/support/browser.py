"""Debian's Chromium, driven by Playwright."""

import contextlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import httpx
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, sync_playwright

from support.stores import need

Open = Callable[..., Page]
NAMES = ["Mina", "Joon", "Aria", "Haru", "Leo", "Nova", "Kai", "Sora", "Yuna", "Theo", "Ivy", "Max"]


@contextlib.contextmanager
def browsing() -> Iterator[Browser]:
    path = need("chromium")
    with sync_playwright() as playwright:
        # Chromium's sandbox does not work as root. The pages are our own, so it is not needed.
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


class Visit:
    """A browser page that records errors and requests to other hosts; `close` fails if there are any."""

    def __init__(self, browser: Browser, url: str, *, restarts: bool = False, **context: object) -> None:
        self._context = browser.new_context(base_url=url, **context)  # type: ignore[arg-type]
        self.page: Page = self._context.new_page()
        self.errors: list[str] = []
        # Some tests stop the server or read without a key.
        # A request in flight when a server is killed is reset, or gets no response.
        killed = ["status of 503", "ERR_CONNECTION_RESET", "ERR_EMPTY_RESPONSE", "ERR_SOCKET_NOT_CONNECTED"]
        killed.append("ERR_CONTENT_LENGTH_MISMATCH")
        self._expected = ["ERR_CONNECTION_REFUSED", "status of 401", *(killed if restarts else [])]
        self._url = url
        self.page.on("pageerror", lambda error: self.errors.append(f"error: {error}"))
        self.page.on("console", self._hear)
        self.page.on("request", self._see)

    def close(self) -> None:
        self._context.close()
        assert self.errors == [], self.errors

    def _hear(self, message: ConsoleMessage) -> None:
        if message.type == "error" and not any(each in message.text for each in self._expected):
            self.errors.append(f"console: {message.text}")

    def _see(self, request: Request) -> None:
        if not request.url.startswith((self._url, self._url.replace("http", "ws", 1))):
            self.errors.append(f"request to another host: {request.url}")


def fill(api: httpx.Client, board: str, players: int) -> None:
    users = [f"{board}-{number}" for number in range(players)]
    for first in range(0, players, 1000):
        profiles = [
            {"userId": user, "displayName": named(number), "region": ["kr", "eu"][number % 2]}
            for number, user in enumerate(users[first : first + 1000], first)
        ]
        answer = api.post("/api/v1/users", params={"podId": "default"}, json={"users": profiles})
        assert answer.status_code == 200, answer.text
    scores = [{"userId": user, "score": 100 * (players - number)} for number, user in enumerate(users)]
    answer = api.post(f"/api/v1/leaderboards/{board}/scores", json={"scores": scores})
    assert answer.status_code == 200, answer.text


def named(number: int) -> str:
    turn, which = divmod(number, len(NAMES))
    return f"{NAMES[which]}{turn + 1}" if turn else NAMES[which]


def weekly() -> dict[str, str]:
    """Return a weekly window that does not end during a test: it starts on the weekday three days from now."""
    day = (datetime.now(UTC) + timedelta(days=3)).strftime("%A").lower()
    return {"window": "weekly", "startDay": day}
