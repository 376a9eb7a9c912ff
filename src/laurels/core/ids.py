"""Identifiers and secrets that Laurels generates."""

import random
import secrets
import unicodedata


def new_event_id(now_us: int) -> str:
    """Return a unique event id: 48 bits of milliseconds, then 80 random bits.

    The time comes first, so that ids that are close in time are close in a B-tree. The id must be unique but not
    secret, so it uses `random`: the system's random source would cost more than the rest of the function.
    """
    return f"{now_us // 1000 << 80 | random.getrandbits(80):032x}"


def new_secret() -> str:
    """Return a secret of 256 random bits: enough that a plain hash of it is safe to store."""
    return secrets.token_urlsafe(32)


def new_key_id() -> str:
    return secrets.token_hex(6)


def composed(text: str) -> str:
    """Return an id in Unicode's composed form (NFC), in which ids are stored and compared.

    The same name can be spelled in two ways: keyboards and systems differ in whether "é" is one character or two.
    """
    return text if text.isascii() else unicodedata.normalize("NFC", text)
