"""What do secure-aggregation queries reveal together?

Question: a server may ask for sums over subsets. Which single clients, or groups below the
threshold, can it solve for from all answers together?
Vantage: SERVER (the party that asks), from the ledger: which clients are in which sum. The values
of the sums do not determine what can be solved; they are read only to check the solution.
Paper: [FedAttr] Sections 3.1, 4.1 and 5: the subset queries, and the claim that they preserve the
guarantee of secure aggregation.
Differs: Theorem 4 there covers one released estimate alone. Here all answers of a round count
together with the training aggregate. One round of the published 2MK sums has rank K, so every
update can be solved for. Updates change across rounds. Stacked rounds show what could be solved if
a client sent the same update every time. A best linear guess shows how close the server comes
if only a part of an update persists.
Shapes: queries (Q, K); sums (Q, d); estimates (K, d).
"""

from fedaudit.audits.query_plan.audit import QueryPlan
from fedaudit.audits.query_plan.theory import PlanAudit, align_clients, audit_plan, solution

__all__ = ["PlanAudit", "QueryPlan", "align_clients", "audit_plan", "solution"]
