"""Shared test support: a plain model of Laurels, and real servers to start and kill."""
