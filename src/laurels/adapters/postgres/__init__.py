"""The shared ledger: PostgreSQL 13 or newer, for any number of servers."""

from laurels.adapters.postgres.ledger import PostgresLedger

__all__ = ["PostgresLedger"]
