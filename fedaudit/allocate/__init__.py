"""`fedaudit allocate`: noise per client from a table of clients.

OUT/allocation.csv    a row per client
OUT/allocation.json   the same with settings, bounds and their assumptions
OUT/dp_sgd.toml       the user's config with one noise multiplier per client, by name

from_table.py  allocate noise to the clients of a table
from_run.py    what noise per client would change for a run
base.py        the config of the federation that the noise is for
clients.py     names, sizes, groups and edges of the clients
leverages.py   a leverage by its name, or a blend of several
document.py    the allocation as plain values
files.py       the files that an allocation writes
page.py        the allocation in words, and on the terminal
"""

from fedaudit.allocate.from_run import keep_allocation
from fedaudit.allocate.from_table import Allocated, AllocationOptions, allocate

__all__ = ["Allocated", "AllocationOptions", "allocate", "keep_allocation"]
