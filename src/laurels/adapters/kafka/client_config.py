"""Settings for librdkafka from a file, for example SASL and TLS."""

from pathlib import Path

from laurels.errors import Invalid

# Settings that Laurels sets. With other values, events could be lost, or counted by the wrong consumer.
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
    """Read a file of `name=value` lines. Empty lines and lines that start with # are skipped."""
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
            raise _bad(f"{path}, line {number}: not in the form NAME=VALUE.")
        if name.strip() in OURS:
            raise _bad(
                f"{path}, line {number}: {name.strip()} can't be set here, because Laurels sets it. Remove the line."
            )
        config[name.strip()] = value.strip()
    return config


def _bad(text: str) -> Invalid:
    return Invalid("wrong_format", text, field="LAURELS_KAFKA_CONFIG")
