"""Laurels: a real-time leaderboard service. SQL decides, the index follows, and following is idempotent."""

from importlib.metadata import version

__version__ = version("laurels")
