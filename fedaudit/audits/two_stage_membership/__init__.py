"""Does a client's contribution survive aggregation, and point back at its data?

Question: a server adds up updates. Does one client's update still stand out of the sum (stage I)?
Does it raise the scores of that client's own records (stage II)? Does an attack on this tell
members from others?

Vantage: SERVER, which sees single updates (named or anonymous) or, behind a secure sum, only what
the model moved by. The audit skips what the view does not show, and notes it.

Paper: [TwoStage], Sections 3 to 5: Eqs. (1)-(32), Lemmas 1-8, Theorem 1. One file per part:

    theory.py       closed forms and bounds: scalars and arrays in, the same out
    survival.py     stage I of all clients of a round at once
    detection.py    power of stage I, also if noise hides the length of updates
    attribution.py  stage II of all clients of a round, and measurements along single updates
    survey.py       inputs and results of the attack, of one round and of all rounds
    audit.py        the audit: attack a view, score the guess
    scores.py       the score, put together from the files below
    risk.py         numbers of the published risk
    attack.py       the attack on matched records
    prediction.py   how well the published quantities foretell the attack
    lemmas.py       how often the lemmas hold
    tables.py       tables of clients
    by_update.py    numbers of every update
    facts.py        measures, words, remedies
    planning.py     cost and sample sizes

What a view shows of a round, and candidates of all clients side by side: `audits/records`.

Differs:
- Published SUR rises when updates cancel (r = 1, lambda = -0.99: 7.07), so stage I as printed never
  fails there. We add the shift test: with B known and Gaussian noise of deviation sigma per
  coordinate, it finds u with power Phi(|u|/sigma - z_{1-fpr}).
- Lemma 8 is not sufficient (scores +10 for 20 %, -1 for 80 % of the records: mean > 0, J < 0). The
  sound form is phi(<s, u>) > sqrt(Var)/4 + L |u|^2 / 8.
- The paper calibrates its smoothness constant on points of the segment that it tests. Ours comes
  from Hessian-vector products on a grid of the segment (a grid, not a supremum), for smooth
  activations only. The remainder itself is integrated, with an error estimate.
- Both scores of an increment share their random numbers.
- An update is taken from the model that its client was sent. If these models differ there is no
  W + B.
- The paper runs no attack. Our candidates are members and matched records that nobody trained on,
  so every value has a baseline: TS-MIA of records that nobody trained on is often as high.

Shapes: K clients, T rounds, n candidates per client, d parameters.
"""

from fedaudit.audits.two_stage_membership.audit import TwoStageMembership

__all__ = ["TwoStageMembership"]
