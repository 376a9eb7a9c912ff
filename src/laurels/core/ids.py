"""Identifiers that Laurels makes itself."""

import secrets

from laurels.core.instants import SECOND_US

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"


def new_event_id(now_us: int) -> str:
    """Time first (48 bits of milliseconds), then 80 random bits: unique, and close in a B-tree when close in time."""
    value = (now_us // (SECOND_US // 1000)) << 80 | secrets.randbits(80)
    return "".join(_ALPHABET[value >> shift & 31] for shift in range(125, -1, -5))


def new_secret() -> str:
    """256 random bits; enough that a plain hash of it is safe to store."""
    return secrets.token_urlsafe(32)


def new_key_id() -> str:
    return secrets.token_hex(6)
