"""Shows boards as they change to all who look, from this server's own reads.

Each board that is looked at has a watch. It looks when the feed says that a ranking changed, and now and then without
that, for hints may be lost; and not again before the next tick. It also looks when somebody comes, who may have seen
more on another server. Nothing is queued for anybody: a subscriber takes what leads from the frame it had to the
present one, when it can take it. So one who is slow skips ahead, and one who takes nothing at all is cut off.
"""

import asyncio
import math
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Sequence

import structlog

from laurels.errors import LaurelsError, TooMany, Unavailable
from laurels.metrics import LIVE_CUT_OFF, LIVE_FRAMES, LIVE_SUBSCRIPTIONS
from laurels.ports import Feed
from laurels.service.live.reader import Reader
from laurels.service.live.subscription import Audience, Subscription
from laurels.service.live.view import Look, View
from laurels.tasks import end_tasks

log = structlog.get_logger()

# What nobody told of is seen within this time.
LOOK_S = 0.5
# However long a tick is, who comes does not wait longer.
FIRST_LOOK_S = 1.0
SWEEP_S = 1.0
HEARTBEAT_S = 15.0
# One who takes nothing for so long is cut off.
SLOW_S = 10.0
# A view that nobody looks at is kept for those who come back.
PAUSED_S = 60.0
PAUSED_ROWS = 100_000
# How many rows all views together may show.
VIEW_ROWS = 1_000_000


