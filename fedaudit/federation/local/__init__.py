"""Local training: all clients of a round as one batched computation."""
