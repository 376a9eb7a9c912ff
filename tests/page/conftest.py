"""Fixtures for tests of the page: a browser, and visits that fail the test if the page had errors."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from support.browser import NAMES, Open, Visit, browsing, fill, weekly
from support.calls import NewBoard
from support.running import RunningServer

# A slow machine must not fail tests.
expect.set_options(timeout=20_000)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Open a browser for the tests of one module.

    It is closed before other tests begin, because no other event loop can run while it is open.
    """
    with browsing() as opened:
        yield opened


@pytest.fixture
def visit(browser: Browser, server: RunningServer) -> Iterator[Open]:
    """Return a function that opens a page of the server; errors on the page fail the test at its end."""
    visits: list[Visit] = []

    def open_page(path: str, url: str | None = None, **context: Any) -> Page:
        # Only servers that the test started are restarted.
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
    """Create a board with twelve players, the first of whom leads with 1200 points."""
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
