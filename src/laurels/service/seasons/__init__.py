"""The life cycle of a board's periods, from open to frozen."""
