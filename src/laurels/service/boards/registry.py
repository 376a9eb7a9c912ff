"""The registry: keeps the keys, boards and schemas in this server's memory equal to the ledger.

The feed announces changes of other servers at once. Because its hints may be lost, the registry also reads the
ledger's registry revision twice per second. A call that names an unknown key or board makes it look at once, because
another server may have just created it.
"""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from laurels.errors import LaurelsError
from laurels.ports import Feed, Ledger
from laurels.tasks import end_tasks, start_apart

log = structlog.get_logger()

TOPIC = "registry"
POLL_S = 0.5
PAUSE_S = 0.1
# The minimum interval between refreshes that calls cause, and how long such a call waits.
LOOK_EVERY_S = 0.05
LOOK_TIMEOUT_S = 3.0

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
        # A refresh that calls wait for and that has not begun, those that have begun, and when the last one began.
        self._look: asyncio.Task[None] | None = None
        self._looks: set[asyncio.Task[None]] = set()
        self._looked_at = -LOOK_EVERY_S
        self._unsubscribe: Callable[[], None] = lambda: None

    def start(self, *reloads: Reload) -> None:
        self.reloads = list(reloads)
        if self._shared:
            self._unsubscribe = self._feed.subscribe(TOPIC, lambda _message: self._hint.set())
            self._watching = asyncio.create_task(self._watch(), name="watch the registry")

    async def close(self) -> None:
        self._unsubscribe()
        await end_tasks([*self._looks, *([self._watching] if self._watching else [])])

    async def tell(self) -> None:
        """Announce to the other servers that this server has changed something."""
        if self._shared:
            await self._feed.publish(TOPIC, "")

    async def refresh(self) -> None:
        """Reload everything if the ledger's registry revision or history has changed."""
        if self._shared:
            async with self._refreshing:
                await self._refresh()

    async def _refresh(self) -> None:
        # Read the revision before the data, so that the next refresh sees a change in between.
        history = (await self._ledger.read_as_of()).history
        state = (history, await self._ledger.registry_revision())
        if state != self._state:
            for reload in self.reloads:
                await reload()
            self._state = state

    async def look_again(self) -> None:
        """Refresh for a call that names something unknown.

        Calls share a refresh that begins after them, at most one per LOOK_EVERY_S, so that calls with wrong keys can't
        load the ledger. Returns after LOOK_TIMEOUT_S, and if the ledger can't be reached, too.
        """
        if not self._shared:
            return
        if self._look is None:
            self._look = start_apart(self._look_later(), "look for a new key or board")
            self._looks.add(self._look)
            self._look.add_done_callback(self._looks.discard)
        await asyncio.wait({self._look}, timeout=LOOK_TIMEOUT_S)

    async def _look_later(self) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(max(0.0, self._looked_at + LOOK_EVERY_S - loop.time()))
        async with self._refreshing:
            # A call from now on needs another refresh, which waits for this one: what it names may be created after
            # this one has read the ledger.
            self._look, self._looked_at = None, loop.time()
            try:
                await self._refresh()
            except LaurelsError as error:
                log.debug("registry_not_read", reason=error.message)

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
