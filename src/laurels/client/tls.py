"""The TLS settings of HTTP clients."""

import ssl


def tls_for(url: str) -> ssl.SSLContext | bool:
    """Return what httpx takes as `verify`: True for HTTPS; for HTTP a context that trusts nobody.

    The certificates of the system take 35 ms to load, which is a large part of the time of a command.
    """
    return True if url.startswith("https:") else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
