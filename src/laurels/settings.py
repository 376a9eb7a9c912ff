"""Every setting, declared once: name, type, default, limits and help.

The flag, the environment variable, the command's help and the tables in docs/operations/settings.md derive from it. The
settings are in groups, and each part of the program receives the group that it uses. `config.py` reads them.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple


def _setting(default: Any, help_text: str, minimum: int | None = None, maximum: int | None = None) -> Any:
    return field(default=default, metadata={"help": help_text, "minimum": minimum, "maximum": maximum})


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """The server process."""

    host: str = _setting("127.0.0.1", "Address to listen on.")
    port: int = _setting(8080, "Port to listen on; 0 selects a free port.", 0, 65535)
    data_dir: Path = _setting(Path("./laurels-data"), "Folder of the SQLite ledger and of the admin key.")
    admin_key: str | None = _setting(
        None, "The admin key. Without it, the first start creates one in DATA_DIR/admin.key."
    )
    workers: int = _setting(
        1,
        "Number of processes of `laurels serve` or `laurels ingest`. More than one needs PostgreSQL and Redis.",
        1,
        64,
    )
    fd: int | None = _setting(None, "Inherited socket to listen on, instead of host and port.")
    parent: int | None = _setting(None, "Process id of the parent. The server stops when that process ends.")
    max_connections: int = _setting(50_000, "Maximum number of open connections per server process.", 1, 1_000_000)
    max_connections_per_address: int = _setting(
        10_000,
        "Maximum number of open connections per client address (of IPv6: per 64 bits) and process, except for "
        "trusted proxies.",
        1,
        1_000_000,
    )
    access_log: str = _setting("off", "Calls to log: off, errors (status 400 and above) or all.")
    metrics_key: str | None = _setting(
        None, "Key that `GET /metrics` needs. Without it, everybody who reaches the server can read the metrics."
    )
    audit_days: int = _setting(
        400, "Retention of the audit log of administrative calls, in days; 0: forever.", 0, 36_500
    )
    otlp_traces: str | None = _setting(
        None,
        "URL of an OpenTelemetry collector for traces: http://HOST:4318/v1/traces. Needs `laurels[otel]`.",
    )
    trace_percent: int = _setting(1, "Percentage of calls that are traced, if there is a collector.", 0, 100)
    log_level: str = _setting("info", "Log level: debug, info, warning or error.")

    @property
    def admin_key_path(self) -> Path:
        return self.data_dir / "admin.key"


@dataclass(frozen=True, kw_only=True)
class OAuthSettings:
    """OAuth 2 bearer tokens of another identity provider."""

    oauth_issuer: str | None = _setting(
        None, "Issuer (`iss`) of the tokens. Its OpenID Connect metadata names the signing keys."
    )
    oauth_jwks: str | None = _setting(
        None, "URL or file of the signing keys (JWKS), if they are not those in the metadata of the issuer."
    )
    oauth_audience: str | None = _setting(None, "The `aud` that tokens must have. Required with an issuer or keys.")
    oauth_role_claim: str = _setting(
        "laurels_role", "Claim with the role: admin, server, client or player. Dots lead into objects: `a.b`."
    )
    oauth_default_role: str | None = _setting(
        None, "Role of tokens without that claim: server, client or player. Without it, they are refused."
    )
    oauth_pod_claim: str = _setting("laurels_pod", "Claim with the pod.")
    oauth_pod: str | None = _setting(None, "Pod of tokens without that claim.")
    oauth_player_claim: str = _setting("sub", "Claim with the user id of a player.")
    oauth_scope_prefix: str = _setting(
        "laurels:", "Prefix of the scopes in the claim `scope`, such as `laurels:scores:write`."
    )

    @property
    def is_on(self) -> bool:
        return self.oauth_issuer is not None or self.oauth_jwks is not None


@dataclass(frozen=True, kw_only=True)
class StorageSettings:
    """The ledger and the index."""

    ledger: str | None = _setting(
        None, "Database of the scores: sqlite:///PATH or postgresql://. Default: sqlite:///DATA_DIR/laurels.db."
    )
    index: str = _setting(
        "memory://", "Store of the ranks: memory://, redis://, redis+sentinel:// or redis+cluster://."
    )
    spool: Path | None = _setting(
        None, "Folder that keeps writes while PostgreSQL is unreachable. Without it, writes are rejected meanwhile."
    )
    ledger_connections: int = _setting(8, "Connections to PostgreSQL per server process.", 1, 1000)
    index_timeout_ms: int = _setting(1000, "Timeout of a call to Redis, in milliseconds.", 10, 60_000)
    repair_interval_ms: int = _setting(
        2000, "Interval at which a shared index is compared with recent changes of the ledger, in milliseconds.",
        100, 600_000,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class KafkaSettings:
    """Scores from Kafka, and events for other systems in Kafka."""

    kafka: str | None = _setting(None, "Kafka brokers: HOST:PORT,HOST:PORT.")
    kafka_config: Path | None = _setting(
        None, "File with librdkafka settings (SASL, TLS), one NAME=VALUE per line, passed through."
    )
    kafka_group: str = _setting("laurels", "Consumer group, shared by the servers of one ledger.")
    kafka_topic_prefix: str = _setting("", "Prefix of all topic names, for several ledgers on one Kafka cluster.")
    ingest: int = _setting(0, "1: also read scores from Kafka (serve --ingest).", 0, 1)
    ingest_batch: int = _setting(1000, "Maximum number of Kafka records counted together.", 1, 100_000)
    ingest_port: int = _setting(
        8081, "Port for the health checks and metrics of `laurels ingest`; 0 selects a free port.", 0, 65535
    )
    dead_letter_alert_percent: int = _setting(
        5, "Percentage of a pod's records that may become dead letters per minute before an alert.", 0, 100
    )


@dataclass(frozen=True, kw_only=True)
class WriteSettings:
    """The batches of events that are written to the ledger."""

    max_batch: int = _setting(1000, "Maximum number of events per transaction.", 1, 100_000)
    max_pending: int = _setting(
        50_000, "Maximum number of events that wait to be written; one pod may use half of them.", 2, 10_000_000
    )
    write_timeout_ms: int = _setting(10_000, "Timeout of a write, in milliseconds.", 1, 600_000)


@dataclass(frozen=True, kw_only=True)
class JobSettings:
    """Periodic jobs."""

    jobs_interval_ms: int = _setting(
        500, "Interval at which a server checks for due jobs, in milliseconds.", 10, 600_000
    )
    check_at: str = _setting(
        "03:00",
        "Time of day (UTC) of the daily check, which compares all rankings with the events and rebuilds those that "
        "differ: HH:MM, or off.",
    )


@dataclass(frozen=True, kw_only=True)
class LimitSettings:
    """Limits of callers, and load shedding."""

    rate_per_address: int = _setting(
        1000,
        "Calls per second from an address without a key, with client keys and with player tokens; 0: any number.",
        0,
        10_000_000,
    )
    rate_per_key: int = _setting(0, "Calls per second with a server or client key; 0: any number.", 0, 10_000_000)
    rate_per_player: int = _setting(20, "Calls per second with the tokens of a player; 0: any number.", 0, 10_000_000)
    rate_per_pod: int = _setting(0, "Calls per second about a pod; 0: any number.", 0, 10_000_000)
    wrong_keys_per_minute: int = _setting(
        60, "Calls per minute with wrong keys from an address, before it gets 429; 0: any number.", 0, 1_000_000
    )
    trusted_proxies: str = _setting(
        "",
        "Addresses or networks of proxies, separated by commas, whose X-Forwarded-For names the client.",
    )
    target_delay_ms: int = _setting(
        50,
        "Calls that would wait longer than this, in milliseconds, are refused with 503; 0: never.",
        0,
        60_000,
    )


@dataclass(frozen=True, kw_only=True)
class QuotaSettings:
    """Quotas of a pod. A pod can have others: `PATCH /api/v1/pods/{podId}`."""

    max_boards: int = _setting(10_000, "Boards per pod that are not archived; 0: any number.", 0, 1_000_000)
    max_windows: int = _setting(
        20_000, "Windows with resets per pod, on all its boards together; 0: any number.", 0, 10_000_000
    )
    min_reset_s: int = _setting(
        60, "Shortest time between two resets of a window, in seconds; 0: any time.", 0, 31_536_000
    )
    max_users: int = _setting(
        100_000_000, "Users per pod, counted once per board; 0: any number.", 0, 1_000_000_000_000
    )
    max_parts: int = _setting(
        4096,
        "Parts of rankings per pod, on all its split boards together: shards times windows; 0: any number.",
        0,
        1_000_000,
    )
    max_events_per_day: int = _setting(
        1_000_000_000, "Accepted scores per pod and day (UTC); 0: any number.", 0, 1_000_000_000_000
    )


@dataclass(frozen=True, kw_only=True)
class LiveSettings:
    """Live updates."""

    live_tick_ms: int = _setting(100, "Minimum interval between live updates of a board, in milliseconds.", 10, 60_000)
    max_live: int = _setting(20_000, "Maximum number of live subscriptions per server process.", 1, 1_000_000)
    max_live_per_address: int = _setting(
        1000,
        "Maximum number of live subscriptions per address without a key, with client keys and with player tokens.",
        1,
        1_000_000,
    )
    max_live_per_key: int = _setting(
        10_000, "Maximum number of live subscriptions per key, and of all callers without a key.", 1, 1_000_000
    )


@dataclass(frozen=True, kw_only=True)
class ClientSettings:
    """The server that commands such as `top` and `import` call."""

    url: str | None = _setting(
        None, "URL of the server, for commands that call one. Default: the server that uses the data folder."
    )
    key: str | None = _setting(
        None, "Key to authenticate with, for commands that call a server. Default: the admin key of the data folder."
    )


@dataclass(frozen=True, kw_only=True)
class Settings:
    server: ServerSettings = ServerSettings()
    oauth: OAuthSettings = OAuthSettings()
    storage: StorageSettings = StorageSettings()
    kafka: KafkaSettings = KafkaSettings()
    writes: WriteSettings = WriteSettings()
    jobs: JobSettings = JobSettings()
    limits: LimitSettings = LimitSettings()
    quotas: QuotaSettings = QuotaSettings()
    live: LiveSettings = LiveSettings()
    client: ClientSettings = ClientSettings()

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Settings":
        """Return settings with these values, by name, and the defaults for the others."""
        unknown = values.keys() - SETTINGS.keys()
        assert not unknown, f"there are no settings {unknown}"
        return cls(
            **{
                group.name: group.type(**{name: values[name] for name in _names(group.type) if name in values})  # type: ignore[operator]
                for group in dataclasses.fields(cls)
            }
        )

    def value(self, setting: "Setting") -> Any:
        return getattr(getattr(self, setting.group), setting.name)


class Setting(NamedTuple):
    """The declaration of a setting."""

    group: str
    name: str
    type: Any
    default: Any
    help: str
    minimum: int | None
    maximum: int | None

    @property
    def variable(self) -> str:
        return f"LAURELS_{self.name.upper()}"

    @property
    def flag(self) -> str:
        return f"--{self.name.replace('_', '-')}"

    @property
    def shown_default(self) -> str:
        """Return the default as help and docs show it; empty if there is none."""
        return "" if self.default is None else str(self.default)


def _names(group: Any) -> list[str]:
    return [each.name for each in dataclasses.fields(group)]


SETTINGS = {
    each.name: Setting(group.name, each.name, each.type, each.default, **each.metadata)
    for group in dataclasses.fields(Settings)
    for each in dataclasses.fields(group.type)  # type: ignore[arg-type]
}
