"""Alias of `fedaudit.recorders.flower`, for imports in Flower apps."""

import sys

from fedaudit.recorders import flower

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fedaudit.recorders.flower import *  # noqa: F403

sys.modules[__name__] = flower
