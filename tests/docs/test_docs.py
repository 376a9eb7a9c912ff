"""The docs name everything there is, and nothing that is not."""

import re
from pathlib import Path

import pytest
import typer.main
from prometheus_client import REGISTRY

from laurels.cli import app
from laurels.config import SETTINGS
from laurels.core import limits
from laurels.errors import CODES
from laurels.http.routes import ADDRESSES

ROOT = Path(__file__).parents[2]
API = (ROOT / "docs/api.md").read_text("utf-8")
OPERATING = (ROOT / "docs/operating.md").read_text("utf-8")
ARCHITECTURE = (ROOT / "docs/architecture.md").read_text("utf-8")
SOURCES = [path for path in (ROOT / "src/laurels").rglob("*") if path.suffix in {".py", ".sql", ".html", ".js"}]


def test_every_call_is_in_the_api_docs_and_no_other() -> None:
    documented = set(re.findall(r"^\| `((?:GET|PUT|POST|PATCH|DELETE) [^`]+)` \|", API, re.MULTILINE))
    assert documented == {f"{address.method} {address.path}" for address in ADDRESSES}


def test_every_error_code_is_in_the_api_docs_and_is_raised_somewhere() -> None:
    errors = API[API.index("## Errors") :]
    assert dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", errors, re.MULTILINE)) == CODES
    code = "\n".join(path.read_text("utf-8") for path in SOURCES if path.name != "errors.py")
    assert [name for name in CODES if f'"{name}"' not in code] == []


def test_every_setting_is_in_the_operating_docs_and_no_other() -> None:
    rows = OPERATING[: OPERATING.index("## Commands")]
    documented = re.findall(r"^\| (?:`(--[\w-]+)`|—) \| `(\w+)` \| (.*?) \| (.*) \|$", rows, re.MULTILINE)
    assert [variable for _, variable, _, _ in documented] == [setting.variable for setting in SETTINGS.values()]
    for (_, _, default, text), setting in zip(documented, SETTINGS.values(), strict=True):
        assert default == ("" if setting.default is None else f"`{setting.default}`")
        assert text.startswith(setting.help)


def test_every_command_is_in_the_operating_docs() -> None:
    group = typer.main.get_command(app)
    names = []
    for name, command in group.commands.items():  # type: ignore[attr-defined]
        names += [f"{name} {each}" for each in command.commands] if hasattr(command, "commands") else [name]
    assert len(names) > 8
    assert [name for name in names if f"`laurels {name}" not in OPERATING] == []


def test_every_metric_is_in_the_operating_docs_and_no_other() -> None:
    section = OPERATING[OPERATING.index("## Metrics") : OPERATING.index("## Durability")]
    documented = dict(re.findall(r"^\| `(laurels_\w+)` \| (.*) \|$", section, re.MULTILINE))
    families = {family.name: family for family in REGISTRY.collect() if family.name.startswith("laurels_")}
    names = {f"{name}_total" if family.type == "counter" else name: family for name, family in families.items()}
    assert documented == {name: family.documentation for name, family in names.items()}


def test_every_module_is_in_the_architecture() -> None:
    tree = ARCHITECTURE[ARCHITECTURE.index("## The tree") : ARCHITECTURE.index("## One score")]
    for path in SOURCES:
        if path.stem not in {"__init__", "__main__"} and "migrations" not in path.parts:
            assert re.search(rf"\b{path.stem}\b", tree), path


def test_every_file_that_the_architecture_names_is_there() -> None:
    for name in re.findall(r"`([\w/]+\.py)", ARCHITECTURE):
        assert (ROOT / "src/laurels" / name).exists(), name


@pytest.mark.parametrize(
    "text",
    [
        f"1 to {limits.USER_ID_CHARS} characters, no control",
        f"1 to {limits.BOARD_UUID_CHARS}, 1 to {limits.POD_ID_CHARS} characters",
        f"1 to {limits.NAME_CHARS} characters",
        f"{limits.METADATA_BYTES} bytes of JSON, {limits.METADATA_DEPTH} deep",
        f"{limits.BODY_BYTES // 1024} KiB",
        f"of a batch {limits.BATCH_BODY_BYTES // 1024**2} MiB",
        f"of a set of users {limits.RANKS_BODY_BYTES // 1024**2} MiB",
        f"| idempotency key | 1 to {limits.IDEMPOTENCY_KEY_CHARS} characters",
        f"{limits.BATCH_ITEMS:,} items",
        f"| 1 to {limits.PAGE_ENTRIES} |",
        f"| 0 to {limits.AROUND_ENTRIES} |",
        f"| set of users | 1 to {limits.RANKS_USERS} |",
        f"| 1 to {limits.CAPACITY:,} |",
    ],
)
def test_the_limits_are_the_ones_in_the_code(text: str) -> None:
    assert text in API


def test_links_between_the_documents_lead_somewhere() -> None:
    for document in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]:
        for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", document.read_text("utf-8")):
            assert (document.parent / link).exists(), f"{document.name}: {link}"
