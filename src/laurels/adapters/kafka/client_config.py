"""What librdkafka is told beside the brokers: SASL, TLS and the like pass through from a file."""

from pathlib import Path

from laurels.errors import Invalid

# Without these, what is counted could be lost, or counted by one that is not asked to.
OURS = {
    "bootstrap.servers",
    "group.id",
    "enable.auto.commit",
    "enable.auto.offset.store",
    "auto.offset.reset",
    "acks",
    "request.required.acks",
    "enable.idempotence",
    "transactional.id",
    "group.instance.id",
    "enable.partition.eof",
}


def read_client_config(path: Path | None) -> dict[str, str]:
    """`name=value` lines; empty ones and those that begin with # are skipped."""
    if path is None:
        return {}
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise _bad(f"{path} can't be read: {error}.") from error
    config: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        name, equals, value = line.strip().partition("=")
        if not name or name.startswith("#"):
            continue
        if not equals:
            raise _bad(f"{path}, line {number}: it must be NAME=VALUE.")
        if name.strip() in OURS:
            raise _bad(f"{path}, line {number}: {name.strip()} is not to be set here: Laurels sets it.")
        config[name.strip()] = value.strip()
    return config


def _bad(text: str) -> Invalid:
    return Invalid("wrong_format", text, field="LAURELS_KAFKA_CONFIG")
