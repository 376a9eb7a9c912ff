"""The write path: from a submission to the ledger."""
