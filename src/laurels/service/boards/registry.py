"""The registry: keeps the keys, boards and schemas in this server's memory equal to the ledger.

The feed announces changes of other servers at once. Because its hints may be lost, the registry also reads the
ledger's registry revision twice per second.
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
    """A watcher that reloads the data in memory after changes in the ledger.

    `shared`: other servers may change the ledger, too.
    """

    def __init__(self, ledger: Ledger, feed: Feed, *, shared: bool) -> None:
        self._ledger = ledger
        self._feed = feed
        self._shared = shared
        self.reloads: list[Reload] = []
        # The ledger's history, and the registry revision, which grows within it.
        self._state: tuple[str, int] | None = None
        self._hint = asyncio.Event()
        self._refreshing = asyncio.Lock()
        self._watching: asyncio.Task[None] | None = None
        self._unsubscribe: Callable[[], None] = lambda: None

    def start(self, *reloads: Reload) -> None:
        self.reloads = list(reloads)
        if self._shared:
            self._unsubscribe = self._feed.subscribe(TOPIC, lambda _message: self._hint.set())
            self._watching = asyncio.create_task(self._watch(), name="watch the registry")

    async def close(self) -> None:
        self._unsubscribe()
        if self._watching is not None:
            await end_tasks([self._watching])

    async def tell(self) -> None:
        """Announce to the other servers that this server has changed something."""
        if self._shared:
            await self._feed.publish(TOPIC, "")

    async def refresh(self) -> None:
        """Reload everything if the ledger's registry revision or history has changed."""
        if not self._shared:
            return
        async with self._refreshing:
            # Read the revision before the data, so that the next refresh sees a change in between.
            history = (await self._ledger.read_as_of()).history
            state = (history, await self._ledger.registry_revision())
            if state != self._state:
                for reload in self.reloads:
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
            # A reset of many boards causes many changes in a row: reload once for several of them.
            await asyncio.sleep(PAUSE_S)
