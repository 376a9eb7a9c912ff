"""Code that both SQL ledgers share: statements, the mapping of values to columns, and reads of final ranks."""
