"""What do parameters, position and organisation reveal of a client's class mix?

Question: p_i is the share of a client's records in sensitive classes. How much better than one
guess for all does an observer do who sees every update, knows the graph, and knows who belongs
where?
Vantage: WIRETAP: the plaintext of all messages, the topology and the organisations.
Paper: [TopologyAwareDP] Sections III-B to III-D, IV and VI-E, Table I, Algorithm 1 (there: TADI).
Differs:
- A0 knows the target's true mean, which no adversary does: lift is stated against it (published)
  and against the mean of the shadows.
- The printed null (p constant) cannot fail. Here p is permuted across the clients of each
  federation, everything is learnt anew, and lift raises; so does lift of structure alone or of
  organisation alone where the prior ties no class to a place.
- The published organisation was a one-hot of the client's index, which memorises. Here it is the
  group, and a group column of single members is left out.
- Regressors are validated by federation, not by row; shadows run with the target's protection.
- Signals of the last layer's class rows are ours. Under noise at which the published list reads
  nothing they still read p (`features = "published"` leaves them out).
- The cosine to neighbours takes the graph to compute: A2-topo and A2-full have it, A1 does not. The
  paper's list has it in A1, where it gives the degree away (`features = "published"`).
- Channels alone, what-if, rounds needed and sums only are ours.
Shapes: n clients, T rounds, S signals; F shadow federations; p and guesses (n,).

Read `features` (what is seen), `channels` (who has what, and the null), `regressors`, `scores`,
`rewiring` (what-if), `audit`.
"""

from fedaudit.audits.topology_inference.audit import Inference, TopologyInference

__all__ = ["Inference", "TopologyInference"]
