"""Boards, pods and keys, and access checks."""
