"""Addresses of clients, as limits count them.

Calls from this machine have no limits of their address, because a proxy on it would share one. An IPv6 customer has a
whole network, so its first 64 bits count as the address.
"""

import ipaddress
from functools import lru_cache


@lru_cache(maxsize=10_000)
def network_of(address: str) -> str:
    """Return what counts as one address, also on this machine; a local socket has none."""
    return limited_address(address) or address


@lru_cache(maxsize=10_000)
def limited_address(address: str) -> str | None:
    """Return what limits count as one address; None if it has no limits."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        # A local socket.
        return None
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is None:
            return None if parsed.is_loopback else str(ipaddress.ip_network((parsed, 64), strict=False))
        parsed = parsed.ipv4_mapped
    return None if parsed.is_loopback else str(parsed)