class LiveHub:
    def __init__(
        self,
        reader: Reader,
        feed: Feed,
        *,
        tick_ms: int,
        max_subscriptions: int,
        max_per_key: int,
    ) -> None:
        self.reader = reader
        self._feed = feed
        self.tick_s = tick_ms / 1000
        self._max = max_subscriptions
        self._max_per_key = max_per_key
        self._subscriptions: set[Subscription] = set()
        self._per_key: Counter[str] = Counter()
        self._watches: dict[int, _Watch] = {}
        self._rows = 0
        # Oldest first, each with the time when its last subscriber left.
        self._paused: OrderedDict[Look, tuple[float, View]] = OrderedDict()
        self._sweeping: asyncio.Task[None] | None = None
        self._ended: LaurelsError | None = None

    async def subscribe(self, audience: Audience, looks: Sequence[Look], after: str | None) -> Subscription:
        """Look at one board in some ways.

        `after`: the position of a subscription before, here or elsewhere; what was seen then is not sent again.
        """
        if self._ended is not None:
            raise self._ended
        self._need_room(audience, looks)
        # Counted before anything is awaited, so that many at once don't slip through.
        subscription = Subscription(audience, looks)
        self._subscriptions.add(subscription)
        self._per_key[audience.key_id] += 1
        if self._sweeping is None:
            self._sweeping = asyncio.create_task(self._sweep(), name="live hub")
        try:
            # All are entered before any is read: they count from now on.
            watched = [self._watch(look).enter(look, subscription) for look in looks]
            coming = time.monotonic()
            subscription.begin(await asyncio.gather(*(each.first_look(coming) for each in watched)), after)
        except BaseException:
            self.leave(subscription)
            raise
        return subscription

    def leave(self, subscription: Subscription) -> None:
        """Idempotent."""
        if subscription not in self._subscriptions:
            return
        self._subscriptions.discard(subscription)
        self._per_key[subscription.audience.key_id] -= 1
        if not self._per_key[subscription.audience.key_id]:
            del self._per_key[subscription.audience.key_id]
        for look in subscription.looks:
            if (watch := self._watches.get(look.board_id)) is not None:
                watch.leave(look, subscription)

    def end(self, error: LaurelsError) -> None:
        """The server stops: everybody is told, and nobody new is taken."""
        self._ended = error
        for subscription in self._subscriptions:
            subscription.end(error)

    async def close(self) -> None:
        self.end(Unavailable("stopping", "The server is shutting down."))
        tasks = [task for watch in self._watches.values() for task in watch.tasks]
        tasks += [self._sweeping] if self._sweeping else []
        await end_tasks(tasks)

    def _watch(self, look: Look) -> "_Watch":
        watch = self._watches.get(look.board_id)
        if watch is None:
            watch = self._watches[look.board_id] = _Watch(self, look.board_id)
        return watch

    def _need_room(self, audience: Audience, looks: Sequence[Look]) -> None:
        watches = [self._watches.get(look.board_id) for look in looks]
        new = {look for look, watch in zip(looks, watches, strict=True) if watch is None or not watch.has(look)}
        new_rows = sum(look.size for look in new)
        if len(self._subscriptions) >= self._max or self._rows + new_rows > VIEW_ROWS:
            raise TooMany("too_many_subscriptions", "This server has as many subscriptions as it takes.")
        if self._per_key[audience.key_id] >= self._max_per_key:
            whose = "without a key" if not audience.key_id else "with this key"
            raise TooMany("too_many_subscriptions", f"{self._max_per_key} subscriptions {whose} are as many as may be.")

    # For watches

    def resume(self, look: Look) -> View | None:
        """A view that somebody looked at a moment ago."""
        self._rows += look.size
        paused = self._paused.pop(look, None)
        return None if paused is None else paused[1]

    def pause(self, look: Look, view: View | None) -> None:
        self._rows -= look.size
        if view is not None:
            self._paused[look] = (time.monotonic(), view)

    def forget(self, board_id: int) -> None:
        del self._watches[board_id]

    def subscribe_feed(self, period_id: int, hear: Callable[[str | None], None]) -> Callable[[], None]:
        return self._feed.subscribe(f"ranking/{period_id}", hear)

    async def _sweep(self) -> None:
        beat_at = time.monotonic() + HEARTBEAT_S
        while True:
            await asyncio.sleep(SWEEP_S)
            now = time.monotonic()
            beats = now >= beat_at
            if beats:
                beat_at = now + HEARTBEAT_S
            LIVE_SUBSCRIPTIONS.set(len(self._subscriptions))
            for number, subscription in enumerate(list(self._subscriptions)):
                try:
                    self._look_after(subscription, now, beats=beats)
                except Exception:
                    # One must not take the heartbeat from all others.
                    log.exception("live_not_looked_after")
                if number % 1000 == 999:
                    await asyncio.sleep(0)
            self._prune(now)

    def _look_after(self, subscription: Subscription, now: float, *, beats: bool) -> None:
        since = subscription.sending_since
        if since is not None and now - since > SLOW_S:
            LIVE_CUT_OFF.inc()
            subscription.audience.cut()
            return
        try:
            subscription.audience.check()
        except LaurelsError as error:
            subscription.end(error)
        if beats:
            subscription.wants_heartbeat = True
            subscription.wake()

    def _prune(self, now: float) -> None:
        rows = sum(view.size for _, view in self._paused.values())
        while self._paused:
            since, view = next(iter(self._paused.values()))
            if now - since < PAUSED_S and rows <= PAUSED_ROWS:
                return
            rows -= view.size
            self._paused.popitem(last=False)


