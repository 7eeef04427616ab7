"""`fedaudit gate`: limits on confidence bounds, and a run that has to keep them."""

from fedaudit.decide.gate.check import gate
from fedaudit.decide.gate.policy import Limit, Policy, load_policy, write_example

__all__ = ["Limit", "Policy", "gate", "load_policy", "write_example"]
