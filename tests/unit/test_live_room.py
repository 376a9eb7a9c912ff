"""The room for live updates: subscriptions and rows, in total and per pod, key and address."""

import pytest

from laurels.errors import Invalid, TooMany
from laurels.service.live import room as module
from laurels.service.live.room import Room
from laurels.service.live.subscription import SubscriberAccess
from laurels.settings import LiveSettings

HOME, OFFICE = "203.0.113.5", "203.0.113.6"


def caller(key_id: str = "", pod_id: str = "pod", address: str = HOME) -> SubscriberAccess:
    """Return a caller that anybody can be, without a key by default."""
    return SubscriberAccess(
        key_id, pod_id, lambda: None, lambda: None, address=address, is_from_outside=key_id != "server"
    )


def test_subscriptions_of_an_address_are_limited_but_not_those_of_servers() -> None:
    room = Room(LiveSettings(max_live_per_address=2))
    for audience in (caller(), caller("client")):
        room.enter(audience, 10, 0)
    for audience in (caller(), caller("client"), caller("client", "other")):
        with pytest.raises(TooMany, match="of an address"):
            room.enter(audience, 10, 0)
    room.enter(caller(address=OFFICE), 10, 0)
    for _ in range(5):
        room.enter(caller("server"), 10, 0)
        # A proxy on this machine has no limit of its own.
        room.enter(caller(address="127.0.0.1"), 10, 0)
    room.leave(caller(), 10)
    room.enter(caller(), 10, 0)
    # The networks of customers count as one address.
    for number in range(2):
        room.enter(caller(address=f"2001:db8:0:1::{number}"), 10, 0)
    with pytest.raises(TooMany):
        room.enter(caller(address="2001:db8:0:1:ffff::"), 10, 0)


def test_rows_of_an_address_are_limited() -> None:
    room = Room(LiveSettings())
    room.enter(caller("client"), module.ADDRESS_ROWS, 0)
    with pytest.raises(TooMany, match="of an address"):
        room.enter(caller("client"), 1, 0)
    room.enter(caller("client", address=OFFICE), 1, 0)
    room.leave(caller("client"), module.ADDRESS_ROWS)
    room.enter(caller("client"), 1, 0)


def test_callers_without_a_key_get_small_views() -> None:
    room = Room(LiveSettings())
    room.enter(caller(), module.ANONYMOUS_ROWS, 0)
    with pytest.raises(Invalid, match="Without a key"):
        room.enter(caller(), module.ANONYMOUS_ROWS + 1, 0)
    room.enter(caller("client"), module.ANONYMOUS_ROWS + 1, 0)


def test_callers_without_a_key_leave_room_for_keys_and_for_other_pods() -> None:
    room = Room(LiveSettings())
    rows = module.ANONYMOUS_ROWS
    crowd = [caller(address=f"198.51.100.{number % 250}") for number in range(module.POD_ANONYMOUS_ROWS // rows)]
    for each in crowd:
        room.enter(each, rows, rows)
        room.open_view(each, rows)
    stranger = caller(address=OFFICE)
    with pytest.raises(TooMany, match="without a key"):
        room.enter(stranger, rows, rows)
    # A view that is there costs nothing.
    room.enter(stranger, rows, 0)
    room.enter(caller("client", address=OFFICE), rows, rows)
    room.enter(caller(pod_id="other", address=OFFICE), rows, rows)
    room.close_view(crowd[0], rows)
    room.enter(stranger, rows, rows)


def test_callers_without_a_key_of_many_pods_leave_room_for_keys() -> None:
    room = Room(LiveSettings())
    rows = module.ANONYMOUS_ROWS
    for number in range(module.ALL_ANONYMOUS_ROWS // rows):
        each = caller(pod_id=f"pod-{number % 10}", address=f"198.51.{number // 250}.{number % 250}")
        room.enter(each, rows, rows)
        room.open_view(each, rows)
    with pytest.raises(TooMany, match="without a key"):
        room.enter(caller(pod_id="another"), rows, rows)
    room.enter(caller("client"), rows, rows)


def test_one_key_leaves_room_for_the_other_keys_of_its_pod() -> None:
    """A client key ships inside a game, so it can come from any number of addresses."""
    room = Room(LiveSettings())
    for number in range(module.KEY_VIEW_ROWS // 1000):
        each = caller("client", address=f"198.51.100.{number % 250}")
        room.enter(each, 1000, 1000)
        room.open_view(each, 1000)
    with pytest.raises(TooMany, match="of this key"):
        room.enter(caller("client"), 1, 1)
    room.enter(caller("client"), 1, 0)
    room.enter(caller("another"), 1000, 1000)
    room.close_view(caller("client"), 1000)
    room.enter(caller("client"), 1000, 1000)


def test_one_address_leaves_room_for_other_callers_without_a_key() -> None:
    room = Room(LiveSettings())
    rows = module.ANONYMOUS_ROWS
    for _ in range(module.ADDRESS_ANONYMOUS_ROWS // rows):
        room.enter(caller(), rows, rows)
        room.open_view(caller(), rows)
    with pytest.raises(TooMany, match="of an address"):
        room.enter(caller(), rows, rows)
    # The views that it has, and those of others, are still open to it.
    room.enter(caller(), rows, 0)
    room.enter(caller(address=OFFICE), rows, rows)
    room.close_view(caller(), rows)
    room.enter(caller(), rows, rows)


def test_nothing_is_counted_after_all_have_left() -> None:
    room = Room(LiveSettings())
    for audience in (caller(), caller("client"), caller("server")):
        room.enter(audience, 10, 10)
        room.open_view(audience, 10)
    assert (room.rows, room.per_key) == (30, 3)
    for audience in (caller(), caller("client"), caller("server")):
        room.leave(audience, 10)
        room.close_view(audience, 10)
    assert (room.rows, room.per_key) == (0, 0)
