"""The wheel alone, without the repository, runs a federation from a config."""

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

import fedaudit

ROOT = Path(__file__).parents[2]

CONFIG = """
[federation]
clients = 3
rounds = 1

[audits.coverage]

[audits.fingerprint]
"""


@pytest.mark.nightly
def test_the_wheel_runs_without_the_repository(tmp_path):
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--quiet", str(ROOT)]
    made = subprocess.run([*build, "-w", str(tmp_path)], capture_output=True, text=True)
    if made.returncode != 0 and "No matching distribution" in made.stderr:
        pytest.skip("the build backend cannot be fetched")
    assert made.returncode == 0, made.stderr
    (wheel,) = tmp_path.glob("*.whl")
    assert f"-{fedaudit.__version__}-" in wheel.name
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(tmp_path / "site")
    # a wheel of pure Python is its own installation; what it needs comes from this environment,
    # without the .pth files that would bring the repository back
    libraries = [sysconfig.get_path("purelib"), *(p for p in sys.path if "site-packages" in p)]
    shell = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    start = (
        f"import sys; sys.path[:0] = [{str(tmp_path / 'site')!r}]; sys.path += {libraries!r}\n"
        f"sys.argv[0] = 'fedaudit'\nimport fedaudit.cli\n"
        f"assert fedaudit.__file__.startswith({str(tmp_path)!r}), fedaudit.__file__\n"
        "fedaudit.cli.main()"
    )

    def command(*words):
        return subprocess.run(
            [sys.executable, "-I", "-S", "-c", start, *words],
            cwd=tmp_path, env=shell, capture_output=True, text=True,
        )  # fmt: skip

    (tmp_path / "tiny.toml").write_text(CONFIG)
    assert command("--version").stdout.strip() == fedaudit.__version__
    done = command("run", "tiny.toml", "--out", "run", "--quiet")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "report.html").stat().st_size > 10_000
