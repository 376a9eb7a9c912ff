"""Every setting: its name, default, limits and one line of help. The only reader of the environment.

A flag wins over its variable, and that over the default.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from laurels.core.ids import new_secret
from laurels.errors import Invalid

ADMIN_KEY_CHARS = 16
LEDGER_FILE = "laurels.db"


class Setting(NamedTuple):
    name: str
    default: str | int | None
    help: str
    minimum: int | None = None
    maximum: int | None = None

    @property
    def variable(self) -> str:
        return f"LAURELS_{self.name.upper()}"

    @property
    def flag(self) -> str:
        return f"--{self.name.replace('_', '-')}"


SETTINGS = {
    setting.name: setting
    for setting in (
        Setting("host", "127.0.0.1", "Address to listen on."),
        Setting("port", 8080, "Port to listen on; 0 takes a free one.", 0, 65535),
        Setting("data_dir", "./laurels-data", "Folder of the embedded ledger and the admin key."),
        Setting(
            "ledger",
            None,
            "Where scores are kept: sqlite:///PATH or postgresql://. Default: sqlite:///<data-dir>/laurels.db",
        ),
        Setting(
            "index", "memory://", "Where ranks are kept: memory://, redis://, redis+sentinel://, redis+cluster://."
        ),
        Setting("spool", None, "Folder that keeps writes while PostgreSQL can't be reached. Default: refuse them."),
        Setting("kafka", None, "Kafka's brokers, HOST:PORT,HOST:PORT. Default: none."),
        Setting("kafka_config", None, "File of librdkafka settings (SASL, TLS), NAME=VALUE lines, passed through."),
        Setting("kafka_group", "laurels", "The consumer group that the servers of one ledger share."),
        Setting("kafka_topic_prefix", None, "What all topics begin with, where several ledgers share a Kafka."),
        Setting("ingest", 0, "1: take scores from Kafka as well (serve --ingest).", 0, 1),
        Setting("ingest_batch", 1000, "How many Kafka records are counted together at most.", 1, 100_000),
        Setting("ingest_port", 8081, "Port of `laurels ingest` for its health and metrics; 0: a free one.", 0, 65535),
        Setting("dead_letter_alert_percent", 5, "Share of a pod's records above which an alert is raised.", 0, 100),
        Setting("workers", 1, "Server processes; more than one needs a shared index.", 1, 64),
        Setting("admin_key", None, "The admin key. Default: made at the first start, kept in <data-dir>/admin.key"),
        Setting("fd", None, "Listen on this socket that was inherited, not on host and port."),
        Setting("parent", None, "Stop when the process with this id, which started this one, is gone."),
        Setting("log_level", "info", "debug, info, warning or error."),
        Setting("max_boards", 10_000, "How many boards a pod may have.", 1, 1_000_000),
        Setting("max_batch", 1000, "How many events share one transaction at most.", 1, 100_000),
        Setting(
            "max_pending",
            50_000,
            "How many events may wait to be written; half of it for one pod.",
            2,
            10_000_000,
        ),
        Setting("write_timeout_ms", 10_000, "How long a write may take before its sender is told.", 1, 600_000),
        Setting("ledger_connections", 8, "Connections of a server process to PostgreSQL.", 1, 1000),
        Setting("index_timeout_ms", 1000, "How long Redis may take to answer.", 10, 60_000),
        Setting(
            "repair_interval_ms", 2000, "How often a shared index is compared with what changed lately.", 100, 600_000
        ),
        Setting("jobs_interval_ms", 500, "How often it is looked whether a job is due.", 10, 600_000),
        Setting("live_tick_ms", 100, "How often, at most, those who look at a board hear of changes.", 10, 60_000),
        Setting("max_live", 20_000, "How many live subscriptions a server process takes.", 1, 1_000_000),
        Setting("max_live_per_key", 10_000, "How many of those one key may have; so many without a key.", 1, 1_000_000),
        Setting("url", None, "Commands other than serve: the server to talk to. Default: the data folder's own."),
        Setting("key", None, "Commands other than serve: the key to use. Default: the data folder's admin key."),
    )
}


@dataclass(frozen=True)
class Settings:
    host: str
    port: int
    data_dir: Path
    ledger: str
    index: str
    spool: Path | None
    kafka: str | None
    kafka_config: Path | None
    kafka_group: str
    kafka_topic_prefix: str
    ingest: int
    ingest_batch: int
    ingest_port: int
    dead_letter_alert_percent: int
    workers: int
    admin_key: str | None
    fd: int | None
    parent: int | None
    log_level: str
    max_boards: int
    max_batch: int
    max_pending: int
    write_timeout_ms: int
    ledger_connections: int
    index_timeout_ms: int
    repair_interval_ms: int
    jobs_interval_ms: int
    live_tick_ms: int
    max_live: int
    max_live_per_key: int
    url: str | None
    key: str | None

    @property
    def ledger_path(self) -> Path | None:
        """The file of a SQLite ledger; None: it is PostgreSQL."""
        if self.ledger.startswith(("postgresql://", "postgres://")):
            return None
        prefix, _, path = self.ledger.partition("sqlite:///")
        if prefix or not path:
            raise Invalid(
                "wrong_format",
                f"{hide_password(self.ledger)!r} is not a ledger that Laurels knows: it is sqlite:///PATH or "
                "postgresql://USER:PASSWORD@HOST:PORT/DATABASE.",
                field="LAURELS_LEDGER",
            )
        return Path(path)

    @property
    def is_shared(self) -> bool:
        """Whether other servers may use the same ledger and index."""
        return self.ledger_path is None

    @property
    def admin_key_path(self) -> Path:
        return self.data_dir / "admin.key"


def read_settings(flags: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> Settings:
    values: dict[str, Any] = {}
    for setting in SETTINGS.values():
        value = flags.get(setting.name)
        source = setting.flag
        if value is None:
            value, source = environment.get(setting.variable) or setting.default, setting.variable
        values[setting.name] = _check(setting, source, value)
    values["data_dir"] = Path(values["data_dir"])
    for name in ("spool", "kafka_config"):
        values[name] = Path(values[name]) if values[name] else None
    values["kafka_topic_prefix"] = values["kafka_topic_prefix"] or ""
    for name in ("fd", "parent"):
        values[name] = int(values[name]) if values[name] else None
    values["ledger"] = values["ledger"] or f"sqlite:///{values['data_dir'] / LEDGER_FILE}"
    settings = Settings(**values)
    _check_together(settings)
    return settings


def environment_of(settings: Settings) -> dict[str, str]:
    """The variables that give a process of the same program these settings, as one worker."""
    values = {setting.variable: getattr(settings, setting.name) for setting in SETTINGS.values()}
    values["LAURELS_WORKERS"] = 1
    return {name: str(value) for name, value in values.items() if value is not None}


def hide_password(url: str) -> str:
    """An address for people and logs."""
    hidden = re.sub(r"([?&][a-z_]*password=)[^&]*", r"\1***", url)
    return re.sub(r"(://[^:/@]*):[^@]*@", r"\1:***@", hidden)


def read_admin_key(settings: Settings) -> str:
    """The admin key: the setting, or the one in the data folder, which is made if it is missing."""
    if settings.admin_key:
        return _check_admin_key(settings.admin_key, "LAURELS_ADMIN_KEY")
    path = settings.admin_key_path
    if not path.exists():
        make_data_dir(path.parent)
        _write_secret(path)
    return _check_admin_key(path.read_text("utf-8").strip(), f"{path} (delete it to get a new one)")


def make_data_dir(folder: Path) -> None:
    """For its owner only: it has every player's scores, and a key."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise Invalid(
            "wrong_format", f"{folder} can't be the data folder: {error.strerror}.", field="LAURELS_DATA_DIR"
        ) from error


