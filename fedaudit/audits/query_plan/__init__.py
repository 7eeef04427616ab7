"""What does a set of secure-aggregation queries give away on its own?

Question: a server may ask for sums over subsets. Which single clients, or groups below the
threshold, can it solve for from the answers together?
Vantage: SERVER (whoever asked), from the ledger: which clients are in which sum. The values of the
sums do not matter for what can be solved; they are read only to show that it works.
Paper: [FedAttr] Sections 3.1, 4.1 and 5: the subset queries, and the claim that they keep what
secure aggregation promises.
Differs: Theorem 4 there speaks of one released estimate alone. Here all answers of a round count
together, the training aggregate among them: one round of the published 2MK sums has rank K, so
every update can be solved for. Across rounds updates change; stacked rounds say what could be
solved of the part that persists, as if a client sent the same update every time, and a guess that
knows better shows how close one comes.
Shapes: queries (Q, K); sums (Q, d); estimates (K, d).
"""

from fedaudit.audits.query_plan.audit import QueryPlan
from fedaudit.audits.query_plan.theory import PlanAudit, align_clients, audit_plan, solution

__all__ = ["PlanAudit", "QueryPlan", "align_clients", "audit_plan", "solution"]
