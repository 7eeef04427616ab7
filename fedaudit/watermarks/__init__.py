"""Marks that a corpus owner puts into documents or records, and scores that look for them."""
