"""Every argument of every command that names a file, with things that are no such file.

Each ends with a message and an exit code: never with a traceback, and never by waiting.
"""

import os
import shlex
import signal

import pytest

DEEP = "[" * 100_000
TEXTS = {
    "empty": b"",
    "nul": b"\0" * 64,
    "deep json": b'{"a":' * 50_000,
    "deep toml": b"a = " + DEEP.encode(),
    "long number": b"a = " + b"9" * 5_000,
    "object": b'{"format": "fedaudit-guesses", "version": 1, "audits": []}',
    "not text": bytes(range(128, 256)) * 4,
    "archive": b"PK\x03\x04" + bytes(60),
    "surrogate": b'{"a": "\\ud800"}',
}
THINGS = [*TEXTS, "pipe", "device", "folder", "loop", "gone"]


def put(file, thing):
    """Something under a name that is not what the name says."""
    if thing in TEXTS:
        file.write_bytes(TEXTS[thing])
    elif thing == "pipe":
        os.mkfifo(file)
    elif thing == "device":
        file.symlink_to("/dev/zero")
    elif thing == "folder":
        file.mkdir()
    elif thing == "loop":
        file.symlink_to(file.name)


COMMANDS = """
run X.toml --out out
run X.csv --out out
run --set data.path="X.csv" --out out
run --set data.path="X.npz" --out out
run --set data.path="X.jsonl" --out out
run --set data.path="X-idx3-ubyte" --out out
run --set data.path="X.csv.gz" --out out
run --engine flower --superlink 203.0.113.1:9 --root-certificates X.pem --out out
audit X
audit good --truth X
audit good --data X.csv --only two_stage_membership
audit good --opacus X.json --only coverage --out out
report X
gate X --policy good.toml
gate good --policy X.toml
diff X good
diff good X
power X
guard X.npz
guard X.safetensors
guard X
guard good.npz --previous X.npz
guard good.npz --calibration X.json
guard --calibrate X --out out.json
sweep X.toml --grid federation.rounds=1,2 --out out
harden X.toml --limit "epsilon <= 8" --out out
harden --limits X.toml --out out
attack X --out out.json
ask X --data good.csv --out out.npz --key key.json
score X.json --at-site good --site a --out out.json
merge X.json X.json --out out
purge X
allocate X.csv --out out
allocate good.csv --size-column n --edges X.txt --out out
init X.csv --out out.toml
init X.npz --out out.toml
init X --out out.toml
plan check X.csv
plan check X
flower doctor X
""".strip().splitlines()


@pytest.fixture
def in_time():
    """A command that waits for a pipe is interrupted."""

    def late(*_):
        raise TimeoutError("the command waits")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, 120)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    from fedaudit.decide.gate import write_example
    from fedaudit.study import run

    folder = tmp_path_factory.mktemp("good")
    config = {"data": {"name": "digits"}, "federation": {"clients": 3, "rounds": 1}}
    run(config | {"audits": {"coverage": {}}}, folder / "good")
    write_example(folder / "good.toml")
    (folder / "good.csv").write_text("client,n\na,10\nb,20\nc,30\n")
    import numpy as np

    np.savez(folder / "good.npz", weight=np.eye(4, 5, dtype=np.float32))
    return folder


@pytest.mark.parametrize("command", COMMANDS)
def test_a_hostile_file_ends_in_a_message(
    good, tmp_path, monkeypatch, in_process, in_time, command
):
    monkeypatch.setenv("FEDAUDIT_CACHE", str(tmp_path / "cache"))
    for thing in THINGS:
        place = tmp_path / thing
        place.mkdir()
        for name in ("good", "good.toml", "good.csv", "good.npz"):
            (place / name).symlink_to(good / name)
        monkeypatch.chdir(place)
        words = shlex.split(command)
        named = next(w.partition("=")[2] if "=X" in w else w for w in words if "X" in w)
        put(place / named.strip('"'), thing)
        done = in_process(*words)
        assert done.code in (1, 2, 3, 5), (thing, done)
        assert "Traceback" not in done.err
        assert done.err.strip(), thing


@pytest.mark.parametrize("where", ["file", "column"])
def test_a_hostile_name_does_not_reach_the_terminal(in_process, tmp_path, monkeypatch, where):
    """A line break, an escape sequence, and a mark that turns text around."""
    monkeypatch.chdir(tmp_path)
    name = "a\n\x1b[31m\u202e$(touch x)"
    rows = "".join(f"{i % 7},{i}.5,{i % 2}\n" for i in range(60))
    folder = tmp_path / "sites"
    folder.mkdir()
    names = ["-rf", "it's", name if where == "file" else "plain"]
    for site in names:
        column = f'"{name}"' if where == "column" else "age"
        (folder / f"{site}.csv").write_text(f"{column},bp,outcome\n{rows}")
    for command in (["init", "sites"], ["run", "fedaudit.toml", "--dry-run"]):
        done = in_process(*command)
        assert done.code == 0, done.err
        for shown in (done.out, done.err):
            assert all(c.isprintable() for c in shown if c not in "\n\t")
