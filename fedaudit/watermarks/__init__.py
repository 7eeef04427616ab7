"""Marks that a corpus owner plants in documents or records, and scores that detect them."""
