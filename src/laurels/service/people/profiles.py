"""User profiles, and the names shown next to ranks.

Names come from a bounded cache; one query reads all names of a page that it lacks. The feed tells all servers which
profiles changed. Because a hint is lost if the server dies first, no name is cached for longer than `KEPT_S` seconds.
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
from laurels.service.index.updater import IndexUpdater

TOPIC = "people"
KEPT_NAMES = 100_000
KEPT_S = 30
WAIT_S = 1.0
SILENCE_S = 5.0

T = TypeVar("T")


class PublicProfile(Struct, frozen=True):
    """The part of a profile that is shown next to a rank."""

    display_name: str | None = None
    avatar_url: str | None = None


NO_PROFILE = PublicProfile()


class _Changed(Struct, array_like=True):
    pod_id: str
    user_ids: list[str]


class Profiles:
    def __init__(self, ledger: Ledger, updater: IndexUpdater, feed: Feed, clock: Clock) -> None:
        self._ledger = ledger
        self._updater = updater
        self._feed = feed
        self._clock = clock
        self._names: OrderedDict[tuple[str, str], PublicProfile] = OrderedDict()
        # By pod: whether it has any names. If not, reads skip the query.
        self._has_names: dict[str, bool] = {}
        self._changes = 0
        self._silent_until = 0.0
        self._began = time.monotonic()
        self._unsubscribe: Callable[[], None] = lambda: None

    @property
    def revision(self) -> int:
        """Return a number that changes with every profile change and at least every `KEPT_S` seconds.

        Caches of pages with names compare it.
        """
        if time.monotonic() > self._began + KEPT_S:
            self.on_hint(None)
        return self._changes

    @property
    def is_silent(self) -> bool:
        """Return True if the ledger failed to answer in the last `SILENCE_S` seconds, so names may be missing."""
        return time.monotonic() < self._silent_until

    def start(self) -> None:
        self._unsubscribe = self._feed.subscribe(TOPIC, self.on_hint)

    def close(self) -> None:
        self._unsubscribe()
        self._unsubscribe = lambda: None

    async def names(self, pod_id: str, user_ids: Sequence[str]) -> dict[str, PublicProfile]:
        """Return the names of some users; users without a name are omitted.

        One query reads all names that are not cached. While the ledger does not answer, returns only cached names, so
        that ranks can still be shown.
        """
        cached = self.names_now(pod_id, user_ids)
        if cached is not None:
            return cached
        revision = self.revision
        has_names = self._has_names.get(pod_id)
        if has_names is None and user_ids:
            has_names = await self._in_time(self._any_names(pod_id, revision), True)
        if not user_ids or not has_names:
            return {}
        found: dict[str, PublicProfile] = {}
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
        return {user_id: named for user_id, named in found.items() if named is not NO_PROFILE}

    def names_now(self, pod_id: str, user_ids: Sequence[str]) -> dict[str, PublicProfile] | None:
        """Return the names of some users if all of them are cached, otherwise None."""
        if time.monotonic() > self._began + KEPT_S:
            self.on_hint(None)
        has_names = self._has_names.get(pod_id)
        if has_names is None:
            return None
        found: dict[str, PublicProfile] = {}
        for user_id in user_ids if has_names else ():
            held = self._names.get((pod_id, user_id))
            if held is None:
                return None
            if held is not NO_PROFILE:
                found[user_id] = held
        return found

    async def _read_names(self, pod_id: str, user_ids: Sequence[str]) -> dict[str, PublicProfile]:
        NAME_QUERIES.inc()
        profiles = await self._ledger.profiles.profiles(pod_id, user_ids)
        read = {profile.user_id: PublicProfile(profile.display_name, profile.avatar_url) for profile in profiles}
        return {user_id: read.get(user_id, NO_PROFILE) for user_id in user_ids}

    async def _in_time(self, question: Coroutine[Any, Any, T], otherwise: T) -> T:
        """Return the result of `question`, or `otherwise` if the ledger does not answer within `WAIT_S` seconds.

        After a failure it returns `otherwise` at once for `SILENCE_S` seconds, because ranks must not wait for names.
        Raises errors other than Unavailable.
        """
        if time.monotonic() < self._silent_until:
            question.close()
            return otherwise
        asked = asyncio.create_task(question, name="read names")
        done, _ = await asyncio.wait({asked}, timeout=WAIT_S)
        if done and asked.exception() is None:
            return asked.result()
        self._silent_until = time.monotonic() + SILENCE_S
        # The task ends when the ledger times out; reading its exception avoids a warning.
        asked.add_done_callback(lambda task: task.exception())
        if done and not isinstance(asked.exception(), Unavailable):
            raise asked.exception() or AssertionError
        return otherwise

    async def search(self, pod_id: str, text: str) -> list[str]:
        """Return the text itself as a user id, and at most `RANKS_USERS` users whose name starts with it."""
        return [text, *await self._ledger.profiles.users_named(pod_id, text, RANKS_USERS)]

    async def profiles(self, pod_id: str, user_ids: Sequence[str]) -> list[Profile]:
        """Return the profiles of those users who have one."""
        return await self._ledger.profiles.profiles(pod_id, user_ids) if user_ids else []

    async def profile(self, pod_id: str, user_id: str) -> Profile:
        found = await self._ledger.profiles.profiles(pod_id, [user_id])
        if not found:
            raise NotFound("user_not_found", f"User {user_id!r} has no profile in this pod.", field="userId")
        return found[0]

    async def profile_and_hides(self, pod_id: str, user_id: str) -> tuple[Profile, dict[int, Hidden]]:
        """Return a user's profile, empty if a hidden user has none, and how the user is hidden, by board id."""
        hides = await self.hides(pod_id, user_id)
        try:
            return await self.profile(pod_id, user_id), hides
        except NotFound:
            if not hides:
                raise
            return Profile(user_id), hides

    async def hides(self, pod_id: str, user_id: str) -> dict[int, Hidden]:
        """Return how a user is hidden, by board id; 0 means all boards."""
        return await self._ledger.profiles.hides(pod_id, user_id)

    async def page(self, pod_id: str, after: str, limit: int) -> list[tuple[Profile, dict[int, Hidden]]]:
        """Return a page of the users that a pod has data about, by user id, and how each is hidden, by board id."""
        return await self._ledger.profiles.page(pod_id, after, limit)

    async def change(self, pod_id: str, changes: Sequence[ProfileChange]) -> None:
        """Create or change profiles, and move their users between the segments of open periods.

        All or nothing. Raises Invalid if a user is listed twice.
        """
        self._updater.require_ready()
        if len({change.user_id for change in changes}) < len(changes):
            raise Invalid(
                "duplicate_user", "A user is listed twice. List each user once.", field="users", rule="each user once"
            )
        as_of = self._ledger.as_of
        rows = await self._ledger.profiles.change_profiles(pod_id, changes, self._clock.now_us())
        await self._updater.apply(rows, as_of)
        await self.tell(pod_id, [change.user_id for change in changes])

    async def tell(self, pod_id: str, user_ids: Sequence[str]) -> None:
        """Tell all servers that profiles changed."""
        message = msgspec.json.encode(_Changed(pod_id, list(user_ids))).decode()
        self.on_hint(message)
        await self._feed.publish(TOPIC, message)

    async def _any_names(self, pod_id: str, revision: int) -> bool:
        known = await self._ledger.profiles.has_names(pod_id)
        if revision == self._changes:
            self._has_names[pod_id] = known
        return known

    def _keep(self, pod_id: str, names: dict[str, PublicProfile]) -> None:
        for user_id, named in names.items():
            self._names[pod_id, user_id] = named
        while len(self._names) > KEPT_NAMES:
            self._names.popitem(last=False)

    @property
    def cached_names(self) -> int:
        return len(self._names)

    def on_hint(self, message: str | None) -> None:
        self._changes += 1
        if message is None:
            # Hints may have been lost, or the cache is too old.
            self._began = time.monotonic()
            self._names.clear()
            self._has_names.clear()
            return
        changed = msgspec.json.decode(message, type=_Changed)
        self._has_names.pop(changed.pod_id, None)
        for user_id in changed.user_ids:
            self._names.pop((changed.pod_id, user_id), None)
