"""Laurels: a real-time leaderboard service.

The SQL database decides. The index is derived from it, by updates that are idempotent.
"""

from importlib.metadata import version

__version__ = version("laurels")
