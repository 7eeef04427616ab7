"""What do parameters, position and organisation reveal of a client's class mix?

Question: p_i is the share of a client's records in sensitive classes. An observer sees every
update, and knows the graph and each client's organisation. How much better does it guess p_i than
with one guess for all clients?
Vantage: WIRETAP: the plaintext of all messages, the topology and the organisations.
Paper: [TopologyAwareDP] Sections III-B to III-D, IV and VI-E, Table I, Algorithm 1 (there: TADI).
Differs:
- A0 knows the target's true mean, which no adversary knows. Lift is stated against it (published)
  and against the mean of the shadows.
- The printed null (p constant) cannot fail. Ours permutes p across the clients of each federation,
  learns everything anew, and raises an error on lift. Lift of structure or organisation alone
  raises too if the prior ties no class to a place.
- The published organisation is a one-hot of the client's index, which memorises. Ours is the
  group, and is left out if every group has a single member.
- Regressors are validated by federation, not by row; shadows run with the target's protection.
- Signals of the last layer's class rows are ours. They still reveal p under noise that hides it
  from the published list (`features = "published"` leaves them out).
- The cosine to neighbours needs the graph: A2-topo and A2-full have it, A1 does not. The paper's
  list has it in A1, where it reveals the degree (`features = "published"`).
- Channels alone, what-if, rounds needed and sums only are ours.
Shapes: n clients, T rounds, S signals; F shadow federations; p and guesses (n,).

Read in this order: `features` (signals), `channels` (adversaries and the null), `regressors`,
`scores`, `rewiring` (what-if), `audit`.
"""

from fedaudit.audits.topology_inference.audit import Inference, TopologyInference

__all__ = ["Inference", "TopologyInference"]
