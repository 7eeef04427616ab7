"""Who sent this anonymous row?

Question: a shuffler removes the names from uploads. Can a server that holds a few records of every
site tell which site sent which row?
Vantage: SERVER behind a shuffler: anonymous rows, the models it sent out, and to whom.
Paper: none. Rows are linked by what crosses the wire, as a published attack does by content alone
([Fingerprint] Section 3.2).
Differs: linking gives pseudonyms; this audit gives names. P(client | row) joins three kinds of
evidence. Candidate records: of each site a few records that it may have trained on, half of which
it did; a row that comes from the site raises their scores and points along their gradient.
Enrolled records: further records that the adversary knows to be the site's. Links: rows of one
client share their evidence over rounds. Every kind gets a strength that is learnt without labels,
and one row per client and round is respected. The ceiling beside it is ours.
Shapes: T rounds of K rows (K, d) from the P clients that were asked; n records of each client.

    theory.py    chance, and the ceiling that differential privacy sets
    evidence.py  the attack: rows, models and records in, names out
    audit.py     the audit: read a view, score the guess
    scores.py    estimates, test, tables and notes
    planning.py  cost, missing needs, sample sizes
    facts.py     measures and words
"""

from fedaudit.audits.reidentification.audit import Reidentification

__all__ = ["Reidentification"]
