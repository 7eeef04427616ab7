"""Which client trained on marked records, seen only through secure aggregation?"""

from fedaudit.audits.attribution.audit import Attribution
from fedaudit.audits.attribution.guess import AttributionGuess

__all__ = ["Attribution", "AttributionGuess"]
