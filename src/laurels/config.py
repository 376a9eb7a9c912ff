"""Reads the settings that settings.py declares. The only reader of the environment.

A flag takes precedence over its environment variable, that over the configuration file, and that over the default. A
variable with `_FILE` at its end names a file that has the value, for secrets. All mistakes are reported at once.
"""

import ipaddress
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from laurels.core.ids import new_secret
from laurels.errors import Invalid
from laurels.settings import SETTINGS, OAuthSettings, Setting, Settings

ADMIN_KEY_CHARS = 16
# On an address that others can reach, anybody can try keys.
PUBLIC_ADMIN_KEY_CHARS = 32
PUBLIC_ADMIN_KEY_DISTINCT = 10
LEDGER_FILE = "laurels.db"
CONFIG_VARIABLE = "LAURELS_CONFIG"
# Settings that are not shown.
SECRETS = {"admin_key", "metrics_key", "key"}
_GROUPS = {setting.group for setting in SETTINGS.values()}


def ledger_path(settings: Settings) -> Path | None:
    """Return the file of a SQLite ledger; None for PostgreSQL."""
    ledger = ledger_url(settings)
    if ledger.startswith(("postgresql://", "postgres://")):
        return None
    prefix, _, path = ledger.partition("sqlite:///")
    if prefix or not path:
        raise Invalid(
            "wrong_format",
            f"{hide_password(ledger)!r} is not a ledger that Laurels knows. Use sqlite:///PATH or "
            "postgresql://USER:PASSWORD@HOST:PORT/DATABASE.",
            field="LAURELS_LEDGER",
        )
    return Path(path)


def ledger_url(settings: Settings) -> str:
    """Return the URL of the ledger."""
    return settings.storage.ledger or f"sqlite:///{settings.server.data_dir / LEDGER_FILE}"


def is_shared(settings: Settings) -> bool:
    """Return True if other servers may use the same ledger and index."""
    return ledger_path(settings) is None


class Source(NamedTuple):
    """A value as it was found, and where: a flag, a variable, or a line of the configuration file."""

    value: Any
    where: str


