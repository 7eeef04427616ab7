"""Was this record used?

Question: an adversary holds a record. Does the model, or a client's update, tell whether the client
trained on it?
Vantage: PUBLIC (the released model), a client or a wiretap (every round's model), the server with
names (single updates besides).
Paper: [LiRA] "Membership Inference Attacks From First Principles" (2022): likelihood ratio of two
Gaussians fitted to shadow models with and without the record; offline, without it only. RMIA,
"Low-Cost High-Power Membership Inference Attacks" (2024): ratio of the record to records of the
population.
Differs: shadows are whole federations, trained as one batch after the recorded config, from the
model that clients first received. Every shadow trains on a random half of the candidates, so that
each record is in about half of the shadows. Rounds are summed as if independent. RMIA compares with
gamma = 1 and with all population records.
Shapes: S shadows, P clients, n candidates each, (P, n); T models; Z population records.

Files: `attack` (arrays in, arrays out), `observed` (scores of what a view shows), `scores`,
`audit`.
"""

from fedaudit.audits.membership.audit import Membership

__all__ = ["Membership"]
