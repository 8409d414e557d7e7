"""Runs a gdrpy command from the checkout, installed or not."""

import importlib
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def run(command: str) -> int:
    """Run ``gdrpy COMMAND`` with this program's arguments; returns its exit status."""
    sys.path.insert(0, str(ROOT))
    try:
        importlib.import_module("rich")  # output does when it begins
        from gdrpy.cli import command_parser, main

        command_parser(command)  # imports all else that the command needs
    except ImportError as error:
        _use_virtual_environment()
        print(f"error: gdrpy is not built here (no {error.name}): run make build", file=sys.stderr)
        return 2
    return main([command, *sys.argv[1:]])


def _use_virtual_environment() -> None:
    """Start again in the environment that ``make build`` set up, unless this is it."""
    environment = ROOT / ".venv"
    python = environment / "bin" / "python"
    if python.exists() and not environment.samefile(sys.prefix):
        os.execv(python, [str(python), *sys.argv])
