"""Moderation: hide users, void and restore events."""
