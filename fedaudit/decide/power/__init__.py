"""Smallest detectable leak of a run, and the sample size that a smaller one needs."""
