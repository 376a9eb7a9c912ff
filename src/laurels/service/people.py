"""Profiles: what a pod knows of its users, and the names that stand beside ranks.

Names come from a bounded cache; those that it lacks are read in one query, however long the page is. The feed tells
every server whose profile was changed. As that may be lost with a server that dies, nothing is kept for long.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from laurels.core.limits import RANKS_USERS
from laurels.core.people import Hidden, Profile, ProfileChange
from laurels.errors import Invalid, NotFound, Unavailable
from laurels.metrics import NAME_QUERIES
from laurels.ports import Clock, Feed, Ledger
from laurels.service.follower import Follower

TOPIC = "people"
KEPT_NAMES = 100_000
KEPT_S = 30
WAIT_S = 1.0
SILENCE_S = 5.0

T = TypeVar("T")


class Named(Struct, frozen=True):
    """What stands beside a rank."""

    display_name: str | None = None
    avatar_url: str | None = None


NOBODY = Named()


class _Changed(Struct, array_like=True):
    pod_id: str
    user_ids: list[str]


class People:
    def __init__(self, ledger: Ledger, follower: Follower, feed: Feed, clock: Clock) -> None:
        self._ledger = ledger
        self._follower = follower
        self._feed = feed
        self._clock = clock
        self._names: OrderedDict[tuple[str, str], Named] = OrderedDict()
        # Whether a pod has any names at all: most reads need not ask then.
        self._has_names: dict[str, bool] = {}
        self._changes = 0
        self._silent_until = 0.0
        self._began = time.monotonic()
        self._unsubscribe: Callable[[], None] = lambda: None

    @property
    def revision(self) -> int:
        """Another after each change of a name, and now and then: for whoever keeps pages."""
        if time.monotonic() > self._began + KEPT_S:
            self._hear(None)
        return self._changes

    @property
    def is_silent(self) -> bool:
        """The ledger did not answer a moment ago: names may be missing."""
        return time.monotonic() < self._silent_until

    def start(self) -> None:
        self._unsubscribe = self._feed.subscribe(TOPIC, self._hear)

    def close(self) -> None:
        self._unsubscribe()
        self._unsubscribe = lambda: None

    async def names(self, pod_id: str, user_ids: Sequence[str]) -> dict[str, Named]:
        """The names of some users; one query at most. Who has none is not in it.

        While the ledger does not answer ranks are shown all the same, with the names that are known.
        """
        revision = self.revision
        if not user_ids or not await self._in_time(self._any_names(pod_id, revision), True):
            return {}
        found: dict[str, Named] = {}
        missing: list[str] = []
        for user_id in user_ids:
            held = self._names.get((pod_id, user_id))
            if held is None:
                missing.append(user_id)
            else:
                found[user_id] = held
        if missing:
            read = await self._in_time(self._read_names(pod_id, missing), {})
            found |= read
            if revision == self._changes:
                self._keep(pod_id, read)
        return {user_id: named for user_id, named in found.items() if named is not NOBODY}

    async def _read_names(self, pod_id: str, user_ids: Sequence[str]) -> dict[str, Named]:
        NAME_QUERIES.inc()
        profiles = await self._ledger.people.profiles(pod_id, user_ids)
        read = {profile.user_id: Named(profile.display_name, profile.avatar_url) for profile in profiles}
        return {user_id: read.get(user_id, NOBODY) for user_id in user_ids}

    async def _in_time(self, question: Coroutine[Any, Any, T], otherwise: T) -> T:
        """Nobody waits long for a name, and while the ledger does not answer nobody asks."""
        if time.monotonic() < self._silent_until:
            question.close()
            return otherwise
        asked = asyncio.create_task(question, name="read names")
        done, _ = await asyncio.wait({asked}, timeout=WAIT_S)
        if done and asked.exception() is None:
            return asked.result()
        self._silent_until = time.monotonic() + SILENCE_S
        # It ends by itself, in the ledger's own time.
        asked.add_done_callback(lambda task: task.exception())
        if done and not isinstance(asked.exception(), Unavailable):
            raise asked.exception() or AssertionError
        return otherwise

    async def search(self, pod_id: str, text: str) -> list[str]:
        """Who may be meant: the user with that id, and those whose name begins so, a bounded number of them."""
        return [text, *await self._ledger.people.users_named(pod_id, text, RANKS_USERS)]

    async def profile(self, pod_id: str, user_id: str) -> Profile:
        found = await self._ledger.people.profiles(pod_id, [user_id])
        if not found:
            raise NotFound("user_not_found", f"There is no profile of user {user_id!r} in this pod.", field="userId")
        return found[0]

    async def hides(self, pod_id: str, user_id: str) -> dict[int, Hidden]:
        """Where a user is hidden; 0: on all boards."""
        return await self._ledger.people.hides(pod_id, user_id)

    async def page(self, pod_id: str, after: str, limit: int) -> list[tuple[Profile, dict[int, Hidden]]]:
        """Everybody of whom a pod knows something, by user id, and where they are hidden."""
        return await self._ledger.people.page(pod_id, after, limit)

    async def change(self, pod_id: str, changes: Sequence[ProfileChange]) -> None:
        """Change or make profiles, and move their users in all rankings that go on. All or nothing."""
        self._follower.require_ready()
        if len({change.user_id for change in changes}) < len(changes):
            raise Invalid("duplicate_user", "A user stands there twice.", field="users", rule="each user once")
        as_of = self._ledger.as_of
        rows = await self._ledger.people.change_profiles(pod_id, changes, self._clock.now_us())
        await self._follower.apply(rows, as_of)
        await self.tell(pod_id, [change.user_id for change in changes])

    async def tell(self, pod_id: str, user_ids: Sequence[str]) -> None:
        """These profiles are others now."""
        message = msgspec.json.encode(_Changed(pod_id, list(user_ids))).decode()
        self._hear(message)
        await self._feed.publish(TOPIC, message)

    async def _any_names(self, pod_id: str, revision: int) -> bool:
        known = self._has_names.get(pod_id)
        if known is None:
            known = await self._ledger.people.has_names(pod_id)
            if revision == self._changes:
                self._has_names[pod_id] = known
        return known

    def _keep(self, pod_id: str, names: dict[str, Named]) -> None:
        for user_id, named in names.items():
            self._names[pod_id, user_id] = named
        while len(self._names) > KEPT_NAMES:
            self._names.popitem(last=False)

    def _hear(self, message: str | None) -> None:
        self._changes += 1
        if message is None:
            # Something may have been missed.
            self._began = time.monotonic()
            self._names.clear()
            self._has_names.clear()
            return
        changed = msgspec.json.decode(message, type=_Changed)
        self._has_names.pop(changed.pod_id, None)
        for user_id in changed.user_ids:
            self._names.pop((changed.pod_id, user_id), None)
