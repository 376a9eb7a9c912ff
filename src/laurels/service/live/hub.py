"""The hub of live updates: watches boards and serves subscriptions from this server's own reads.

Each board with subscribers has a watcher. It reads its views when the feed says that a ranking changed, and every
`LOOK_S` seconds without a hint because hints may be lost, but at most once per tick. A new subscriber also causes a
read, because it may have seen newer data on another server.

Nothing is queued per subscriber: when it is ready, a subscriber takes the frames from its last frame to the current
state. A slow subscriber therefore skips ahead, and one that reads nothing for `SLOW_S` seconds is disconnected.
"""

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

import structlog

from laurels.errors import LaurelsError, Unavailable
from laurels.metrics import LIVE_CUT_OFF, LIVE_FRAMES, LIVE_SUBSCRIPTIONS
from laurels.ports import Feed
from laurels.service.live.reader import Reader
from laurels.service.live.room import Room
from laurels.service.live.subscription import SubscriberAccess, Subscription
from laurels.service.live.view import View, ViewSpec
from laurels.settings import LiveSettings
from laurels.tasks import end_tasks, start_apart

log = structlog.get_logger()

# Changes without a hint are seen within this time.
LOOK_S = 0.5
# Maximum wait of a new subscriber for a read, however long a tick is.
FIRST_LOOK_S = 1.0
SWEEP_S = 1.0
HEARTBEAT_S = 15.0
# Disconnect subscribers that have not read for this long.
SLOW_S = 10.0
# A view without subscribers is kept for subscribers that reconnect.
PAUSED_S = 60.0
PAUSED_ROWS = 100_000


class Usage(NamedTuple):
    """The current usage of live updates on this server."""

    boards: int
    views_rows: int
    subscriptions: int
    keys: int
    paused_views: int


class LiveHub:
    def __init__(self, reader: Reader, feed: Feed, settings: LiveSettings) -> None:
        self.reader = reader
        self._feed = feed
        self.tick_s = settings.live_tick_ms / 1000
        self.room = Room(settings)
        self._subscriptions: set[Subscription] = set()
        self._watches: dict[int, _BoardWatcher] = {}
        # Oldest first, each with the time when its last subscriber left.
        self._paused: OrderedDict[ViewSpec, tuple[float, View]] = OrderedDict()
        self._sweeping: asyncio.Task[None] | None = None
        self._ended: LaurelsError | None = None

    @property
    def usage(self) -> Usage:
        return Usage(
            len(self._watches),
            self.room.rows,
            len(self._subscriptions),
            self.room.per_key,
            len(self._paused),
        )

    async def subscribe(self, audience: SubscriberAccess, specs: Sequence[ViewSpec], after: str | None) -> Subscription:
        """Subscribe to views of a board.

        `after`: the position of an earlier subscription. If this server still has its views, only newer frames are
        sent; otherwise a snapshot. Raises TooMany if a limit is reached, and Unavailable if the server is stopping.
        """
        if self._ended is not None:
            raise self._ended
        # Counted before the first await, so that concurrent calls can't exceed the limits.
        new_rows = sum(spec.size for spec in set(specs) if not self._has(spec))
        self.room.enter(audience, _rows_of(specs), new_rows)
        subscription = Subscription(audience, specs)
        self._subscriptions.add(subscription)
        if self._sweeping is None:
            self._sweeping = start_apart(self._sweep(), "live hub")
        try:
            # Enter all views before reading any, because their rows count from now on.
            watched = [self._watch(spec).enter(spec, subscription) for spec in specs]
            coming = time.monotonic()
            subscription.begin(await asyncio.gather(*(each.first_look(coming) for each in watched)), after)
        except BaseException:
            self.leave(subscription)
            raise
        return subscription

    def leave(self, subscription: Subscription) -> None:
        """Remove a subscription; does nothing if it was removed before."""
        if subscription not in self._subscriptions:
            return
        self._subscriptions.discard(subscription)
        self.room.leave(subscription.audience, _rows_of(subscription.specs))
        for spec in subscription.specs:
            if (watch := self._watches.get(spec.board_id)) is not None:
                watch.leave(spec, subscription)

    def end(self, error: LaurelsError) -> None:
        """End all subscriptions with an error and refuse new ones, because the server is stopping."""
        self._ended = error
        for subscription in self._subscriptions:
            subscription.end(error)

    async def close(self) -> None:
        self.end(Unavailable("stopping", "The server is shutting down."))
        tasks = [task for watch in self._watches.values() for task in watch.tasks]
        tasks += [self._sweeping] if self._sweeping else []
        await end_tasks(tasks)
        await self.reader.close()

    def _watch(self, spec: ViewSpec) -> "_BoardWatcher":
        watch = self._watches.get(spec.board_id)
        if watch is None:
            watch = self._watches[spec.board_id] = _BoardWatcher(self, spec.board_id)
        return watch

    def _has(self, spec: ViewSpec) -> bool:
        watch = self._watches.get(spec.board_id)
        return watch is not None and watch.has(spec)

    # For watchers

    def resume(self, spec: ViewSpec) -> View | None:
        """Return a view if it is paused."""
        paused = self._paused.pop(spec, None)
        return None if paused is None else paused[1]

    def pause(self, spec: ViewSpec, view: View | None) -> None:
        if view is not None:
            self._paused[spec] = (time.monotonic(), view)

    def forget(self, board_id: int) -> None:
        del self._watches[board_id]

    def subscribe_feed(self, topic: str, hear: Callable[[str | None], None]) -> Callable[[], None]:
        return self._feed.subscribe(topic, hear)

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
                    # A fault of one subscription must not stop the heartbeats of the others.
                    log.exception("live_sweep_failed")
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


