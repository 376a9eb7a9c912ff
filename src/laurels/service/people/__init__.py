"""User profiles and erasure."""
