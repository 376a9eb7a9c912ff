"""The address of the client: that of the connection or, behind trusted proxies, the one in X-Forwarded-For."""

import ipaddress
from collections.abc import Iterable
from functools import lru_cache

from laurels.http.protocol import Headers

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def read_networks(text: str) -> list[Network]:
    """Read a list of addresses and networks. Raises ValueError."""
    return [ipaddress.ip_network(part.strip()) for part in text.split(",") if part.strip()]


class Addresses:
    """Finds the addresses of clients. `networks`: those of the proxies whose headers are believed."""

    def __init__(self, networks: Iterable[Network]) -> None:
        self._networks = tuple(networks)
        self.is_proxy = lru_cache(maxsize=10_000)(self._is_proxy)

    def of(self, peer: str, headers: Headers) -> str:
        """Return the address of the client of a request that arrived from `peer`.

        Every proxy adds the address that it sees to the end of the header, so only what trusted proxies have added
        counts: the last address that is not one of them.
        """
        if not self.is_proxy(peer):
            return peer
        sent = b",".join(value for name, value in headers if name == b"x-forwarded-for")
        for part in reversed(sent.decode("latin-1").split(",")):
            address = _without_port(part.strip())
            if not _is_address(address):
                break
            peer = address
            if not self.is_proxy(address):
                break
        return peer

    def _is_proxy(self, address: str) -> bool:
        try:
            parsed = ipaddress.ip_address(address)
        except ValueError:
            return False
        return any(parsed in network for network in self._networks)


def _without_port(text: str) -> str:
    """Return an address without the port that some proxies add: 192.0.2.1:4711, [2001:db8::1]:4711."""
    if text.startswith("["):
        return text[1:].partition("]")[0]
    host, colon, port = text.partition(":")
    return host if colon and port.isdigit() and "." in host else text


@lru_cache(maxsize=10_000)
def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
