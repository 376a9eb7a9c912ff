"""Imports go one way: entry points → service → ports and core ← adapters. Only `wiring` imports adapters."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "src/laurels"

# The other parts that each part may import.
ALLOWED = {
    "core": {"core", "errors"},
    "errors": set(),
    "ports": {"core", "ports"},
    "metrics": set(),
    "logs": set(),
    "tasks": set(),
    "tracing": set(),
    "retry": set(),
    "settings": set(),
    "service": {"core", "ports", "errors", "logs", "metrics", "retry", "service", "settings", "tasks", "tracing"},
    "adapters": {"core", "ports", "errors", "adapters", "logs", "retry", "tasks", "tracing"},
    "config": {"core", "errors", "settings"},
    "wiring": {"adapters", "config", "ports", "service", "settings", "errors", "tracing"},
    "http": {"core", "ports", "errors", "logs", "metrics", "service", "settings", "http", "__version__", "tracing"},
    "server": {"config", "errors", "http", "service", "settings", "tasks", "wiring", "tracing"},
    "web": set(),
    "client": {"client", "core", "errors", "http", "retry"},
    "bench": {"bench", "client", "core", "errors", "server", "__version__"},
    "cli": {
        "bench",
        "cli",
        "client",
        "config",
        "core",
        "errors",
        "logs",
        "server",
        "settings",
        "wiring",
        "__version__",
    },
}


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "laurels":
            parts = node.module.split(".")[1:]
            yield from [parts[0]] if parts else [alias.name for alias in node.names]


@pytest.mark.parametrize("part", ALLOWED)
def test_package_part_imports_only_allowed_parts(part: str) -> None:
    files = list((PACKAGE / part).rglob("*.py")) or [PACKAGE / f"{part}.py"]
    assert files
    for path in files:
        assert set(imports(path)) <= ALLOWED[part], path.relative_to(PACKAGE)


def test_every_package_part_has_an_import_rule() -> None:
    parts = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert parts - {"__init__", "__main__"} == set(ALLOWED)
