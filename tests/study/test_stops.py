"""Whatever is stopped between any two changes of the disk can be done again, and ends whole."""

import os
import shutil
from pathlib import Path

import pytest

from fedaudit.study import audit, report, run, study
from fedaudit.study.purge import find, purge
from fedaudit.study.seal import examine_run
from fedaudit.trace import Trace

SMALL = {
    "seed": 1,
    "data": {"name": "gaussian-mixture", "records": 60},
    "task": {"kind": "mlp", "hidden": [2]},
    "federation": {"clients": 3, "rounds": 2},
    "audits": {"coverage": {}},
}
MORE = SMALL | {"audits": {"coverage": {}, "query_plan": {}}}
STUDY = SMALL | {"compare": {"base": "plain", "shuffled": {"protections": {"shuffle": {}}}}}


class Stopped(BaseException):
    """As a kill: nothing tidies up after it but what the system does."""


class Stopper:
    """Ends everything at the `last`-th change of a name on the disk, before it is made."""

    def __init__(self, last):
        self.last, self.done = last, 0

    def __enter__(self):
        self.real = {name: getattr(os, name) for name in ("replace", "unlink", "rmdir", "mkdir")}
        for name, real in self.real.items():
            setattr(os, name, self._counting(real))
        return self

    def __exit__(self, *_):
        for name, real in self.real.items():
            setattr(os, name, real)

    def _counting(self, real):
        def call(*arguments, **options):
            if self.done >= self.last:
                raise Stopped
            self.done += 1
            return real(*arguments, **options)

        return call


def run_first(folder):
    run(SMALL, folder)


def run_more(folder):
    run(MORE, folder)


def run_fresh(folder):
    run(SMALL, folder, fresh=True)


def audit_more(folder):
    audit(folder, ["query_plan"])


def study_fresh(folder):
    study.study(study.plan([STUDY]), folder, fresh=True)


def purge_all(folder):
    import datetime

    for one in find(folder, below=True):
        purge(one, datetime.date(2027, 1, 1))


def whole(folder):
    for place in [folder, *(f for f in folder.iterdir() if (f / "run.json").exists())]:
        wrong = [c for c in examine_run(place) if not c.fine]
        assert not wrong, (place.name, wrong)
    if (folder / "trace").exists():
        Trace.open(folder / "trace")
    if (folder / "results").exists():
        assert report(folder).findings


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """A finished run, and a finished study: what the later commands begin with."""
    home = tmp_path_factory.mktemp("begun")
    run_first(home / "run")
    study_fresh(home / "study")
    return home


FLOWS = {
    "run": (None, run_first, run_first),
    "more": ("run", run_more, run_more),
    "audit": ("run", audit_more, audit_more),
    "fresh": ("run", run_fresh, run_first),  # whoever comes back types the plain command
    "fresh twice": ("run", run_fresh, run_fresh),
    "study fresh": ("study", study_fresh, study_fresh),
    "purge": ("run", purge_all, purge_all),
    "purge a study": ("study", purge_all, purge_all),
}


def stop_everywhere(flow, begun, tmp_path, step):
    start, first, again = FLOWS[flow]
    last = 0
    while True:
        folder = tmp_path / f"at-{last}"
        if start is not None:
            shutil.copytree(begun / start, folder)
        stopper = Stopper(last)
        try:
            with stopper:
                first(folder)
        except Stopped:
            _forget_lock(folder)
            again(folder)
            whole(folder)
        else:
            whole(folder)
            return last
        shutil.rmtree(folder)
        last += step


def _forget_lock(folder):
    """The process that held it is this one: to a later process it would be gone."""
    for file in folder.rglob("running*.part"):
        file.unlink()


@pytest.mark.parametrize("flow", FLOWS)
def test_a_stop_at_some_changes_of_the_disk(flow, begun, tmp_path):
    assert stop_everywhere(flow, begun, tmp_path, step=11) > 0


@pytest.mark.nightly
@pytest.mark.parametrize("flow", FLOWS)
def test_a_stop_at_any_change_of_the_disk(flow, begun, tmp_path):
    assert stop_everywhere(flow, begun, tmp_path, step=1) > 0


def test_the_stopper_stops(tmp_path):
    with pytest.raises(Stopped), Stopper(0):
        Path(tmp_path / "a").mkdir()


NOT_MADE_AGAIN = {
    "truth/seal.json",  # nothing else vouches for the truth: refused
    "checkpoint/state-00001.safetensors",  # of no use to a finished run: named by verify
    "checkpoint/state-00002.safetensors",
}


def test_files_of_a_finished_run_that_a_power_cut_emptied_are_made_again(begun, tmp_path):
    files = [f.relative_to(begun / "run") for f in (begun / "run").rglob("*") if f.is_file()]
    assert set(map(str, files)) > NOT_MADE_AGAIN
    for n, file in enumerate(f for f in files if str(f) not in NOT_MADE_AGAIN):
        folder = Path(shutil.copytree(begun / "run", tmp_path / str(n)))
        (folder / file).write_bytes(b"")
        run_first(folder)
        whole(folder)
