"""`fedaudit allocate`: from a table of clients to noise for each, and the files that carry it on.

OUT/allocation.csv    a row per client
OUT/allocation.json   the same with settings, bounds and what they assume
OUT/dp_sgd.toml       the user's config with one noise multiplier per client, by name

from_table.py  an allocation from a table of clients
from_run.py    what noise per client would do for a run
base.py        the config of the federation that the noise is for
clients.py     who takes part: names, sizes, groups and edges, as they were written down
leverages.py   a leverage by its name, or a blend of several
document.py    all of it as plain values
files.py       what is written
"""

from fedaudit.allocate.from_run import keep_allocation
from fedaudit.allocate.from_table import Allocated, allocate

__all__ = ["Allocated", "allocate", "keep_allocation"]
