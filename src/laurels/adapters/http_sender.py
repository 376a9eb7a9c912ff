"""Delivery of messages to webhooks over HTTP."""

import asyncio

import httpx

from laurels.errors import Unavailable

TIMEOUT_S = 10.0
CONNECTIONS = 20


class HttpSender:
    def __init__(self) -> None:
        self._client: httpx.AsyncClient | None = None

    async def send(self, url: str, headers: dict[str, str], body: bytes) -> None:
        """Send a message with POST; raise `Unavailable` unless the receiver answers 2xx within TIMEOUT_S.

        Redirects are not followed, because they could lead to an internal address.
        """
        if self._client is None:
            limits = httpx.Limits(max_connections=CONNECTIONS)
            self._client = httpx.AsyncClient(timeout=TIMEOUT_S, limits=limits, follow_redirects=False)
        try:
            # httpx limits each step only, so a receiver could delay the answer forever. The body of the answer is not
            # read, because only the status matters.
            async with (
                asyncio.timeout(TIMEOUT_S),
                self._client.stream("POST", url, headers=headers, content=body) as response,
            ):
                status = response.status_code
        except TimeoutError as error:
            raise Unavailable("overloaded", f"The receiver did not answer within {TIMEOUT_S:g} s.") from error
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
            raise Unavailable("overloaded", f"{type(error).__name__}: {error}") from error
        if not 200 <= status < 300:
            raise Unavailable("overloaded", f"The receiver answered {status}.")

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()
