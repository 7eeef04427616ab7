"""Who sent this anonymous update?

Question: a shuffler removes the names from uploads. Can the server link the updates of one client
across rounds by their content alone?
Vantage: SERVER behind a shuffler: anonymous rows of every round, and the models it sent out.
Paper: [Fingerprint] Section 3.2, Eqs. (10, 11); scores of Section 4.1.
Differs: rows are permuted before linking, because assignment solvers break ties in file order and
degenerate input would then score 1.0. Chance is a linker that gives the rows of a round different
random labels (K=20, T=10: purity 0.217). The published random row has independent uniform labels
(0.206); it is the method `random`. Features are unit rows as in the text or, by choice,
standardised columns as in the published code. With more than 800 rows, `kmeans` clusters the
strongest directions, as many as clients. `tracking`, `joint`, linkage accuracy, intervals, sketches
and all per-client values are ours.
Shapes: T rounds of rows (K_t, d); labels (K_t,) per round, equal labels meaning "same client".

    audit.py     the audit: attack a view, score the guess
    linkers.py   labels from rows; what rows are made of is in `audits/rows`
    known.py     links that need no attack
    null.py      linkage under random labels
    scores.py    the score
    facts.py     measures, words, remedies
    planning.py  cost and sample sizes
"""

from fedaudit.audits.fingerprint.audit import Fingerprint, Linkage

__all__ = ["Fingerprint", "Linkage"]
