"""`fedaudit harden`: find the cheapest protection that keeps given limits.

limits.py    the limits, checked on the runs of one protection
utility.py   cost of a protection, paired with unprotected runs of the same seeds
choices.py   candidates: transports of uploads, noise ladders, parties to trust
cells.py     runs candidates as ordinary run directories; resumes, keeps a time budget
search.py    `harden`: order of the search, decision, files
outcome.py   result of a search; page.py and tradeoff.py turn it into text and figures
"""

from fedaudit.decide.harden.search import harden

__all__ = ["harden"]
