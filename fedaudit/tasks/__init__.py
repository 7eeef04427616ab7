"""Models and losses as pure functions on flat vectors."""
