"""Redis URLs: one server, a set of Sentinels that know the master, or some nodes of a cluster."""

from typing import NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

from laurels.errors import Invalid

FORMS = (
    "redis://[[user]:password@]host[:port][/db], redis+sentinel://host[:port],…/service[/db], "
    "redis+cluster://host[:port],…; with rediss instead of redis for TLS, and ?ca=FILE, ?sentinel_password=PASSWORD"
)
KINDS = {"": 6379, "sentinel": 26379, "cluster": 6379}


class RedisUrl(NamedTuple):
    """A parsed URL.

    `kind` is '', 'sentinel' or 'cluster'. `ca_file` has the CA certificates to verify servers with; None means those of
    the system. Sentinels have separate credentials, or none.
    """

    kind: str
    hosts: tuple[tuple[str, int], ...]
    tls: bool
    username: str | None
    password: str | None
    service: str | None
    db: int
    ca_file: str | None
    sentinel_username: str | None = None
    sentinel_password: str | None = None


def parse_redis_url(url: str) -> RedisUrl:
    try:
        return _parse(url)
    except ValueError as error:
        # The message does not repeat the URL, because it may contain a password.
        raise Invalid(
            "wrong_format", f"LAURELS_INDEX is not a valid Redis URL: {error}. Use {FORMS}.",
            field="LAURELS_INDEX", rule=FORMS,
        ) from None  # fmt: skip


def _parse(url: str) -> RedisUrl:
    scheme, _, kind = url.partition("://")[0].partition("+")
    if scheme not in {"redis", "rediss"} or kind not in KINDS:
        raise ValueError("unknown scheme")
    parts = urlsplit(url)
    credentials, at, hosts_text = parts.netloc.rpartition("@")
    username, _, password = credentials.partition(":")
    hosts = tuple(_host(text, KINDS[kind]) for text in hosts_text.split(","))
    if not kind and len(hosts) > 1:
        raise ValueError("several hosts, but the scheme is for one server")
    path = [part for part in parts.path.split("/") if part]
    service = path.pop(0) if kind == "sentinel" and path else None
    if kind == "sentinel" and service is None:
        raise ValueError("the Sentinel service name is missing after the hosts")
    db = int(path.pop(0)) if path else 0
    if path or (kind == "cluster" and db):
        raise ValueError("the path has unexpected parts")
    options = parse_qs(parts.query, strict_parsing=bool(parts.query))
    known = ("ca", "sentinel_username", "sentinel_password") if kind == "sentinel" else ("ca",)
    given = {name: options.pop(name)[0] for name in known if name in options}
    if options:
        raise ValueError(f"unknown option {next(iter(options))}")
    return RedisUrl(
        kind,
        hosts,
        scheme == "rediss",
        (unquote(username) or None) if at else None,
        (unquote(password) or None) if at else None,
        service,
        db,
        given.get("ca"),
        given.get("sentinel_username"),
        given.get("sentinel_password"),
    )


def _host(text: str, default_port: int) -> tuple[str, int]:
    split = urlsplit(f"//{text}")
    if not split.hostname:
        raise ValueError("a host is missing")
    return split.hostname, split.port or default_port
