"""The addresses of Redis: one server, a set of Sentinels that know the server, or some nodes of a cluster."""

from typing import NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

from laurels.errors import Invalid

FORMS = (
    "redis://[[user]:password@]host[:port][/db], redis+sentinel://host[:port],…/service[/db], "
    "redis+cluster://host[:port],…; with rediss in place of redis for TLS, and ?ca=FILE, ?sentinel_password=PASSWORD"
)
KINDS = {"": 6379, "sentinel": 26379, "cluster": 6379}


class RedisUrl(NamedTuple):
    """`kind`: '', 'sentinel' or 'cluster'. `ca_file`: what to check certificates against; None: the system's.

    The Sentinels have credentials of their own, or none.
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
        # The address itself may hold a password: it is not repeated.
        raise Invalid(
            "wrong_format", f"The index's address is not one that Laurels knows ({error}). It is {FORMS}.",
            field="LAURELS_INDEX", rule=FORMS,
        ) from None  # fmt: skip


def _parse(url: str) -> RedisUrl:
    scheme, _, kind = url.partition("://")[0].partition("+")
    if scheme not in {"redis", "rediss"} or kind not in KINDS:
        raise ValueError("it begins with none of the known names")
    parts = urlsplit(url)
    credentials, at, places = parts.netloc.rpartition("@")
    username, _, password = credentials.partition(":")
    hosts = tuple(_host(place, KINDS[kind]) for place in places.split(","))
    if not kind and len(hosts) > 1:
        raise ValueError("it names several servers; a cluster is redis+cluster://")
    path = [part for part in parts.path.split("/") if part]
    service = path.pop(0) if kind == "sentinel" and path else None
    if kind == "sentinel" and service is None:
        raise ValueError("the service that the Sentinels watch is missing after the hosts")
    db = int(path.pop(0)) if path else 0
    if path or (kind == "cluster" and db):
        raise ValueError("it has parts that mean nothing")
    options = parse_qs(parts.query, strict_parsing=bool(parts.query))
    known = ("ca", "sentinel_username", "sentinel_password") if kind == "sentinel" else ("ca",)
    given = {name: options.pop(name)[0] for name in known if name in options}
    if options:
        raise ValueError(f"the option {next(iter(options))} is not known")
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


def _host(place: str, default_port: int) -> tuple[str, int]:
    split = urlsplit(f"//{place}")
    if not split.hostname:
        raise ValueError("a host is missing")
    return split.hostname, split.port or default_port
