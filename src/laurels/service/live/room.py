"""The room for live updates on this server: subscriptions and rows of views, in total and per pod, key and address.

Views are shared: all subscribers of the same rows cost one view. The rows of a view count for its pod, and once more
for each subscriber's address, because an address could otherwise make a view of its own with every socket.
"""

import math
from collections import Counter
from collections.abc import Iterator
from typing import TypeVar

from laurels.core.addresses import limited_address
from laurels.errors import Invalid, TooMany
from laurels.service.live.subscription import SubscriberAccess
from laurels.settings import LiveSettings

# Maximum number of rows in all views together, in the views of one pod, and in those of it that callers without a key
# have made.
VIEW_ROWS = 1_000_000
# Of the subscriptions, one pod may have this share.
POD_SHARE = 0.75
POD_VIEW_ROWS = 500_000
POD_ANONYMOUS_ROWS = 100_000
# The views that callers without a key have made, of all pods together; and those made with one key.
ALL_ANONYMOUS_ROWS = 500_000
KEY_VIEW_ROWS = 250_000
# Maximum number of rows that the subscribers of one address follow; that a caller without a key follows; and in the
# views that the callers without a key of one address have made.
ADDRESS_ROWS = 100_000
ANONYMOUS_ROWS = 200
ADDRESS_ANONYMOUS_ROWS = 5_000


K = TypeVar("K")


class Room:
    def __init__(self, settings: LiveSettings) -> None:
        self._settings = settings
        self._subscriptions = 0
        self._per_pod: Counter[str] = Counter()
        # By pod and key; callers without a key are one of them.
        self._per_key: Counter[tuple[str, str]] = Counter()
        # Of callers that anybody can be.
        self._per_address: Counter[str] = Counter()
        self._address_rows: Counter[str] = Counter()
        # Of the views, by pod.
        self._rows: Counter[str] = Counter()
        self._anonymous_rows: Counter[str] = Counter()
        # By pod and key: the rows of the views that it has made.
        self._key_rows: Counter[tuple[str, str]] = Counter()
        # By address: the rows of the views that its callers without a key have made.
        self._made_rows: Counter[str] = Counter()

    @property
    def rows(self) -> int:
        return self._rows.total()

    @property
    def per_key(self) -> int:
        return self._per_key.total()

    def enter(self, audience: SubscriberAccess, rows: int, new_rows: int) -> None:
        """Count a subscription to this many rows, of which `new_rows` are in new views.

        Raises Invalid if a caller without a key asks for too many rows, and TooMany if there is no room.
        """
        self._need_room(audience, rows, new_rows)
        self._subscriptions += 1
        self._per_pod[audience.pod_id] += 1
        self._per_key[audience.pod_id, audience.key_id] += 1
        if (address := _address_of(audience)) is not None:
            self._per_address[address] += 1
            self._address_rows[address] += rows

    def leave(self, audience: SubscriberAccess, rows: int) -> None:
        self._subscriptions -= 1
        _take(self._per_pod, audience.pod_id, 1)
        _take(self._per_key, (audience.pod_id, audience.key_id), 1)
        if (address := _address_of(audience)) is not None:
            _take(self._per_address, address, 1)
            _take(self._address_rows, address, rows)

    def open_view(self, maker: SubscriberAccess, rows: int) -> None:
        """Count the rows of a view. `maker`: its first subscriber."""
        self._rows[maker.pod_id] += rows
        self._key_rows[maker.pod_id, maker.key_id] += rows
        if maker.is_anonymous:
            self._anonymous_rows[maker.pod_id] += rows
            if (address := _address_of(maker)) is not None:
                self._made_rows[address] += rows

    def close_view(self, maker: SubscriberAccess, rows: int) -> None:
        _take(self._rows, maker.pod_id, rows)
        _take(self._key_rows, (maker.pod_id, maker.key_id), rows)
        if maker.is_anonymous:
            _take(self._anonymous_rows, maker.pod_id, rows)
            if (address := _address_of(maker)) is not None:
                _take(self._made_rows, address, rows)

    def _need_room(self, audience: SubscriberAccess, rows: int, new_rows: int) -> None:
        if audience.is_anonymous and rows > ANONYMOUS_ROWS:
            raise Invalid(
                "out_of_range",
                f"Without a key, a subscription has at most {ANONYMOUS_ROWS} rows: the best, and those around a user.",
                field="limit",
                rule=f"<= {ANONYMOUS_ROWS} rows",
            )
        for is_full, told in self._checks(audience, rows, new_rows):
            if is_full:
                raise _full(told)

    def _checks(self, audience: SubscriberAccess, rows: int, new_rows: int) -> Iterator[tuple[bool, str]]:
        """Yield for each limit whether it is reached, and what to tell the caller then."""
        limits, pod_id, key = self._settings, audience.pod_id, (audience.pod_id, audience.key_id)
        yield (
            self._subscriptions >= limits.max_live or self.rows + new_rows > VIEW_ROWS,
            "This server has reached its limit of subscriptions. Try again later.",
        )
        yield (
            self._per_pod[pod_id] >= math.ceil(limits.max_live * POD_SHARE),
            "This pod has its share of the subscriptions of this server. Try again later.",
        )
        yield (
            self._rows[pod_id] + new_rows > POD_VIEW_ROWS,
            f"The live views of this pod have {POD_VIEW_ROWS:,} rows on this server, the maximum.",
        )
        whose = "without a key, to the boards of one pod," if audience.is_anonymous else "with this key"
        yield (
            self._per_key[key] >= limits.max_live_per_key,
            f"At most {limits.max_live_per_key} subscriptions {whose} are allowed.",
        )
        if audience.is_anonymous:
            yield (
                self._anonymous_rows[pod_id] + new_rows > POD_ANONYMOUS_ROWS,
                f"The live views without a key have {POD_ANONYMOUS_ROWS:,} rows of this pod, the maximum.",
            )
            yield (
                self._anonymous_rows.total() + new_rows > ALL_ANONYMOUS_ROWS,
                f"The live views without a key have {ALL_ANONYMOUS_ROWS:,} rows, the maximum.",
            )
        else:
            yield (
                self._key_rows[key] + new_rows > KEY_VIEW_ROWS,
                f"The live views of this key have {KEY_VIEW_ROWS:,} rows on this server, the maximum.",
            )
        address = _address_of(audience)
        if address is not None:
            yield (
                self._per_address[address] >= limits.max_live_per_address
                or self._address_rows[address] + rows > ADDRESS_ROWS,
                f"At most {limits.max_live_per_address} subscriptions of an address are allowed.",
            )
            yield (
                audience.is_anonymous and self._made_rows[address] + new_rows > ADDRESS_ANONYMOUS_ROWS,
                f"Without a key, the live views of an address have at most {ADDRESS_ANONYMOUS_ROWS:,} rows.",
            )


def _address_of(audience: SubscriberAccess) -> str | None:
    return limited_address(audience.address) if audience.is_from_outside else None


def _take(counter: Counter[K], name: K, count: int) -> None:
    counter[name] -= count
    if not counter[name]:
        del counter[name]


def _full(message: str) -> TooMany:
    return TooMany("too_many_subscriptions", message)
