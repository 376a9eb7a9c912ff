"""`laurels config`: the settings, their sources, the check for scripts, and an example that is valid."""

import json
import tomllib
from pathlib import Path

from laurels.settings import SETTINGS
from support.running import RunningServer, laurels


def test_settings_are_shown_with_their_sources_and_without_secrets(tmp_path: Path) -> None:
    path = tmp_path / "laurels.toml"
    path.write_text("[server]\nmax_connections = 77\n")
    shown = laurels(
        "config", "--json", data_dir=tmp_path, config=str(path), admin_key="a-very-secret-admin-key", log_level="debug"
    )
    assert shown.returncode == 0, shown.stderr
    assert "a-very-secret" not in shown.stdout
    rows = {row["name"]: row for row in json.loads(shown.stdout)}
    assert rows.keys() == SETTINGS.keys()
    assert (rows["max_connections"]["value"], rows["max_connections"]["source"]) == (
        "77",
        f"max_connections in {path}:2",
    )
    assert (rows["log_level"]["value"], rows["log_level"]["source"]) == ("debug", "LAURELS_LOG_LEVEL")
    assert (rows["admin_key"]["value"], rows["audit_days"]["source"]) == ("***", "default")
    table = laurels("config", data_dir=tmp_path)
    assert "max_connections" in table.stdout


def test_check_reports_every_mistake_and_exits_with_2(tmp_path: Path) -> None:
    path = tmp_path / "laurels.toml"
    path.write_text("[server]\nport = -1\nwrokers = 2\n")
    checked = laurels("config", "check", data_dir=tmp_path, config=str(path))
    assert checked.returncode == 2
    assert ":2 is -1" in checked.stderr
    assert ":3: 'wrokers'" in checked.stderr
    path.write_text("[server]\nmax_connections = 9\n")
    assert laurels("config", "check", data_dir=tmp_path, config=str(path)).returncode == 0


def test_server_starts_with_the_example_as_its_file(tmp_path: Path) -> None:
    example = laurels("config", "example", data_dir=tmp_path).stdout
    assert tomllib.loads(example).keys() == {setting.group for setting in SETTINGS.values()}
    path = tmp_path / "laurels.toml"
    # Without the marks of comments, every line is valid, too.
    path.write_text(
        "\n".join(line[1:] if line[:1] == "#" and line[1:2] != " " else line for line in example.splitlines())
    )
    values = tomllib.loads(path.read_text())
    assert sum(len(group) for group in values.values()) > 50
    path.write_text(example.replace("#max_connections = 50000", "max_connections = 4321"))
    with RunningServer(tmp_path / "data", config=str(path)) as server, server.client() as client:
        assert client.get("/readyz").status_code == 200
