"""The table of commands is what the modules hold, and the help loads none of them."""

import importlib
import subprocess
import sys

import pytest
import typer

from fedaudit.cli.app import COMMANDS


def test_every_command_of_every_module_is_in_the_table():
    modules = {command.module for command in COMMANDS.values()}
    held = {
        (name, module)
        for module in modules
        for name in typer.main.get_group(
            importlib.import_module(f"fedaudit.cli.{module}").app
        ).commands
    }
    assert held == {(name, command.module) for name, command in COMMANDS.items()}


def test_help_loads_no_command():
    code = (
        "import sys; from fedaudit.cli import app\n"
        "try: app(['--help'])\n"
        "except SystemExit: pass\n"
        "sys.exit(any(m in sys.modules for m in ('numpy', 'torch', 'fedaudit.study')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert all(name in done.stdout for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_line_in_the_help_fits_a_terminal(name):
    assert len(COMMANDS[name].help) <= 68
