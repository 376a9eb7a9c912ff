"""The statements of the SQLite ledger, by name: its own and the shared ones."""

from laurels.adapters.sql.files import load_statements

SQL = load_statements("laurels.adapters.sqlite", sqlite=True)