def _rows_of(specs: Sequence[ViewSpec]) -> int:
    return sum(spec.size for spec in specs)


class _SharedView:
    """A view with its subscriptions. At most one read of it runs at a time."""

    def __init__(self, hub: LiveHub, spec: ViewSpec, maker: SubscriberAccess) -> None:
        self._hub = hub
        self.spec = spec
        self._maker = maker
        hub.room.open_view(maker, spec.size)
        self.view = hub.resume(spec)
        self.subscriptions: set[Subscription] = set()
        self.task: asyncio.Task[None] | None = None
        self._mark: Hashable | None = None
        self._reading = asyncio.Lock()
        # When the last read began, and its error if it failed.
        self._read_at = -math.inf
        self._failure: LaurelsError | None = None

    def close(self) -> None:
        if self.task is not None:
            self.task.cancel()
        self._hub.room.close_view(self._maker, self.spec.size)
        self._hub.pause(self.spec, self.view)

    async def first_look(self, coming: float) -> View:
        """Return the view as it is now.

        A subscriber from another server must not see older data than it saw there. If the read fails with a retryable
        error, returns the last state that was read.
        """
        try:
            await self.refresh(coming)
        except LaurelsError as error:
            # As for the other subscribers, the last state stays until a read succeeds.
            if self._mark is None or not error.retryable:
                raise
        assert self.view is not None, "a read sets the view or raises"
        return self.view

    async def refresh(self, since: float = math.inf) -> None:
        """Read the view again, unless another read of it began after `since`.

        First waits until a tick, or `FIRST_LOOK_S` if that is shorter, has passed since the last read. Raises the
        error of the last read.
        """
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
                self.spec, self._mark if before else None, before.state if before else None
            )
        except LaurelsError as error:
            # All callers that wait for this read get the error.
            self._failure = error
        self._read_at = began
        if read is None:
            return
        self._mark, state = read
        if self.view is None:
            self.view = View(self.spec, state)
        elif self.view.advance(state):
            LIVE_FRAMES.inc()
            for subscription in self.subscriptions:
                subscription.wake()


class _BoardWatcher:
    """The task that refreshes all views of one board while they have subscriptions."""

    def __init__(self, hub: LiveHub, board_id: int) -> None:
        self._hub = hub
        self._board_id = board_id
        self._viewed: dict[ViewSpec, _SharedView] = {}
        self._hint = asyncio.Event()
        # By topic: the function that ends the subscription to the feed.
        self._hearing: dict[str, Callable[[], None]] = {}
        self._task = start_apart(self._run(), f"watch board {board_id}")

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        return [self._task, *(viewed.task for viewed in self._viewed.values() if viewed.task is not None)]

    def has(self, spec: ViewSpec) -> bool:
        return spec in self._viewed

    def enter(self, spec: ViewSpec, subscription: Subscription) -> _SharedView:
        viewed = self._viewed.get(spec)
        if viewed is None:
            viewed = self._viewed[spec] = _SharedView(self._hub, spec, subscription.audience)
            self._hint.set()
        viewed.subscriptions.add(subscription)
        return viewed

    def leave(self, spec: ViewSpec, subscription: Subscription) -> None:
        viewed = self._viewed.get(spec)
        if viewed is None or subscription not in viewed.subscriptions:
            return
        viewed.subscriptions.discard(subscription)
        if not viewed.subscriptions:
            del self._viewed[spec]
            viewed.close()
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
                # A task per view, so that a slow read does not delay the others.
                if viewed.task is None or viewed.task.done():
                    viewed.task = asyncio.create_task(self._look_again(viewed), name="read a view")
                else:
                    viewed.task.add_done_callback(lambda _: self._hint.set())
            await asyncio.sleep(self._hub.tick_s)
            topics = {
                self._hub.reader.topic(self._board_id, viewed.view.state.facts.period.id)
                for viewed in self._viewed.values()
                if viewed.view is not None and not viewed.view.state.facts.period.is_final
            }
            self._hear({topic for topic in topics if topic is not None})

    async def _look_again(self, viewed: _SharedView) -> None:
        try:
            await viewed.refresh()
        except LaurelsError as error:
            log.debug("live_not_read", board=self._board_id, reason=error.message)
            # After a retryable error the last state stays until a read succeeds.
            if not error.retryable:
                for subscription in viewed.subscriptions:
                    subscription.end(error)
        except Exception:
            log.exception("live_not_read", board=self._board_id)

    def _hear(self, topics: set[str]) -> None:
        for topic in topics - set(self._hearing):
            self._hearing[topic] = self._hub.subscribe_feed(topic, lambda _message: self._hint.set())
        for topic in set(self._hearing) - topics:
            self._hearing.pop(topic)()
