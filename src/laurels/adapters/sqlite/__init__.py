"""The embedded ledger: one SQLite file, one write thread, a few read threads."""

from laurels.adapters.sqlite.ledger import SqliteLedger

__all__ = ["SqliteLedger"]
