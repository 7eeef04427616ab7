"""Can a dishonest server tell that a record is in a client's data, even under local DP?

Question: the server plants weights in the model that it sends. The gradient that comes back reveals
whether a target record is in the client's data. Clients may randomise their records first. How
often does the server win, and what does theory allow?

Vantage: SERVER, which also chooses and sends the model.

Paper: [ActiveMembership], Sections 3 and 4, Appendices B to G. One file per part:

    theory.py     Theorems 1 to 4, exact values and ceilings
    channel.py    a local DP mechanism as the server knows it
    draws.py      fast sampling from its distribution
    games/        Figures 11 and 12 in closed form, thousands of games at once
    fc.py, attention.py, patterns.py    the two adversaries: weights, closed forms, embeddings
    planted.py    their models and the loss, in torch
    adversary.py  both adversaries as players: tuning, scoring, planting
    probe.py      the hook, and the reading of the answers
    audit.py      the audit
    rates.py, ceilings.py, scores.py    games won, bounds on them, and the result

Differs:
- Theorem 1 is printed with "=" and proved with ">=": here it is a lower bound. Under GRR the
  advantage of this adversary is exactly (p - q)(1 - q)^(n - 1), reported beside Theorem 4. The
  largest total variation between two records' reports bounds every adversary, tighter than
  Theorem 2.
- Theorem 2 holds for the exact budget. BitRand and OME far exceed the budget they claim. Their
  claimed budgets give no ceiling; such a number is shown as a reference only.
- Theorem 3: in Eq. (5) the square belongs to M, and the logits carry 1/sqrt(d - 1). sqrt(M^2 + R^2)
  does not bound a protected norm: M + R does. Delta^eps is measured.
- Terms of Theorem 3: the statement draws both patterns of P_proj protected; here the one that is
  projected on is the clean target, which is planted, as in the proof. The statement prints m_max
  with clean patterns; here they are protected, as Lemma 2 needs them. The box lies around the mean
  of all records, as stated; the proof has the mean of one record, and takes it for long enough.
- The released code computes no gradient. Here the federation engine sends the planted model, a
  client computes its gradient with torch, and the attack reads it from the recorded trace. The
  closed form makes the same decisions.
- The published design has 20 trials of 200 games; games of one trial share data and target. Their
  intervals resample whole trials. Games drawn independently have exact (Clopper-Pearson) intervals.
- In a federation the attack also works through DP-SGD, sums and shuffling. With one detector per
  client, a sum alone reveals who holds the target.

Shapes: G games, n records per client, N in the universe, r features (letters: `theory`).
"""

from fedaudit.audits.active_membership.audit import ActiveMembership

__all__ = ["ActiveMembership"]
