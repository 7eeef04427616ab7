"""Can a dishonest server tell that a record is in a client's data, even under local DP?

Question: the server plants weights in the model that it sends; the gradient that comes back says
whether a target record is in the client's data. Clients may randomise their records first. How
often does the server win, and what does theory allow?

Vantage: SERVER, which also chooses the model and sends it.

Paper: [ActiveMembership], Sections 3 and 4, Appendices B to G. One file per part:

    theory.py     Theorems 1 to 4, what is exact, and ceilings
    channel.py    a mechanism of local DP as the server knows it
    draws.py      fast draws from its law
    games/        Figures 11 and 12 in closed form, thousands of games at once
    fc.py, attention.py, patterns.py    the two adversaries: weights, closed forms, embeddings
    planted.py    their models and the loss, in torch
    adversary.py  both as players: tuned, scored, planted
    probe.py      the hook, and reading what comes back
    audit.py, scores.py                 the audit

Differs:
- Theorem 1 is printed with "=" and proved with ">=": it is a lower bound here. Under GRR the
  advantage of this adversary is exactly (p - q)(1 - q)^(n - 1), beside Theorem 4. The largest total
  variation between two records' reports bounds every adversary, tighter than Theorem 2.
- Theorem 2 holds for the exact budget. BitRand and OME exceed what they claim by far, and a ceiling
  from the claim does not bind them: it is shown as such.
- Theorem 3: the square belongs to M, the logits carry 1/sqrt(d - 1), sqrt(M^2 + R^2) bounds nothing
  and is measured instead, and so is Delta^eps.
- The released code computes no gradient. Here the planted model goes through the federation engine,
  a client computes a gradient by torch, and the attack reads it from the recorded trace; the closed
  form decides the same games alike.
- 20 x 200 games share data and targets within a trial: whole trials are resampled. Independent
  games have exact intervals.
- In a federation: the same through DP-SGD, sums and shuffling. A detector of its own for every
  client tells whose data hold the target, from a sum alone.

Shapes: G games, n records per client, N in the universe, r features.
"""

from fedaudit.audits.active_membership.audit import ActiveMembership

__all__ = ["ActiveMembership"]
