"""A table of six clients, and allocations from it."""

import pytest

from fedaudit.allocate import AllocationOptions, allocate
from fedaudit.progress import no_progress

TABLE = """\
site,n,region,risk
Zagreb,9930,south,0.5
Aachen,3163,north,0.1
Malmo,2691,north,0
Brno,1807,west,2.5
Turin,655,south,1
Cork,351,west,0.2
"""


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "clients.csv"
    path.write_text(TABLE, encoding="utf-8")
    return path


@pytest.fixture
def allocated():
    """allocated(table, size_column="n", ...): a small budget, and the fastest accountant."""

    def run(table, *, out=None, progress=no_progress, **more):
        setting = {"rounds": 10, "batch_size": 32, "budget": 0.05, "accountant": "rdp"}
        options = AllocationOptions(**{**setting, **more})
        return allocate(table, options, out=out, progress=progress)

    return run


@pytest.fixture
def refused(table, allocated):
    """refused(error, size_column="n", ...): what is said, on one line."""

    def said(error, **given):
        with pytest.raises(error) as caught:
            allocated(table, **given)
        assert "try:" in str(caught.value)
        return " ".join(str(caught.value).split())

    return said
