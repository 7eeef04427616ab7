"""`fedaudit gate`: check a run against limits on confidence bounds."""

from fedaudit.decide.gate.check import gate
from fedaudit.decide.gate.policy import Limit, Policy, load_policy, write_example

__all__ = ["Limit", "Policy", "gate", "load_policy", "write_example"]
