"""Fixtures for tests that run in embedded and shared mode."""

from pathlib import Path

import pytest

from laurels.service.moderation import moderation
from laurels.service.people import profiles
from support.pods import Arena
from support.services import Stage


@pytest.fixture(params=["embedded", "shared"])
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Stage:
    return Stage(request.param, tmp_path)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise the time limits for moderation actions and names, so that a slow machine does not fail tests."""
    monkeypatch.setattr(moderation, "WAIT_S", 60)
    monkeypatch.setattr(profiles, "WAIT_S", 60)


@pytest.fixture
def arena(stage: Stage) -> Arena:
    return Arena(stage)


@pytest.fixture
def embedded(tmp_path: Path) -> Arena:
    return Arena(Stage("embedded", tmp_path))
