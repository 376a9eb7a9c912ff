"""The docs name everything that exists, and nothing else."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from laurels.core import limits
from laurels.errors import CODES
from laurels.http.routes import ROUTES
from laurels.settings import Settings

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
API = (ROOT / "docs/api.md").read_text("utf-8")
ARCHITECTURE = (ROOT / "docs/architecture.md").read_text("utf-8")
SOURCES = [path for path in (ROOT / "src/laurels").rglob("*") if path.suffix in {".py", ".sql", ".html", ".js"}]
# Files that the architecture page names by their folder.
BY_FOLDER = {"statements", "migrations", "functions", "types"}


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    """Return tools/docs.py, which writes the tables."""
    spec = importlib.util.spec_from_file_location("docs_tool", ROOT / "tools/docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_tables_in_the_docs_match_the_code(tool: ModuleType) -> None:
    for page in PAGES:
        text = page.read_text("utf-8")
        assert tool.render(text) == text, f"{page.name} has an outdated table: run `make docs`"


def test_every_generated_table_is_in_the_docs() -> None:
    named = re.findall(r"<!-- table: ([\w ]+) -->", "\n".join(page.read_text("utf-8") for page in PAGES))
    wanted = ["metrics", "errors", "commands"]
    wanted += [f"settings {group}" for group in vars(Settings())]
    wanted += [f"calls {tag}" for tag in dict.fromkeys(route.tag for route in ROUTES)]
    assert sorted(set(wanted) - set(named)) == []


def test_every_error_code_is_raised_somewhere() -> None:
    code = "\n".join(path.read_text("utf-8") for path in SOURCES if path.name != "errors.py")
    assert [name for name in CODES if f'"{name}"' not in code] == []


def test_every_module_is_listed_in_the_architecture_page() -> None:
    tree = ARCHITECTURE[ARCHITECTURE.index("## The tree") : ARCHITECTURE.index("## Where to change what")]
    for path in SOURCES:
        if path.stem not in {"__init__", "__main__"} and BY_FOLDER.isdisjoint(path.parts):
            assert re.search(rf"\b{path.stem}\b", tree), path


def test_every_file_named_in_the_architecture_page_exists() -> None:
    for name in re.findall(r"`([\w/]+\.py)", ARCHITECTURE):
        found = [(folder / name).exists() for folder in (ROOT / "src/laurels", ROOT)]
        # A name without a folder follows one with it, in a list.
        found += [True for folder in ("src/laurels", "tests") if "/" not in name and list((ROOT / folder).rglob(name))]
        assert any(found), name


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
def test_limits_in_the_api_docs_match_the_code(text: str) -> None:
    assert text in API


def test_links_between_docs_pages_are_valid() -> None:
    for document in PAGES:
        text = document.read_text("utf-8")
        for link, anchor in re.findall(r"\]\(([^)#\s:]*)(?:#([^)]*))?\)", text):
            target = document if not link else (document.parent / link).resolve()
            assert target.exists(), f"{document.name}: {link}"
            if anchor:
                assert anchor in headings(target), f"{document.name}: {link}#{anchor}"


def headings(document: Path) -> set[str]:
    """Return the anchors that GitHub makes for the headings of a page."""
    found = re.findall(r"^#+ (.*)$", document.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}
