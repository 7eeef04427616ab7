"""Reconstruction and membership: published tables, and the attacks of other packages."""
