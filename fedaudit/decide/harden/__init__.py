"""`fedaudit harden`: from limits to the protection that keeps them at the least cost.

limits.py    which limits, and whether the runs of one protection keep them
utility.py   what a protection costs: paired with the unprotected runs of the same seeds
choices.py   what can be chosen: ways an upload travels, ladders of noise, who must be trusted
bench.py     runs choices, each an ordinary run directory; resumes, keeps to a time budget
search.py    `harden`: which choices are tried in which order, the decision, the files
outcome.py   what was found; page.py and tradeoff.py turn it into text and figures
"""

from fedaudit.decide.harden.search import harden

__all__ = ["harden"]
