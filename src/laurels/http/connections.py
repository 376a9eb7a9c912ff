"""The open connections of this process: how many there may be, in total and per address.

Every connection that a limit ends, at its start or later, is counted in a metric by the reason, and logged at a limited
rate.
"""

from collections import Counter
from collections.abc import Callable

import structlog

from laurels.core.addresses import network_of
from laurels.logs import LogLimit
from laurels.metrics import CLOSED_CONNECTIONS, CONNECTIONS
from laurels.settings import ServerSettings

log = structlog.get_logger()

LOG_EVERY_S = 10.0


class Connections:
    def __init__(self, settings: ServerSettings, is_proxy: Callable[[str], bool] = lambda _address: False) -> None:
        """`is_proxy`: whether an address is that of a trusted proxy, which has the connections of many clients."""
        self._is_proxy = is_proxy
        self._most = settings.max_connections
        self._most_per_address = settings.max_connections_per_address
        self._by_address: Counter[str] = Counter()
        self._open = 0
        self._limit = LogLimit(LOG_EVERY_S)

    def admit(self, address: str) -> bool:
        """Count a new connection, and return True; return False if there are too many, and count nothing.

        `address` is empty for a local socket, which only the limit in total applies to.
        """
        if self._open >= self._most:
            self.note_closed("too_many", address)
            return False
        network = network_of(address)
        if address and self._by_address[network] >= self._most_per_address and not self._is_proxy(address):
            self.note_closed("too_many_of_address", address)
            return False
        self._open += 1
        self._by_address[network] += 1
        CONNECTIONS.set(self._open)
        return True

    def leave(self, address: str) -> None:
        """Count the end of a connection that was admitted."""
        network = network_of(address)
        self._open -= 1
        self._by_address[network] -= 1
        if not self._by_address[network]:
            del self._by_address[network]
        CONNECTIONS.set(self._open)

    def note_closed(self, reason: str, address: str) -> None:
        """Note that a limit ends a connection."""
        CLOSED_CONNECTIONS.labels(reason).inc()
        if (count := self._limit.count(reason)) is not None:
            log.warning("connections_closed", reason=reason, count=count, last_address=address)
