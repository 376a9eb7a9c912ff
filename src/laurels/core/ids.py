"""Identifiers that Laurels makes itself."""

import random
import secrets


def new_event_id(now_us: int) -> str:
    """Time first (48 bits of milliseconds), then 80 random bits: unique, and close in a B-tree when close in time.

    It has to be unique and not secret: the system's own random source would cost more than all the rest of it.
    """
    return f"{now_us // 1000 << 80 | random.getrandbits(80):032x}"


def new_secret() -> str:
    """256 random bits; enough that a plain hash of it is safe to store."""
    return secrets.token_urlsafe(32)


def new_key_id() -> str:
    return secrets.token_hex(6)
