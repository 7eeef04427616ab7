"""Score at the sites: guesses go out, counts come back, and the truth stays where it is.

    attack   at the server: a trace in, guesses out (JSON). No truth is read.
    score    at a site: guesses and the site's own recording in, counts out.
    merge    anywhere: guesses and the counts of the sites in, a report out.

A site finds its own messages among the guesses by their digests, since it sent these numbers. It
returns counts over all rounds: all links, links found, and links expected by chance. Counts do not
reveal which message came from which site.

For membership, a site first writes candidate records, half of them its own, and keeps the key
(`ask`). The server scores them blindly. The site counts the pairs of a member and a non-member that
the scores put in the right order. These records leave the site: choose records that may.

For epsilon, a site that trains with DP-SGD adds canaries to its gradients (`SiteCanaries`): which
ones stays in its key. The server guesses; the site counts how many guesses are right.

One file per verb; `files.py` holds the file formats, `recordings.py` reads a site's own trace.
"""

from __future__ import annotations

from fedaudit.sites.ask import ask
from fedaudit.sites.attack import attack
from fedaudit.sites.canaries import SiteCanaries
from fedaudit.sites.merge import SiteCounts, merge
from fedaudit.sites.score import score

__all__ = ["SiteCanaries", "SiteCounts", "ask", "attack", "merge", "score"]
