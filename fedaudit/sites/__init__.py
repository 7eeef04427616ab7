"""Truth that stays at the sites: guesses go out, counts come back, nobody holds it all.

    attack   at the server: a trace in, guesses out (JSON). No truth is read.
    score    at a site: guesses and the site's own recording in, counts out.
    merge    anywhere: guesses and the counts of the sites in, a report out.

A site finds its own messages among the guesses by their digest: it sent these numbers. What it
returns are counts over all rounds (links there were, links that were found, links that chance would
have found), from which nobody learns which message was whose.

For membership a site first writes records to be asked about, half of them its own, and keeps the
key (`ask`); the server scores them blindly; the site counts how many pairs of a member and another
record were put in the right order. Records do leave the site then: ask about those that may.

One file per verb; `files.py` holds what travels between them, `recordings.py` a site's own trace.
"""

from __future__ import annotations

from fedaudit.sites.ask import ask
from fedaudit.sites.attack import attack
from fedaudit.sites.merge import Site, merge
from fedaudit.sites.score import score

__all__ = ["Site", "ask", "attack", "merge", "score"]
