"""The pins of what the server installs: complete, with hashes, and equal to those of the development environment."""

import re
from importlib.metadata import requires, version
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
RUNTIME = (ROOT / "requirements.txt").read_text("utf-8")
PIN = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)", re.MULTILINE)


def pins(text: str) -> dict[str, str]:
    return {str(canonicalize_name(name)): pinned for name, pinned in PIN.findall(text)}


def installed_closure() -> set[str]:
    """Return the packages that the server needs on this machine, as their metadata say."""
    found: set[str] = set()
    missing = [("laurels", "")]
    while missing:
        name, extras = missing.pop()
        for text in requires(name) or ():
            need = Requirement(text)
            if need.marker is not None and not any(
                need.marker.evaluate({"extra": extra}) for extra in extras.split(",")
            ):
                continue
            inner = str(canonicalize_name(need.name))
            if inner not in found or need.extras:
                found.add(inner)
                missing.append((inner, ",".join(sorted(need.extras)))) if inner != "laurels" else None
    return found


def test_runtime_pins_are_those_of_the_development_environment() -> None:
    runtime, development = pins(RUNTIME), pins((ROOT / "constraints.txt").read_text("utf-8"))
    differing = {name for name in runtime if name in development and runtime[name] != development[name]}
    assert differing == set()
    # Only what other versions of Python or other systems need is missing there.
    others = {name for name in runtime if name not in development}
    assert others <= {"async-timeout", "colorama"}, others


def test_runtime_pins_are_complete_and_have_hashes() -> None:
    pinned = pins(RUNTIME)
    needed = installed_closure()
    assert {"starlette", "msgspec", "hiredis", "cryptography"} <= needed
    assert needed - pinned.keys() == set()
    assert {name: version(name) for name in needed} == {name: pinned[name] for name in needed}
    entries = [entry for entry in re.split(r"\n(?=[A-Za-z])", RUNTIME) if PIN.match(entry)]
    assert len(entries) == len(pinned)
    assert [entry for entry in entries if "--hash=sha256:" not in entry] == []


def test_pins_name_no_host() -> None:
    for name in ("requirements.txt", "constraints.txt"):
        assert re.findall(r"https?://|--(?:extra-)?index-url|--find-links|^-i ", (ROOT / name).read_text("utf-8")) == []