def _write_secret(path: Path) -> None:
    """Written aside, synced and moved, so that a crash leaves a whole key or none."""
    aside = path.with_suffix(".new")
    aside.unlink(missing_ok=True)
    fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(fd, f"{new_secret()}\n".encode())
        os.fsync(fd)
    finally:
        os.close(fd)
    aside.rename(path)


def _check_admin_key(key: str, source: str) -> str:
    if len(key) < ADMIN_KEY_CHARS:
        raise Invalid(
            "wrong_length",
            f"The admin key in {source} is shorter than {ADMIN_KEY_CHARS} characters.",
            field="LAURELS_ADMIN_KEY",
            rule=f">= {ADMIN_KEY_CHARS} characters",
        )
    return key


def _check(setting: Setting, source: str, value: Any) -> Any:
    if setting.minimum is None or setting.maximum is None:
        return value
    try:
        number = int(value)
    except ValueError:
        number = setting.minimum - 1
    if not setting.minimum <= number <= setting.maximum:
        raise Invalid(
            "out_of_range",
            f"{source} is {value!r}: it must be a whole number from {setting.minimum} to {setting.maximum}.",
            field=source,
            rule=f"{setting.minimum}..{setting.maximum}",
        )
    return number


def _check_together(settings: Settings) -> None:
    in_memory = settings.index == "memory://"
    if not in_memory and not settings.index.startswith(("redis", "rediss")):
        raise Invalid(
            "wrong_format",
            f"{hide_password(settings.index)!r} is not an index that Laurels knows: it is memory://, redis://, "
            "redis+sentinel:// or redis+cluster://.",
            field="LAURELS_INDEX",
        )
    if settings.is_shared and in_memory:
        raise Invalid(
            "wrong_format",
            "A PostgreSQL ledger is for several servers, and an index in memory is for one: set LAURELS_INDEX "
            "(--index) to redis://HOST:PORT.",
            field="LAURELS_INDEX",
        )
    if not settings.is_shared and not in_memory:
        raise Invalid(
            "wrong_format",
            "A Redis index is for several servers, and a SQLite ledger is for one: set LAURELS_LEDGER (--ledger) to "
            "postgresql://USER:PASSWORD@HOST:PORT/DATABASE.",
            field="LAURELS_LEDGER",
        )
    if settings.spool is not None and not settings.is_shared:
        raise Invalid(
            "wrong_format",
            "A spool keeps writes while PostgreSQL can't be reached. A SQLite ledger is on this disk: it needs none.",
            field="LAURELS_SPOOL",
        )
    _check_kafka(settings)
    if settings.workers > 1 and in_memory:
        raise Invalid(
            "out_of_range",
            "More than one worker needs a shared index: each would rank only what it wrote itself. "
            "The index is memory://, so --workers must be 1.",
            field="LAURELS_WORKERS",
            rule="1 with memory://",
        )
    if settings.url is not None and not settings.url.startswith(("http://", "https://")):
        raise Invalid(
            "wrong_format", f"{settings.url!r} must begin with http:// or https://.", field="LAURELS_URL", rule="a URL"
        )
    if settings.log_level not in {"debug", "info", "warning", "error"}:
        raise Invalid("not_a_choice", "The log level is debug, info, warning or error.", field="LAURELS_LOG_LEVEL")


def _check_kafka(settings: Settings) -> None:
    one = r"[^\s,:]+:[0-9]{1,5}"
    if settings.kafka is not None and re.fullmatch(f"{one}(,{one})*", settings.kafka) is None:
        raise Invalid(
            "wrong_format",
            f"{settings.kafka!r} does not name Kafka's brokers: it is HOST:PORT, or several with commas between them.",
            field="LAURELS_KAFKA",
        )
    if settings.ingest and settings.kafka is None:
        raise Invalid(
            "missing_field",
            "To take scores from Kafka its brokers must be named: set LAURELS_KAFKA (--kafka) to HOST:PORT.",
            field="LAURELS_KAFKA",
        )
    if re.fullmatch(r"[A-Za-z0-9._-]{0,100}", settings.kafka_topic_prefix) is None:
        raise Invalid(
            "wrong_format",
            "Names of topics have letters, digits, '.', '_' and '-'.",
            field="LAURELS_KAFKA_TOPIC_PREFIX",
        )
