"""Keeps what this server has in memory of pods, keys and boards equal to the ledger, whoever changed it.

The feed tells at once. As its hints may be lost, the ledger is asked for its revision twice a second as well.
"""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from laurels.errors import LaurelsError
from laurels.ports import Feed, Ledger
from laurels.tasks import end_tasks

log = structlog.get_logger()

TOPIC = "registry"
POLL_S = 0.5
PAUSE_S = 0.1

Reload = Callable[[], Awaitable[None]]


class Registry:
    """`shared`: other servers may change the ledger, too."""

    def __init__(self, ledger: Ledger, feed: Feed, *, shared: bool) -> None:
        self._ledger = ledger
        self._feed = feed
        self._shared = shared
        self._reloads: list[Reload] = []
        # The history that the ledger is in, and a number that grows within it.
        self._state: tuple[str, int] | None = None
        self._hint = asyncio.Event()
        self._refreshing = asyncio.Lock()
        self._watching: asyncio.Task[None] | None = None
        self._unsubscribe: Callable[[], None] = lambda: None

    def start(self, *reloads: Reload) -> None:
        self._reloads = list(reloads)
        if self._shared:
            self._unsubscribe = self._feed.subscribe(TOPIC, lambda _message: self._hint.set())
            self._watching = asyncio.create_task(self._watch(), name="watch the registry")

    async def close(self) -> None:
        self._unsubscribe()
        if self._watching is not None:
            await end_tasks([self._watching])

    async def tell(self) -> None:
        """This server has changed something."""
        if self._shared:
            await self._feed.publish(TOPIC, "")

    async def refresh(self) -> None:
        """Read again what is there, if it was changed."""
        if not self._shared:
            return
        async with self._refreshing:
            # Read first: a change in between is seen the next time.
            history = (await self._ledger.read_as_of()).history
            state = (history, await self._ledger.registry_revision())
            if state != self._state:
                for reload in self._reloads:
                    await reload()
                self._state = state

    async def _watch(self) -> None:
        while True:
            try:
                async with asyncio.timeout(POLL_S):
                    await self._hint.wait()
            except TimeoutError:
                pass
            self._hint.clear()
            try:
                await self.refresh()
            except LaurelsError as error:
                log.debug("registry_not_read", reason=error.message)
            except Exception:
                log.exception("registry_not_read")
            # At a reset of many boards there is one change after the other.
            await asyncio.sleep(PAUSE_S)
