"""A browser for all tests of the page, and visits that end with a look at what went wrong."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from support.browser import NAMES, Open, Visit, browsing, fill, weekly
from support.calls import NewBoard
from support.running import RunningServer

# A loaded machine is not a fault.
expect.set_options(timeout=20_000)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Closed before other tests begin: while it is open, its event loop runs, and no other can."""
    with browsing() as opened:
        yield opened


@pytest.fixture
def visit(browser: Browser, server: RunningServer) -> Iterator[Open]:
    """Opens an address of the server; whatever the page did wrong fails the test in the end."""
    visits: list[Visit] = []

    def open_page(path: str, url: str | None = None, **context: Any) -> Page:
        # Only a server of the test's own is ever restarted.
        one = Visit(browser, url or server.url, restarts=url is not None, **context)
        visits.append(one)
        one.page.set_default_timeout(20_000)
        one.page.goto(path)
        return one.page

    yield open_page
    for one in visits:
        one.close()


@pytest.fixture
def arena(api: httpx.Client, new_board: NewBoard) -> str:
    """A board with a dozen players, the first of whom leads with 1200 points."""
    board = new_board(
        name="Autumn Arena",
        public=True,
        rule="increment",
        windows=[weekly(), "all"],
        segments=["global", "region"],
        graceSeconds=0,
    )
    fill(api, board, len(NAMES))
    return board
