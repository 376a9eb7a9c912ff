"""What several tests need: a plain model of Laurels, and real servers to start and kill."""
