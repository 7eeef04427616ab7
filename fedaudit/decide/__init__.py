"""Decisions on finished runs: gate, diff, power, harden and query plans."""
