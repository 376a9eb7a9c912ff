"""Encoding of the current time, which every response of `top` contains."""

import msgspec

from laurels.core.instants import SECOND_US, to_datetime

# The last encoded second, and its JSON without `Z"`.
_last: tuple[int, bytes] = (-1, b"")


def encode_instant(us: int) -> bytes:
    """Return an instant as JSON, in the format of msgspec.

    Faster than msgspec for instants within the same second.
    """
    global _last  # noqa: PLW0603 - one clock per process
    second, fraction = divmod(us, SECOND_US)
    if _last[0] != second:
        _last = (second, msgspec.json.encode(to_datetime(second * SECOND_US))[:-2])
    return b'%b.%06dZ"' % (_last[1], fraction) if fraction else b'%bZ"' % _last[1]
