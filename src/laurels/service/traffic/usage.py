"""How much of its quotas each pod uses, and which scores are refused because a quota is used up.

The servers of a ledger add up the events of a day in the ledger once per second, so together they can accept a second's
worth of events too many. The users of a pod are counted in the index, and only when the events since the last count
could have used up the quota. Then they are counted at once, so a pod can get as many users too many as it adds until
that is done, at most a twentieth of the server's time being spent on it.
"""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Sequence

import structlog
from msgspec.structs import replace

from laurels.core.board import Board, Status
from laurels.core.instants import SECOND_US
from laurels.core.limits import DAY_US
from laurels.core.quotas import Quotas
from laurels.core.windows import Window, shortest_reset_s
from laurels.errors import LaurelsError, OverQuota
from laurels.ports import Clock, Index, Ledger
from laurels.service.boards.access import Access
from laurels.service.boards.boards import Boards
from laurels.tasks import end_tasks

log = structlog.get_logger()

STORE_S = 1.0
# The shortest time between two counts of a pod's users, also as a multiple of the time that the last one took.
COUNT_EVERY_S = 0.1
COUNT_EVERY_TIMES = 20
CHECKED_PODS = 20


class Usage:
    def __init__(self, ledger: Ledger, index: Index, access: Access, boards: Boards, clock: Clock) -> None:
        self._ledger = ledger
        self._index = index
        self._access = access
        self._boards = boards
        self._clock = clock
        self._day = 0
        # By pod: the events of the day on all servers, and those on this server that are not stored yet.
        self._stored: dict[str, int] = {}
        self._unstored: Counter[str] = Counter()
        # By pod: the users when they were last counted, the events of the day at that time, and when to count again.
        self._users: dict[str, tuple[int, int, float]] = {}
        self._wake = asyncio.Event()
        # Pods that may not submit more events today, and those that may not add users.
        self._spent: set[str] = set()
        self._full: set[str] = set()
        # Pods whose users may have become too many.
        self._to_check: set[str] = set()
        self._storing: asyncio.Task[None] | None = None

    async def open(self) -> None:
        await self._store()

    def start(self) -> None:
        self._storing = asyncio.create_task(self._store_regularly(), name="store usage")

    async def close(self) -> None:
        if self._storing is not None:
            await end_tasks([self._storing])
            await self._try_to_store()

    def note(self, accepted: Counter[str]) -> None:
        """Count accepted events, by pod."""
        for pod_id, count in accepted.items():
            self._unstored[pod_id] += count
            quotas = self._access.quotas_of(pod_id)
            if quotas.events_per_day and self._events_of(pod_id) >= quotas.events_per_day:
                self._spent.add(pod_id)
            if quotas.users and pod_id not in self._to_check and self._may_be_full(pod_id, quotas.users):
                self._to_check.add(pod_id)
                self._wake.set()

    def refusal(self, pod_id: str) -> OverQuota | None:
        """Return the error of a new event of a pod that has used up its events of the day; otherwise None."""
        if pod_id not in self._spent:
            return None
        now = self._clock.now_us()
        if now // DAY_US != self._day:
            return None
        limit = self._access.quotas_of(pod_id).events_per_day
        error = OverQuota(
            "quota_exceeded", f"The pod has used up its quota of {limit:,} scores per day. It renews at midnight (UTC)."
        )
        error.retry_after_s = max(1, ((self._day + 1) * DAY_US - now) // SECOND_US)
        return error

    def is_full(self, pod_id: str) -> bool:
        """Return True if the boards of a pod may not get more users."""
        return pod_id in self._full

    async def strangers(self, board: Board, user_ids: Sequence[str]) -> dict[str, OverQuota]:
        """Return the error of each of these users who has no score on a board yet."""
        known: set[str] = set()
        for period in board.open_periods:
            missing = [user_id for user_id in dict.fromkeys(user_ids) if user_id not in known]
            rows = await self._ledger.rows_of_users(period.id, missing) if missing else ()
            known |= {row.user_id for row in rows if row.standing is not None}
        limit = self._access.quotas_of(board.pod_id).users
        error = OverQuota("quota_exceeded", f"The pod has used up its quota of {limit:,} users.")
        return {user_id: error for user_id in user_ids if user_id not in known}

    async def of(self, pod_id: str) -> Quotas:
        """Return how much a pod uses of each quota. Costs one read of the index per board."""
        boards = self._boards_of(pod_id)
        windows = [window for board in boards for window in board.windows if window.line is not None]
        # In a thread, because thousands of cron expressions take seconds.
        shortest = await asyncio.to_thread(_shortest_reset_s, set(windows))
        return Quotas(
            boards=len(boards),
            windows=len(windows),
            min_reset_seconds=shortest,
            users=await self._count_users(boards),
            events_per_day=self._events_of(pod_id),
            parts=sum(board.index_parts for board in boards),
        )

    def _boards_of(self, pod_id: str) -> list[Board]:
        now = self._clock.now_us()
        return [
            board
            for board in self._boards.all()
            if board.pod_id == pod_id and board.status_at(now) is not Status.ARCHIVED
        ]

    def _events_of(self, pod_id: str) -> int:
        return self._stored.get(pod_id, 0) + self._unstored[pod_id]

    async def _count_users(self, boards: Sequence[Board]) -> int:
        """Return the users of boards: of each board, those of its largest current period."""
        users = 0
        now = self._clock.now_us()
        for board in boards:
            # Without its capacity, because all users are in the index.
            rankings = [
                replace(board.ranking(period.id), capacity=None)
                for period in board.open_periods
                if period.contains(now)
            ]
            users += max([await self._index.count(ranking) for ranking in rankings], default=0)
        return users

    async def _store_regularly(self) -> None:
        stored_at = time.monotonic()
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, stored_at + STORE_S - time.monotonic())):
                    await self._wake.wait()
            self._wake.clear()
            if time.monotonic() >= stored_at + STORE_S:
                stored_at = time.monotonic()
                await self._try_to_store()
            else:
                await self._try_to_count()
                # Other counts wait for the next round, so that counting does not fill the event loop.
                await asyncio.sleep(COUNT_EVERY_S)

    async def _try_to_count(self) -> None:
        try:
            await self._find_full(self._take_some())
        except LaurelsError as error:
            log.debug("users_not_counted", reason=error.message)
        except Exception:
            log.exception("users_not_counted")

    async def _try_to_store(self) -> None:
        try:
            if (
                self._unstored
                or self._spent
                or self._full
                or self._to_check
                or self._clock.now_us() // DAY_US != self._day
            ):
                await self._store()
        except LaurelsError as error:
            log.debug("usage_not_stored", reason=error.message)
        except Exception:
            log.exception("usage_not_stored")

    async def _store(self) -> None:
        day = self._clock.now_us() // DAY_US
        if day != self._day:
            # What was accepted just before midnight counts for the new day.
            self._day, self._stored, self._users = day, {}, {}
            self._spent.clear()
        adding, self._unstored = self._unstored, Counter()
        try:
            self._stored = await self._ledger.add_usage(day, [(pod, count) for pod, count in adding.items() if count])
        except BaseException:
            self._unstored += adding
            raise
        self._spent = {
            pod_id
            for pod_id, events in self._stored.items()
            if (limit := self._access.quotas_of(pod_id).events_per_day) and events >= limit
        }
        self._to_check |= set(adding) | self._full
        await self._find_full(self._take_some())

    def _take_some(self) -> list[str]:
        """Return a few of the pods to check, because counting takes time."""
        return [self._to_check.pop() for _ in range(min(CHECKED_PODS, len(self._to_check)))]

    def _may_be_full(self, pod_id: str, limit: int) -> bool:
        """Return True if each event since the last count could be that of a new user, and that would be too many."""
        users, then, _ = self._users.get(pod_id, (limit, 0, 0.0))
        return users + self._events_of(pod_id) - then >= limit

    async def _find_full(self, pods: Sequence[str]) -> None:
        """Count the users of these pods where they may have used up the quota."""
        for pod_id in pods:
            await asyncio.sleep(0)
            limit = self._access.quotas_of(pod_id).users
            if not limit:
                self._full.discard(pod_id)
                continue
            if not self._may_be_full(pod_id, limit):
                self._full.discard(pod_id)
                continue
            began = time.monotonic()
            if began < self._users.get(pod_id, (0, 0, 0.0))[2]:
                # Later.
                self._to_check.add(pod_id)
                continue
            events = self._events_of(pod_id)
            users = await self._count_users(self._boards_of(pod_id))
            ended = time.monotonic()
            pause_s = max(COUNT_EVERY_S, COUNT_EVERY_TIMES * (ended - began))
            self._users[pod_id] = (users, events, ended + pause_s)
            (self._full.add if users >= limit else self._full.discard)(pod_id)


def _shortest_reset_s(windows: set[Window]) -> int | None:
    return min((found for window in windows if (found := shortest_reset_s(window))), default=None)