class _Viewed:
    """A view with those who look at it. One read of it at a time."""

    def __init__(self, hub: LiveHub, look: Look) -> None:
        self._hub = hub
        self.look = look
        self.view = hub.resume(look)
        self.subscriptions: set[Subscription] = set()
        self.task: asyncio.Task[None] | None = None
        self._mark: Hashable | None = None
        self._reading = asyncio.Lock()
        # When the last read began, and why it failed, if it did.
        self._read_at = -math.inf
        self._failure: LaurelsError | None = None

    async def first_look(self, coming: float) -> View:
        """As it is now: who comes from another server must not see less than they saw there."""
        try:
            await self.refresh(coming)
        except LaurelsError as error:
            # As for those who look at it already: what was shown stays until it can be read again.
            if self._mark is None or not error.retryable:
                raise
        assert self.view is not None, "a read gives a view or raises"
        return self.view

    async def refresh(self, since: float = math.inf) -> None:
        """Read it again, unless somebody else began to do so after `since`; in no case twice within a tick."""
        async with self._reading:
            if self._read_at < since:
                await asyncio.sleep(self._read_at + min(self._hub.tick_s, FIRST_LOOK_S) - time.monotonic())
                await self._read()
            if self._failure is not None:
                raise self._failure.with_traceback(None)

    async def _read(self) -> None:
        began = time.monotonic()
        before = self.view
        read, self._failure = None, None
        try:
            read = await self._hub.reader.read(
                self.look, self._mark if before else None, before.state if before else None
            )
        except LaurelsError as error:
            # So it is for all who wait for it.
            self._failure = error
        self._read_at = began
        if read is None:
            return
        self._mark, state = read
        if self.view is None:
            self.view = View(self.look, state)
        elif self.view.advance(state):
            LIVE_FRAMES.inc()
            for subscription in self.subscriptions:
                subscription.wake()


class _Watch:
    """Looks after all views of one board, for as long as somebody looks at one."""

    def __init__(self, hub: LiveHub, board_id: int) -> None:
        self._hub = hub
        self._board_id = board_id
        self._viewed: dict[Look, _Viewed] = {}
        self._hint = asyncio.Event()
        # By period: what ends hearing of it.
        self._hearing: dict[int, Callable[[], None]] = {}
        self._task = asyncio.create_task(self._run(), name=f"watch board {board_id}")

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        return [self._task, *(viewed.task for viewed in self._viewed.values() if viewed.task is not None)]

    def has(self, look: Look) -> bool:
        return look in self._viewed

    def enter(self, look: Look, subscription: Subscription) -> _Viewed:
        viewed = self._viewed.get(look)
        if viewed is None:
            viewed = self._viewed[look] = _Viewed(self._hub, look)
            self._hint.set()
        viewed.subscriptions.add(subscription)
        return viewed

    def leave(self, look: Look, subscription: Subscription) -> None:
        viewed = self._viewed.get(look)
        if viewed is None or subscription not in viewed.subscriptions:
            return
        viewed.subscriptions.discard(subscription)
        if not viewed.subscriptions:
            del self._viewed[look]
            if viewed.task is not None:
                viewed.task.cancel()
            self._hub.pause(look, viewed.view)
        if not self._viewed:
            self._task.cancel()
            self._hear(set())
            self._hub.forget(self._board_id)

    async def _run(self) -> None:
        while self._viewed:
            try:
                async with asyncio.timeout(LOOK_S):
                    await self._hint.wait()
            except TimeoutError:
                pass
            self._hint.clear()
            for viewed in self._viewed.values():
                # One that takes its time holds up nobody else.
                if viewed.task is None or viewed.task.done():
                    viewed.task = asyncio.create_task(self._look_again(viewed), name="look at a board")
                else:
                    viewed.task.add_done_callback(lambda _: self._hint.set())
            await asyncio.sleep(self._hub.tick_s)
            self._hear(
                {
                    viewed.view.state.facts.period.id
                    for viewed in self._viewed.values()
                    if viewed.view is not None and not viewed.view.state.facts.period.is_final
                }
            )

    async def _look_again(self, viewed: _Viewed) -> None:
        try:
            await viewed.refresh()
        except LaurelsError as error:
            log.debug("live_not_read", board=self._board_id, reason=error.message)
            # Where trying again is of use, what was shown stays until then.
            if not error.retryable:
                for subscription in viewed.subscriptions:
                    subscription.end(error)
        except Exception:
            log.exception("live_not_read", board=self._board_id)

    def _hear(self, period_ids: set[int]) -> None:
        for period_id in period_ids - set(self._hearing):
            self._hearing[period_id] = self._hub.subscribe_feed(period_id, lambda _message: self._hint.set())
        for period_id in set(self._hearing) - period_ids:
            self._hearing.pop(period_id)()
