"""The public keys of an OAuth 2 provider."""

from typing import Any, Protocol


class SigningKeys(Protocol):
    """Where the keys that sign tokens come from."""

    async def fetch(self) -> list[dict[str, Any]]:
        """Return the current keys as JSON Web Keys (RFC 7517).

        Raises `Unavailable` if they can't be read now. Takes a few seconds at most.
        """

    async def close(self) -> None:
        """Disconnect. Idempotent."""
