"""Compare the declared epsilon with a lower bound that a rehearsal with canaries measures.

canaries.py     canaries, promises and rehearsals as the adversary knows them
scores.py       likelihood ratios and guesses
gauge.py        noise and sampling without canaries
observed.py     read a rehearsal
released.py     read client canaries from uploads and sums
outcome.py      bounds, pooled and per client
instruments.py  what each number means beside its declared value
checks.py       estimates and bounds of all checks at one error rate
audit.py        the audit
facts.py        measures, words, remedies
"""

from fedaudit.audits.epsilon.audit import EpsilonAudit

__all__ = ["EpsilonAudit"]
