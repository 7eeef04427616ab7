"""Who sent this anonymous update?

Question: a shuffler removes the names from uploads. Can the server link the updates of one client
across rounds by their content alone?
Vantage: SERVER behind a shuffler: anonymous rows of every round, and the models it sent out.
Paper: [Fingerprint] Section 3.2, Eqs. (10, 11); scores of Section 4.1.
Differs: rows are permuted before linking, because assignment solvers break ties in file order and
degenerate input would then score 1.0. Chance is a linker that deals one label per row and round
(K=20, T=10: purity 0.217); the published random row has independent uniform labels (0.206) and is
kept as method `random`. Features are unit rows as the text says, or standardised per column as the
published code did, by choice. Of more than 800 rows `kmeans` clusters the strongest directions, as
many as clients. `tracking`, `joint`, linkage accuracy, intervals, sketches and all per-client
figures are ours.
Shapes: T rounds of rows (K_t, d); labels (K_t,) per round, equal labels meaning "same client".

Read `features` (what is compared), `directions` (what sets rows apart), `linkers` (who belongs
together), `scores` (how well), `audit`; `products` is the arithmetic beneath.
"""

from fedaudit.audits.fingerprint.audit import Fingerprint, Linkage

__all__ = ["Fingerprint", "Linkage"]
