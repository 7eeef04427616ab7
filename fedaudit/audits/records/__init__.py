"""Candidate records under recorded models: pools, scores, and the models that a view shows.

Shared by the audits that ask about records.
"""
