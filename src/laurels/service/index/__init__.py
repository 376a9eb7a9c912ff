"""The index: its updates, repairs, rebuilds, and its verification against the ledger."""
