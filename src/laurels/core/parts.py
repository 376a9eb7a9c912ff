"""The parts of a ranking: which one a user is in.

A large board is split into parts, which are in different places of the index. A hash of the user id chooses the part,
so a user is in exactly one, whatever the score.
"""

import zlib

# Spreads the checksums, whose low bits depend on few characters, over all 32 bits.
_FACTOR = 0x9E3779B1
_BITS = 32


def part_of(user_id: str, parts: int) -> int:
    """Return the number of the part that a user is in, from 0 to `parts` - 1."""
    if parts == 1:
        return 0
    return ((zlib.crc32(user_id.encode()) * _FACTOR & 0xFFFFFFFF) * parts) >> _BITS
