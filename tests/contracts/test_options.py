"""Messages name parameters; only the command line names its options.

Outside `fedaudit.cli` no text contains an option of a command, so that a Python user reads of
parameters. Every parameter that a message names in backticks is an option of the commands whose
errors and reports come from that file, so that a user of the command line reads of options.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import fedaudit
from fedaudit.cli.app import COMMANDS
from fedaudit.cli.options import RENAMED, RENAMED_IN, in_reports, options_of, with_options

ROOT = Path(fedaudit.__file__).parent

COMMAND_LINES = {
    "data/fetch/clients.py": "options of npm and pip",
    "decide/gate/policy.py": "`fedaudit gate --init`, the way to get an example; and its own text",
    "decide/harden/limits.py": "`fedaudit gate --init`",
    "protections/guard/files.py": "the source that is stored in a calibration",
    "recorders/flower/engine.py": "options of flower-supernode",
    "recorders/flower/mods.py": "options of flower-supernode",
    "recorders/flower/secure.py": "options of flower-supernode",
    "recorders/flower/runtime.py": "options of flwr and of flower-superlink",
    "reporting/first_page.py": "the next command, printed on the first page",
    "study/audit_request.py": "the command that asks for the same audit, printed in the report",
    "study/chapters.py": "the commands that repeat a run, printed in the report",
    "study/init.py": "a comment in the config that it writes",
}
"""File -> why it prints command lines."""

SPEAKS_TO = {
    "allocate": ("allocate",),
    "audits/active_membership": ("audit",),
    "audits/fingerprint": ("audit",),
    "audits/attribution": ("audit",),
    "audits/planning.py": ("power",),
    "audits/membership": ("audit",),
    "audits/reconstruction": ("audit",),
    "audits/reidentification": ("audit",),
    "audits/two_stage_membership": ("audit",),
    "decide/diff": ("diff",),
    "decide/gate": ("gate",),
    "decide/harden": ("harden",),
    "decide/power": ("power",),
    "decide/query_plans.py": ("plan",),
    "decide/received.py": ("guard",),
    "files.py": ("run", "audit", "sweep", "harden", "allocate"),
    "foreign.py": ("audit",),
    "knowledge/builder.py": ("audit",),
    "knowledge/owner_marks.py": ("audit",),
    "knowledge/record_sets.py": ("audit",),
    "knowledge/records.py": ("audit",),
    "knowledge/shadows.py": ("run", "audit", "sweep", "harden"),
    "protections/guard": ("guard",),
    "protections/local_dp": ("ldp",),
    "protections/noise_allocation": ("allocate",),
    "recorders/flower/runtime.py": ("run",),
    "setup/config.py": ("run",),
    "setup/identity.py": ("run", "audit", "sweep"),
    "sites/attack.py": ("attack",),
    "sites/coins.py": ("attack",),
    "sites/score.py": ("score",),
    "study/audit_request.py": ("audit",),
    "study/auditing.py": ("audit",),
    "study/chapters.py": ("audit",),
    "study/init.py": ("init",),
    "study/lock.py": ("run", "audit", "sweep", "harden"),
    "study/purge.py": ("purge",),
    "study/replay.py": ("audit",),
    "study/run.py": ("run",),
    "study/seal.py": ("run", "audit"),
    "study/study.py": ("run",),
    "study/summary.py": ("audit",),
    "study/sweep.py": ("sweep",),
    "workers.py": ("run", "audit", "sweep", "harden"),
}
"""File or folder -> commands that print its messages."""

PYTHON_ONLY = {
    "decide/harden/choices.py": "names the section [harden] of a config",
    "sites/score.py": "`tensors` and `dtype` are fields of a guess",
    "stats/clustering.py": "arguments that audits choose",
    "stats/intervals.py": "arguments that audits choose",
    "trace/recorder.py": "arguments of Recorder, which other software calls",
}
"""File -> why parameters in its messages have no option."""

OPTION = re.compile(r"(?<![\w-])--[a-z]")
CODE = re.compile(r"`([^`\n]+)`")
PARAMETER = re.compile(r"[a-z]\w*(=.+)?")


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """(line, text) of string literals that are not docstrings; a hole of an f-string is 'X'."""
    tree = ast.parse(path.read_text())
    skipped = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            skipped |= {id(part) for part in node.values}
            parts = (p.value if isinstance(p, ast.Constant) else "'X'" for p in node.values)
            yield node.lineno, "".join(map(str, parts))
        elif id(node) not in skipped and isinstance(getattr(node, "value", None), str):
            yield node.lineno, node.value


FILES = {
    str(p.relative_to(ROOT)): p for p in sorted(ROOT.rglob("*.py")) if p.parent != ROOT / "cli"
}


def commands_of(file: str) -> tuple[str, ...]:
    return next((c for place, c in SPEAKS_TO.items() if f"{file}/".startswith(f"{place}/")), ())


def test_only_the_command_line_names_options():
    found = {file for file, path in FILES.items() for _, t in texts(path) if OPTION.search(t)}
    assert found == set(COMMAND_LINES)


def test_every_parameter_in_a_message_is_an_option_of_its_commands():
    wrong = []
    for file, path in FILES.items():
        for line, text in texts(path):
            for code in CODE.findall(text):
                if code.startswith("fedaudit.") and "(" in code:
                    said = with_options(f"`{code}`", "run")
                    wrong += [(file, line, code)] if not said.startswith("fedaudit ") else []
                elif PARAMETER.fullmatch(code) and file not in PYTHON_ONLY:
                    missing = [c for c in commands_of(file) or ("",) if not translated(code, c)]
                    wrong += [(file, line, code, c) for c in missing]
    assert not wrong


def translated(code: str, command: str) -> bool:
    said = with_options(f"`{code}`", command)
    return said.split()[0] in options_of(command)


@pytest.mark.parametrize("command", RENAMED_IN)
def test_a_renamed_option_exists(command):
    assert command in COMMANDS
    assert set(RENAMED_IN[command].values()) <= options_of(command)


def test_a_name_that_is_shared_is_an_option_of_some_command():
    everywhere = set().union(*map(options_of, COMMANDS))
    assert set(RENAMED.values()) <= everywhere


@pytest.mark.parametrize(
    ("command", "text", "said"),
    [
        ("run", "another folder with `out`", "another folder with --out"),
        ("run", "anew with `fresh=True`", "anew with --fresh"),
        ("audit", '`as_if=["clip", "secure_sum"]`', "--as clip --as secure_sum"),
        ("power", '`fedaudit.audit("a run", audits=["x"])`', "fedaudit audit 'a run' --only x"),
        ("audit", "`fedaudit.power(RUN, audits=['x'])`", "fedaudit power RUN --audit x"),
        ("run", "`fedaudit.Trace.open(x)`", "`fedaudit.Trace.open(x)`"),
        ("run", "`fedaudit.run(`", "`fedaudit.run(`"),
        ("gate", "`fedaudit gate --init FILE`", "`fedaudit gate --init FILE`"),
        ("diff", "`out`", "`out`"),
        ("unknown", "`out`", "`out`"),
    ],
)
def test_translation(command, text, said):
    assert with_options(text, command) == said


def test_a_report_names_options_of_an_audit_where_its_command_has_none(monkeypatch):
    monkeypatch.setattr("sys.argv", ["fedaudit", "report", "run"])
    assert in_reports("given records (`data`)") == "given records (--data)"
