"""The command line as a user meets it: right exit codes, clear words, never a traceback."""

import csv
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

import fedaudit
from fedaudit.audits import facts_of
from fedaudit.results import Verdict

FAST = [
    "--set", "data.name=gaussian-mixture", "--set", "data.records=120", "--set", "task.hidden=[8]",
    "--set", "federation.clients=4", "--set", "federation.rounds=3",
]  # fmt: skip
CONTROL = re.compile(r"\x1b|\r|\x08")


def environment(**more):
    path = os.pathsep.join(
        [str(Path(fedaudit.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    )
    return {**os.environ, "PYTHONPATH": path, **more}


def shell(*arguments, cwd=None, **more):
    return subprocess.run(
        [sys.executable, "-m", "fedaudit", *arguments],
        capture_output=True, text=True, cwd=cwd, env=environment(**more), check=False, timeout=600,
    )  # fmt: skip


@pytest.fixture
def command(tmp_path, monkeypatch, in_process):
    """Run `fedaudit ...` in this process and in an empty folder."""
    monkeypatch.chdir(tmp_path)

    return in_process


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("cli") / "run"
    done = shell("run", *FAST, "--out", str(out))
    assert done.returncode == 0, done.stderr
    return out, done


@pytest.fixture
def run_folder(finished, tmp_path):
    return Path(shutil.copytree(finished[0], tmp_path / "run"))


# -- what goes right ------------------------------------------------------------------------------


def test_a_run_prints_findings_and_says_where_the_report_is(finished):
    out, done = finished
    assert re.search(r"^Updates of the same client\? +LEAK", done.stdout, re.MULTILINE)
    assert facts_of("fingerprint").words.learns in " ".join(done.stdout.split())
    assert "chance 25 %" in " ".join(done.stdout.split())
    assert str(out / "report.html") in done.stdout
    assert len(done.stdout.splitlines()) <= 15
    assert done.stderr.startswith("plan 1/1")


def test_verbose_prints_every_finding_in_full(finished):
    told = shell("report", str(finished[0]), "--verbose").stdout
    assert "fingerprint: linkage_accuracy" in told
    assert "baseline 25.0 %" in told
    assert "[Fingerprint]" in told
    assert "client 4" in told


def test_piped_output_has_no_control_codes_and_fits_80_columns(finished):
    _, done = finished
    assert not CONTROL.search(done.stdout + done.stderr)
    # a command and a path stay whole, to be pasted
    lines = [x for x in done.stdout.splitlines() if not x.startswith(("$ ", "report:"))]
    wide = [line for line in lines if len(line) > 80]
    assert wide == []


def test_json_is_all_there_is_on_standard_output(command):
    done = command("run", *FAST, "--json", "--out", "r")
    assert done.code == 0
    told = json.loads(done.out)
    assert {f["verdict"] for f in told["findings"]} <= set(get_args(Verdict))
    for finding in told["findings"]:
        e = finding["estimate"]
        assert e is None or (e["low"] <= e["value"] <= e["high"] and e["baseline"] is not None)
    again = command("report", "r", "--json")
    assert json.loads(again.out)["findings"] == told["findings"]
    audited = command("audit", "r", "--json")
    assert json.loads(audited.out)["findings"] == told["findings"]


def test_quiet_means_findings_only(command):
    done = command("run", *FAST, "--quiet", "--out", "r")
    assert done.err == ""
    assert "LEAK" in done.out
    assert "fingerprint: per client" not in done.out


def test_the_list_names_everything_with_a_line_and_settings(command):
    done = command("list")
    assert done.code == 0
    for section in ("datasets", "partitions", "tasks", "topologies", "protections", "audits"):
        assert f"\n{section}" in done.out
    told = json.loads(command("list", "--json").out)
    for rows in told.values():
        for name, line, settings in rows:
            assert len(line) > 5, name
            assert isinstance(settings, dict)
    audits = {row[0]: row[2] for row in told["audits"]}
    assert audits["fingerprint"]["confidence"] == ["a number above 0 and below 1", "0.95"]
    tasks = {row[0]: row[2] for row in told["tasks"]}
    assert tasks["mlp"]["hidden"] == ["a list of whole numbers of at least 1", "[128]"]
    only = command("list", "audits")
    assert "datasets" not in only.out
    assert command("list", "audit").code == 2


def test_data_sets_are_listed(command):
    done = command("data", "list")
    assert done.code == 0
    assert re.search(r"digits +built in", done.out)
    assert "mnist" in done.out
    unknown = command("data", "get", "mnits")
    assert unknown.code == 3
    assert "'mnist'" in unknown.err
    assert "nothing to fetch" in command("data", "get", "digits").out


def test_version_and_help(command):
    assert command("--version").out.strip() == fedaudit.__version__
    assert "Exit codes" in command("--help").out
    assert "--set" in command("run", "--help").out


def test_an_audit_of_a_trace_without_truth_runs_blind(command, run_folder):
    shutil.move(run_folder / "trace", run_folder.parent / "blind")
    done = command("audit", "blind")
    assert done.code == 0
    assert "Blind: the trace comes without truth" in " ".join(done.out.split())
    assert (run_folder.parent / "blind-audit" / "report.html").exists()
    with_truth = command("audit", "blind", "--truth", run_folder / "truth", "--out", "scored")
    assert "Blind" not in with_truth.out


def test_only_the_audits_asked_for(command, run_folder):
    shutil.rmtree(run_folder / "results")
    done = command("audit", run_folder, "--only", "coverage", "--json")
    assert [f["audit"] for f in json.loads(done.out)["findings"]] == ["coverage"]


@pytest.mark.parametrize("more", [{"NO_COLOR": "1", "FORCE_COLOR": "1"}, {"TERM": "dumb"}])
def test_colours_can_be_switched_off(finished, more):
    done = shell("report", str(finished[0]), **more)
    assert done.returncode == 0
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]m", done.stdout)


def test_a_poor_terminal_encoding_is_no_reason_to_fail(finished):
    done = shell("report", str(finished[0]), PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()


def test_a_reader_that_leaves_early_is_no_error():
    process = subprocess.Popen(
        [sys.executable, "-m", "fedaudit", "data", "list"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(),
    )  # fmt: skip
    process.stdout.close()
    err = process.stderr.read()
    process.stderr.close()
    process.wait(timeout=600)
    assert b"Traceback" not in err
    assert b"Exception" not in err


def test_the_bar_is_drawn_in_a_terminal_before_heavy_imports():
    """With a pseudo-terminal as standard error: time left is shown, and shown at once."""
    code = """
import sys
class Terminal:
    encoding = "utf-8"
    def __init__(self): self.text = ""
    def write(self, t): self.text += t; return len(t)
    def flush(self): pass
    def isatty(self): return True
    def fileno(self): return 2
sys.stderr = screen = Terminal()
from fedaudit.cli.output import Bar
with Bar(quiet=False) as bar:
    bar("train", 0, 1, "starting")
    bar._progress.refresh()
    early = "torch" not in sys.modules and "starting" in screen.text
    bar("train", 5, 10, "loading")
    for i in range(6, 9):
        bar("train", i, 10, f"loss {i}")
    bar._progress.refresh()
    speed = bar._progress.tasks[0].completed
print(early, speed, "8/10" in screen.text, ":" in screen.text)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        env=environment(TERM="xterm", COLUMNS="80"),
    )  # fmt: skip
    assert done.stdout.split() == ["True", "8", "True", "True"]


# -- what goes wrong ------------------------------------------------------------------------------


def table(path, rows, header=("a", "b", "label")):
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([header, *rows])


def good_rows(n=40):
    rng = np.random.default_rng(0)
    return [[f"{a:.2f}", f"{b:.2f}", int(a > b)] for a, b in rng.normal(size=(n, 2))]


def with_nan(folder):
    table(folder / "d.csv", [*good_rows(), ["nan", "1", "0"]])
    return '[data]\npath = "d.csv"\nlabel = "label"\n'


def with_nan_array(folder):
    x = np.zeros((30, 3), dtype="f4")
    x[4, 1] = np.nan
    np.savez(folder / "d.npz", x=x, y=np.arange(30) % 2)
    return '[data]\npath = "d.npz"\n'


def with_label_out_of_range(folder):
    y = np.arange(30) % 3
    np.savez(folder / "d.npz", x=np.ones((30, 3), "f4"), y=y, classes=np.array(["a", "b"]))
    return '[data]\npath = "d.npz"\n'


def with_one_class(folder):
    np.savez(folder / "d.npz", x=np.ones((30, 3), "f4"), y=np.zeros(30, dtype=np.int64))
    return '[data]\npath = "d.npz"\n'


def with_one_class_table(folder):
    table(folder / "d.csv", [[*row[:2], "same"] for row in good_rows()])
    return '[data]\npath = "d.csv"\nlabel = "label"\n'


def with_empty_client(folder):
    lines = [{"text": "word " * 60, "client": "long"}] * 9 + [{"text": "x", "client": "none"}] * 3
    (folder / "d.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return '[data]\npath = "d.jsonl"\nclient = "client"\n[partition]\nkind = "by_owner"\n'


def with_a_table(rest):
    def write(folder):
        table(folder / "d.csv", good_rows())
        return f'[data]\npath = "d.csv"\nlabel = "label"\n{rest}'

    return write


def plain(text):
    return lambda folder: text


BAD = {
    "empty client": (with_empty_client, 3, ["no examples"]),
    "NaN in a table": (with_nan, 3, ["missing", "d.csv"]),
    "NaN in an array": (with_nan_array, 3, ["not finite", "record 4"]),
    "label out of range": (with_label_out_of_range, 3, ["class"]),
    "one class, array": (with_one_class, 3, ["one class"]),
    "one class, table": (with_one_class_table, 3, ["one class"]),
    "more clients than records": (
        with_a_table("[federation]\nclients = 500\n"), 3, ["500 clients", "at most 32"],
    ),
    "misspelt key": (plain("[training]\nlerning_rate = 0.1\n"), 2, ["'learning_rate'"]),
    "misspelt section": (plain("[trainin]\n"), 2, ["'training'"]),
    "wrong type": (plain('[federation]\nclients = "5"\n'), 2, ["federation.clients", "'5'"]),
    "unknown audit": (plain("[audits.fingerprnt]\n"), 2, ["'fingerprint'"]),
    "unknown protection": (plain("[protections.shufle]\n"), 2, ["'shuffle'"]),
    "TOML syntax": (plain("seed = 1\n[data\n"), 2, ["line 2"]),
    "missing data file": (plain('[data]\npath = "nowhere.csv"\n'), 3, ["nowhere.csv"]),
    "no label column": (
        lambda folder: with_a_table("")(folder).replace('"label"', '"lable"'), 3, ["'label'"],
    ),
    "unknown data set": (plain('[data]\nname = "digts"\n'), 2, ["'digits'"]),
    "data set not fetched": (plain('[data]\nname = "mnist"\n'), 3, ["fedaudit data get mnist"]),
    "gpt on images": (plain('[task]\nkind = "gpt"\n'), 3, ["text"]),
    "mlp on text": (plain('[data]\nname = "docs"\n[task]\nkind = "mlp"\n'), 3, ["text"]),
    "cnn on a table": (with_a_table('[task]\nkind = "cnn"\n'), 3, ["images"]),
    "by_owner without owners": (with_a_table('[partition]\nkind = "by_owner"\n'), 3, ["client"]),
    "hierarchy that does not sum": (
        plain('[topology]\nkind = "hierarchical"\nsizes = [3, 4]\n'), 2, ["sum to 20", "[3, 4]"],
    ),
    "tensor pattern that matches nothing": (plain('[trace]\ntensors = ["conv*"]\n'), 2, ["conv*"]),
    "gossip without a graph": (plain('[federation]\naggregation = "gossip"\n'), 2, ["graph"]),
    "binary config": (lambda f: None, 2, ["UTF-8"]),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_mistake_ends_in_a_clear_message_and_its_exit_code(name, command, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDAUDIT_CACHE", str(tmp_path / "cache"))
    write, code, words = BAD[name]
    text = write(tmp_path)
    if text is None:
        (tmp_path / "c.toml").write_bytes(b"\xff\xfe\x00")
    else:
        (tmp_path / "c.toml").write_text(text)
    done = command("run", "c.toml", "--out", "run")
    assert (done.code, done.out) == (code, ""), done.err
    assert "fedaudit: " in done.err
    assert "expected:" in done.err
    assert "try:" in done.err
    assert "Traceback" not in done.err
    for word in words:
        assert word in done.err


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["run", "missing.toml"], 2),
        (["run", "--set", "federation.rounds"], 2),
        (["run", "--seed", "-1"], 2),
        (["run", "--seed", "one"], 2),
        (["run", "--nonsense"], 2),
        (["runn"], 2),
        (["audit"], 2),
        (["audit", "nowhere"], 3),
        (["report", "nowhere"], 3),
        (["init", "nowhere.csv"], 3),
        (["data", "get", "nothing"], 3),
    ],
)
def test_a_wrong_command_has_its_exit_code(command, arguments, code):
    done = command(*arguments)
    assert done.code == code
    assert "Traceback" not in done.err
    assert done.err.strip()


def test_the_real_program_ends_the_same_way(tmp_path):
    """A few in a real shell: what `main` promises holds for the process."""
    (tmp_path / "c.toml").write_text("[training]\nlerning_rate = 0.1\n")
    (tmp_path / "file").write_text("")
    cases = [
        (["run", "c.toml"], 2, "learning_rate"),
        (["run", "--nonsense"], 2, "nonsense"),
        (["run", *FAST, "--out", "file/below"], 3, "cannot use"),
    ]
    for arguments, code, word in cases:
        done = shell(*arguments, cwd=tmp_path)
        assert done.returncode == code
        assert word in done.stderr
        assert "Traceback" not in done.stderr
        assert done.stdout == ""


def test_a_trace_of_a_newer_format_asks_for_an_upgrade(command, run_folder):
    file = run_folder / "trace" / "manifest.json"
    raw = json.loads(file.read_text())
    raw["version"] = 99
    file.write_text(json.dumps(raw))
    done = command("audit", run_folder)
    assert done.code == 3
    assert "upgrade" in done.err
    assert "99" in done.err


@pytest.mark.parametrize("cut", [1, 200, 10_000_000])
def test_a_truncated_round_is_named(command, run_folder, cut):
    file = run_folder / "trace" / "round-00002.safetensors"
    file.write_bytes(file.read_bytes()[:-cut])
    done = command("audit", run_folder)
    assert done.code == 3
    assert "round-00002.safetensors" in done.err


def test_a_damaged_truth_is_named(command, run_folder):
    (run_folder / "truth" / "truth.json").write_text('{"clients": ')
    done = command("audit", run_folder)
    assert done.code == 3
    assert "truth.json" in done.err


def test_folders_that_are_not_ours_are_left_alone(command, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    done = command("run", *FAST, "--out", "mine")
    assert done.code == 3
    assert "letter.txt" in done.err
    assert [f.name for f in (tmp_path / "mine").iterdir()] == ["letter.txt"]


def test_another_experiment_is_not_overwritten(command, run_folder):
    done = command("run", *FAST, "--set", "federation.rounds=5", "--out", run_folder)
    assert done.code == 3
    assert "federation.rounds" in done.err
    assert command("run", *FAST, "--out", run_folder).code == 0


def test_init_does_not_overwrite(command, tmp_path):
    assert command("init").code == 0
    again = command("init")
    assert again.code == 2
    assert "--force" in again.err
    assert command("init", "--force").code == 0


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        MemoryError("Unable to allocate 3.00 TiB"),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:114] . DefaultCPUAllocator: can't allocate memory"
        ),
        ImportError("libtorch_cpu.so: failed to map segment from shared object"),
        RuntimeError("can't start new thread"),
    ],
)
def test_too_little_memory_is_said_and_not_shown_as_a_traceback(in_process, monkeypatch, error):
    from fedaudit.study import study

    def fail(*_, **__):
        raise error

    monkeypatch.setattr(study, "report_one", fail)
    done = in_process("report", "nowhere")
    assert done.code == 1
    assert "not enough memory" in done.err
    assert "ulimit" in done.err


def test_another_error_of_the_same_class_is_not_called_memory(in_process, monkeypatch):
    from fedaudit.study import study

    def fail(*_, **__):
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr(study, "report_one", fail)
    with pytest.raises(RuntimeError):
        in_process("report", "nowhere")


def test_a_process_without_memory_says_so(tmp_path):
    """`ulimit -v` as a user would set it: the libraries do not fit."""
    limited = f"ulimit -v 300000; exec {sys.executable} -m fedaudit run --out {tmp_path / 'run'} -q"
    done = subprocess.run(
        ["sh", "-c", limited], capture_output=True, text=True, env=environment(OMP_NUM_THREADS="1")
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "not enough memory" in done.stderr