def read_settings(flags: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> Settings:
    """Return the settings from flags, the environment, the configuration file and the defaults.

    Raise Invalid if values are wrong, or contradict each other.
    """
    return read_sourced_settings(flags, environment)[0]


def read_sourced_settings(
    flags: Mapping[str, Any], environment: Mapping[str, str] = os.environ
) -> tuple[Settings, dict[str, str]]:
    """Return the settings, and where each value that is not a default comes from."""
    faults: list[Invalid] = []
    sources = _sources(flags, environment, faults)
    values: dict[str, Any] = {}
    for name, source in sources.items():
        try:
            values[name] = _read(SETTINGS[name], source.where, source.value)
        except Invalid as error:
            faults.append(error)
    if faults:
        raise _all(faults)
    settings = Settings.of(values)
    faults += _contradictions(settings)
    if faults:
        raise _all(faults)
    return settings, {name: source.where for name, source in sources.items()}


def _sources(flags: Mapping[str, Any], environment: Mapping[str, str], faults: list[Invalid]) -> dict[str, Source]:
    path = flags.get("config") or environment.get(CONFIG_VARIABLE) or None
    found = {} if path is None else _read_file(Path(path), faults)
    for setting in SETTINGS.values():
        aside = f"{setting.variable}_FILE"
        if flags.get(setting.name) is not None:
            found[setting.name] = Source(flags[setting.name], setting.flag)
        elif environment.get(setting.variable):
            found[setting.name] = Source(environment[setting.variable], setting.variable)
        elif environment.get(aside):
            try:
                found[setting.name] = Source(Path(environment[aside]).read_text("utf-8").strip(), aside)
            except (OSError, UnicodeDecodeError) as error:
                message = f"{aside}: {environment[aside]} can't be read: {error}."
                faults.append(Invalid("wrong_format", message, field=aside))
    return found


def _read_file(path: Path, faults: list[Invalid]) -> dict[str, Source]:
    """Return the values of a configuration file, whose sections are the groups of the settings."""
    found: dict[str, Source] = {}
    try:
        text = path.read_text("utf-8")
        content = tomllib.loads(text)
    except (OSError, UnicodeDecodeError) as error:
        faults.append(
            Invalid("wrong_format", f"The configuration file {path} can't be read: {error}.", field="--config")
        )
        return found
    except tomllib.TOMLDecodeError as error:
        faults.append(Invalid("wrong_format", f"{path} is not TOML: {error}.", field="--config"))
        return found
    for group, values in content.items():
        if not isinstance(values, dict) or group not in _GROUPS:
            what = "no section" if isinstance(values, dict) else "outside of a section"
            faults.append(_misplaced(path, text, group, f"{what}; the sections are {', '.join(sorted(_GROUPS))}"))
            continue
        for name, value in values.items():
            where = f"{name} in {path}:{_line_of(text, name, group)}"
            setting = SETTINGS.get(name)
            if setting is None or setting.group != group:
                hint = "" if setting is None else f"; it belongs to [{setting.group}]"
                faults.append(_misplaced(path, text, name, f"no setting of [{group}]{hint}", group))
            elif isinstance(value, dict | list | float):
                faults.append(Invalid("wrong_format", f"{where} must be a text or a whole number.", field=name))
            else:
                found[name] = Source(int(value) if isinstance(value, bool) else value, where)
    return found


def _misplaced(path: Path, text: str, name: str, what: str, group: str | None = None) -> Invalid:
    return Invalid("unknown_field", f"{path}:{_line_of(text, name, group)}: {name!r} is {what}.", field=name)


def _line_of(text: str, name: str, group: str | None) -> int:
    """Return the line of a section, or of a setting in a section; 1 if it is written in an unusual way."""
    inside = group is None
    for number, line in enumerate(text.splitlines(), 1):
        header = re.match(r"\s*\[\s*([A-Za-z0-9_-]+)\s*\]", line)
        if header is not None:
            inside = group is None or header[1] == group
            if group is None and header[1] == name:
                return number
        elif inside and re.match(rf"\s*[\"']?{re.escape(name)}[\"']?\s*=", line):
            return number
    return 1


def _all(faults: list[Invalid]) -> Invalid:
    """Return one error that says all that is wrong."""
    if len(faults) == 1:
        return faults[0]
    lines = "".join(f"\n- {fault.message}" for fault in faults)
    return Invalid(faults[0].code, f"{len(faults)} settings are wrong:{lines}", field=faults[0].field)


def shown_value(setting: Setting, settings: Settings) -> str:
    """Return a value for people, without secrets."""
    value = settings.value(setting)
    if value is None:
        return ""
    return "***" if setting.name in SECRETS else hide_password(str(value))


def environment_of(settings: Settings) -> dict[str, str]:
    """Return the environment variables that give another process these settings, as one worker."""
    values = {setting.variable: settings.value(setting) for setting in SETTINGS.values()}
    values["LAURELS_WORKERS"] = 1
    return {name: str(value) for name, value in values.items() if value is not None}


def hide_password(url: str) -> str:
    """Return a URL without its passwords, for people and logs."""
    hidden = re.sub(r"([?&][a-z_]*password=)[^&]*", r"\1***", url)
    return re.sub(r"(://[^:/@]*):[^@]*@", r"\1:***@", hidden)


def read_admin_key(settings: Settings, host: str | None = None) -> str:
    """Return the admin key: the setting, or the one in the data folder, which is created if it is missing.

    `host`: the address that the server really listens on, if it inherited the socket. Behind a proxy, everybody may
    reach it.
    """
    host = host or settings.server.host
    if settings.limits.trusted_proxies:
        host = f"{host} behind {settings.limits.trusted_proxies}"
    if settings.server.admin_key:
        return _check_admin_key(settings.server.admin_key, "LAURELS_ADMIN_KEY", host)
    path = settings.server.admin_key_path
    if not path.exists():
        make_data_dir(path.parent)
        _write_secret(path)
    return _check_admin_key(path.read_text("utf-8").strip(), f"{path} (delete it to get a new one)", host)


def make_data_dir(folder: Path) -> None:
    """Create the data folder, readable by its owner only, because it holds all scores and the admin key."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise Invalid(
            "wrong_format", f"{folder} can't be used as the data folder: {error.strerror}.", field="LAURELS_DATA_DIR"
        ) from error


def _write_secret(path: Path) -> None:
    """Write a new key to a temporary file, sync it and rename it, so that a crash leaves a complete key or none."""
    aside = path.with_suffix(".new")
    aside.unlink(missing_ok=True)
    fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(fd, f"{new_secret()}\n".encode())
        os.fsync(fd)
    finally:
        os.close(fd)
    aside.rename(path)


def _check_admin_key(key: str, source: str, host: str) -> str:
    if len(key) < ADMIN_KEY_CHARS:
        raise Invalid(
            "wrong_length",
            f"The admin key in {source} is shorter than {ADMIN_KEY_CHARS} characters.",
            field="LAURELS_ADMIN_KEY",
            rule=f">= {ADMIN_KEY_CHARS} characters",
        )
    is_weak = len(key) < PUBLIC_ADMIN_KEY_CHARS or len(set(key)) < PUBLIC_ADMIN_KEY_DISTINCT
    if is_weak and not _is_local(host):
        raise Invalid(
            "wrong_length",
            f"The admin key in {source} is too weak for a server that listens on {host}: it needs at least "
            f"{PUBLIC_ADMIN_KEY_CHARS} characters, {PUBLIC_ADMIN_KEY_DISTINCT} of them different. Without a key of "
            "yours, the first start creates one.",
            field="LAURELS_ADMIN_KEY",
            rule=f">= {PUBLIC_ADMIN_KEY_CHARS} characters, unless the server listens on a local address",
        )
    return key


def _is_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _read(setting: Setting, source: str, value: Any) -> Any:
    if setting.minimum is not None and setting.maximum is not None:
        return _read_number(setting.minimum, setting.maximum, source, value)
    if setting.type in {Path, Path | None}:
        return Path(value)
    return int(value) if setting.type == int | None else value


def _read_number(minimum: int, maximum: int, source: str, value: Any) -> int:
    try:
        number = int(value)
    except ValueError:
        number = minimum - 1
    if not minimum <= number <= maximum:
        raise Invalid(
            "out_of_range",
            f"{source} is {value!r}, but must be a whole number from {minimum} to {maximum}.",
            field=source,
            rule=f"{minimum}..{maximum}",
        )
    return number


def _check_oauth(oauth: OAuthSettings) -> Iterator[Invalid]:
    if oauth.is_on and not oauth.oauth_audience:
        yield Invalid(
            "missing_field",
            "Set LAURELS_OAUTH_AUDIENCE to the audience of the tokens. Without it, tokens for other services would be "
            "accepted.",
            field="LAURELS_OAUTH_AUDIENCE",
            rule="required with LAURELS_OAUTH_ISSUER or LAURELS_OAUTH_JWKS",
        )
    for field, url in (("LAURELS_OAUTH_ISSUER", oauth.oauth_issuer), ("LAURELS_OAUTH_JWKS", oauth.oauth_jwks)):
        parts = urlsplit(url or "")
        # A file has no scheme.
        is_file = field == "LAURELS_OAUTH_JWKS" and not parts.scheme
        if url is not None and not is_file and parts.scheme != "https" and not _is_local(parts.hostname or ""):
            yield Invalid("wrong_format", f"{field} must be an https:// URL.", field=field, rule="https://")
    if oauth.oauth_default_role not in {None, "server", "client", "player"}:
        yield Invalid(
            "not_a_choice",
            "LAURELS_OAUTH_DEFAULT_ROLE must be server, client or player. Only a claim can make an admin.",
            field="LAURELS_OAUTH_DEFAULT_ROLE",
            rule="server, client or player",
        )


def _check_proxies(proxies: str) -> Iterator[Invalid]:
    try:
        for part in proxies.split(","):
            if part.strip():
                ipaddress.ip_network(part.strip())
    except ValueError as error:
        yield Invalid(
            "wrong_format",
            f"LAURELS_TRUSTED_PROXIES has a part that is no address or network: {error}.",
            field="LAURELS_TRUSTED_PROXIES",
            rule="addresses or networks, separated by commas",
        )


def _contradictions(settings: Settings) -> Iterator[Invalid]:
    """Yield what is wrong with values that are valid by themselves."""
    try:
        shared = is_shared(settings)
    except Invalid as error:
        yield error
        return
    yield from _check_storage(settings, shared=shared)
    yield from _check_kafka(settings)
    yield from _check_oauth(settings.oauth)
    yield from _check_proxies(settings.limits.trusted_proxies)
    if settings.server.workers > 1 and settings.storage.index == "memory://":
        yield Invalid(
            "out_of_range",
            "More than one worker needs a shared index, because each would rank only its own writes. "
            "Set --workers to 1, or use PostgreSQL and Redis.",
            field="LAURELS_WORKERS",
            rule="1 with memory://",
        )
    if settings.client.url is not None and not settings.client.url.startswith(("http://", "https://")):
        yield Invalid(
            "wrong_format",
            f"{settings.client.url!r} must start with http:// or https://.",
            field="LAURELS_URL",
            rule="a URL",
        )
    if settings.server.access_log not in {"off", "errors", "all"}:
        yield Invalid(
            "not_a_choice",
            f"LAURELS_ACCESS_LOG is {settings.server.access_log!r}, but must be off, errors or all.",
            field="LAURELS_ACCESS_LOG",
        )
    if re.fullmatch(r"off|([01][0-9]|2[0-3]):[0-5][0-9]", settings.jobs.check_at) is None:
        yield Invalid(
            "wrong_format",
            f"LAURELS_CHECK_AT is {settings.jobs.check_at!r}, but must be a time of day such as 03:00, or off.",
            field="LAURELS_CHECK_AT",
            rule="HH:MM, or off",
        )
    if settings.server.log_level not in {"debug", "info", "warning", "error"}:
        level = settings.server.log_level
        yield Invalid(
            "not_a_choice",
            f"LAURELS_LOG_LEVEL is {level!r}, but must be debug, info, warning or error.",
            field="LAURELS_LOG_LEVEL",
        )


def _check_storage(settings: Settings, *, shared: bool) -> Iterator[Invalid]:
    in_memory = settings.storage.index == "memory://"
    if not in_memory and not settings.storage.index.startswith(("redis", "rediss")):
        yield Invalid(
            "wrong_format",
            f"{hide_password(settings.storage.index)!r} is not an index that Laurels knows. Use memory://, redis://, "
            "redis+sentinel:// or redis+cluster://.",
            field="LAURELS_INDEX",
        )
    if shared and in_memory:
        yield Invalid(
            "wrong_format",
            "A PostgreSQL ledger needs a shared index. Set LAURELS_INDEX (--index) to redis://HOST:PORT.",
            field="LAURELS_INDEX",
        )
    if not shared and not in_memory:
        yield Invalid(
            "wrong_format",
            "A Redis index needs a PostgreSQL ledger. Set LAURELS_LEDGER (--ledger) to "
            "postgresql://USER:PASSWORD@HOST:PORT/DATABASE.",
            field="LAURELS_LEDGER",
        )
    if settings.storage.spool is not None and not shared:
        yield Invalid(
            "wrong_format",
            "A spool keeps writes while PostgreSQL is unreachable. A SQLite ledger is on this disk and needs none.",
            field="LAURELS_SPOOL",
        )


def _check_kafka(settings: Settings) -> Iterator[Invalid]:
    one = r"[^\s,:]+:[0-9]{1,5}"
    if settings.kafka.kafka is not None and re.fullmatch(f"{one}(,{one})*", settings.kafka.kafka) is None:
        yield Invalid(
            "wrong_format",
            f"{settings.kafka.kafka!r} does not name Kafka brokers. Use HOST:PORT, or several separated by commas.",
            field="LAURELS_KAFKA",
        )
    if settings.kafka.ingest and settings.kafka.kafka is None:
        yield Invalid(
            "missing_field",
            "Reading scores from Kafka needs its brokers. Set LAURELS_KAFKA (--kafka) to HOST:PORT.",
            field="LAURELS_KAFKA",
        )
    if re.fullmatch(r"[A-Za-z0-9._-]{0,100}", settings.kafka.kafka_topic_prefix) is None:
        yield Invalid(
            "wrong_format",
            "LAURELS_KAFKA_TOPIC_PREFIX may contain up to 100 letters, digits, '.', '_' and '-'.",
            field="LAURELS_KAFKA_TOPIC_PREFIX",
        )
