"""Fixtures of the tests that play on both kinds of stores."""

from pathlib import Path

import pytest

from laurels.service import moderation, people
from support.pods import Arena
from support.services import Stage


@pytest.fixture(params=["embedded", "shared"])
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Stage:
    return Stage(request.param, tmp_path)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow a machine is, acts and names are waited for."""
    monkeypatch.setattr(moderation, "WAIT_S", 60)
    monkeypatch.setattr(people, "WAIT_S", 60)


@pytest.fixture
def arena(stage: Stage) -> Arena:
    return Arena(stage)


@pytest.fixture
def embedded(tmp_path: Path) -> Arena:
    return Arena(Stage("embedded", tmp_path))
