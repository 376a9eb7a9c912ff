"""Settings that contradict each other are refused, with a message that says what to do."""

from pathlib import Path
from typing import Any

import pytest

from laurels.config import (
    environment_of,
    hide_password,
    read_admin_key,
    read_settings,
    read_sourced_settings,
    shown_value,
)
from laurels.errors import Invalid
from laurels.settings import SETTINGS

POSTGRES = "postgresql://u:p@h/db"
REDIS = "redis://:p@h"


@pytest.mark.parametrize(
    ("flags", "field", "text"),
    [
        ({"ledger": POSTGRES}, "LAURELS_INDEX", "redis://HOST:PORT"),
        ({"index": REDIS}, "LAURELS_LEDGER", "postgresql://"),
        ({"index": "rabbit://x"}, "LAURELS_INDEX", "redis+cluster://"),
        ({"ledger": "mysql://u:secret@h/db"}, "LAURELS_LEDGER", "sqlite:///PATH"),
        ({"workers": 2}, "LAURELS_WORKERS", "shared index"),
        ({"spool": "x"}, "LAURELS_SPOOL", "needs none"),
        ({"ledger": POSTGRES, "index": REDIS, "workers": 0}, "--workers", "1 to 64"),
    ],
)
def test_invalid_or_contradictory_settings_are_refused(flags: dict[str, Any], field: str, text: str) -> None:
    with pytest.raises(Invalid) as caught:
        read_settings(flags, {})
    assert caught.value.field == field
    assert text in caught.value.message
    assert "secret" not in caught.value.message


def test_worker_reads_the_same_settings_from_its_environment() -> None:
    flags = {"ledger": POSTGRES, "index": REDIS, "workers": 3, "spool": "s", "data_dir": "d", "log_level": "debug"}
    settings = read_settings(flags, {"LAURELS_MAX_BATCH": "7", "LAURELS_ADMIN_KEY": "x" * 20})
    again = read_settings({}, environment_of(settings))
    assert again.server.workers == 1
    for name in ("ledger", "index", "spool", "data_dir", "log_level", "max_batch", "admin_key"):
        assert again.value(SETTINGS[name]) == settings.value(SETTINGS[name]), name
    assert again.storage.spool == Path("s")


def test_passwords_in_urls_are_replaced_by_asterisks() -> None:
    assert hide_password("postgresql://me:se:cret@h:1/db") == "postgresql://me:***@h:1/db"
    assert hide_password("redis://:secret@h") == "redis://:***@h"
    sentinel = "redis+sentinel://:a@h/main?sentinel_password={}&ca=x"
    assert hide_password(sentinel.format("secret")) == sentinel.replace(":a@", ":***@").format("***")
    assert "b" not in hide_password("redis+sentinel://h:26379/main?sentinel_password=a@b").partition("password=")[2]
    assert hide_password("postgresql://h/db?password=secret") == "postgresql://h/db?password=***"
    assert hide_password("redis://h:6379/1") == "redis://h:6379/1"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1", "localhost"])
def test_server_on_a_local_address_accepts_a_short_admin_key(host: str) -> None:
    key = "sixteen-letters!"
    assert read_admin_key(read_settings({"host": host, "admin_key": key}, {})) == key


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_server_on_a_public_address_refuses_a_weak_admin_key(host: str) -> None:
    for weak in ("an-admin-key-of-31-characters..", "ab" * 20):
        with pytest.raises(Invalid, match=f"too weak for a server that listens on {host}"):
            read_admin_key(read_settings({"host": host, "admin_key": weak}, {}))
    strong = "an-admin-key-of-32-characters..."
    assert read_admin_key(read_settings({"host": host, "admin_key": strong}, {})) == strong


def test_generated_admin_key_is_strong_enough_for_a_public_address(tmp_path: Path) -> None:
    settings = read_settings({"host": "0.0.0.0", "data_dir": tmp_path / "data"}, {})
    assert read_admin_key(settings) == read_admin_key(settings)


FILE = """# comment
[server]
port = 9000
host = "0.0.0.0"

[limits]
rate_per_address = 5
"""


def test_flags_go_before_variables_before_the_file_before_defaults(tmp_path: Path) -> None:
    path = tmp_path / "laurels.toml"
    path.write_text(FILE)
    flags, environment = {"host": "127.0.0.1", "config": path}, {"LAURELS_PORT": "9001", "LAURELS_LOG_LEVEL": "debug"}
    settings, sources = read_sourced_settings(flags, environment)
    assert (settings.server.host, settings.server.port, settings.limits.rate_per_address) == ("127.0.0.1", 9001, 5)
    assert sources == {
        "host": "--host",
        "port": "LAURELS_PORT",
        "log_level": "LAURELS_LOG_LEVEL",
        "rate_per_address": f"rate_per_address in {path}:7",
    }
    alone, _ = read_sourced_settings({}, {"LAURELS_CONFIG": str(path)})
    assert (alone.server.host, alone.server.port, alone.server.log_level) == ("0.0.0.0", 9000, "info")


def test_secret_is_read_from_a_file(tmp_path: Path) -> None:
    secret = tmp_path / "key"
    secret.write_text("a-secret-of-many-letters\n")
    settings, sources = read_sourced_settings({}, {"LAURELS_ADMIN_KEY_FILE": str(secret)})
    assert (settings.server.admin_key, sources) == ("a-secret-of-many-letters", {"admin_key": "LAURELS_ADMIN_KEY_FILE"})
    assert shown_value(SETTINGS["admin_key"], settings) == "***"
    missing = {"LAURELS_ADMIN_KEY_FILE": str(tmp_path / "none")}
    with pytest.raises(Invalid, match="can't be read"):
        read_settings({}, missing)
    # The variable itself goes first.
    assert read_settings({}, missing | {"LAURELS_ADMIN_KEY": "x" * 20}).server.admin_key == "x" * 20


def test_all_mistakes_are_reported_at_once_with_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "laurels.toml"
    path.write_text(
        '[server]\nport = 70000\nhots = "x"\n\n[storage]\nworkers = 2\n\n[web]\nx = 1\n\n[live]\nmax_live = 1.5\n'
    )
    with pytest.raises(Invalid) as caught:
        read_settings({"config": path}, {"LAURELS_WORKERS": "many"})
    message = caught.value.message
    for text in (
        "6 settings are wrong",
        f"port in {path}:2 is 70000",
        f"{path}:3: 'hots' is no setting of [server]",
        f"{path}:6: 'workers' is no setting of [storage]; it belongs to [server]",
        f"{path}:8: 'web' is no section",
        f"max_live in {path}:12 must be a text or a whole number",
        "LAURELS_WORKERS is 'many'",
    ):
        assert text in message, message
    with pytest.raises(Invalid) as contradictions:
        read_settings({"workers": 2, "access_log": "some", "check_at": "noon"}, {})
    assert "3 settings are wrong" in contradictions.value.message


@pytest.mark.parametrize(("content", "words"), [("[server\n", "not TOML"), (None, "can't be read")])
def test_unreadable_configuration_file_is_refused(tmp_path: Path, content: str | None, words: str) -> None:
    path = tmp_path / "laurels.toml"
    if content is not None:
        path.write_text(content)
    with pytest.raises(Invalid, match=words):
        read_settings({"config": path}, {})
