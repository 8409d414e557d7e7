"""Shows on a real GPU what the documentation claims, and keeps the output as one JSON file.

Runs ``gdrpy info``, ``validate`` and the commands that measure, and the tests marked gpu; as root,
``validate``, the contract tests and those of libgdrapi run once more as the unprivileged user
``nobody``.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import machine
from gdrpy import cuda
from results import FORMAT, add_arguments, save

ROOT = Path(__file__).resolve().parent.parent
NOBODY = 65534
OUTPUT_LINES = 40

PYTHON = (sys.executable, "-P", "-m")
GDRPY = (*PYTHON, "gdrpy")
MEASURING = ("copybw", "copylat", "apiperf", "pplat")
#: Warnings contain paths of this machine.
PYTEST = (*PYTHON, "pytest", "-q", "--disable-warnings", "-m", "gpu", "-p", "no:cacheprovider")


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0 if every step passed."""
    parser = argparse.ArgumentParser(prog="benchmarks/proof.py", description=__doc__)
    add_arguments(parser)
    about = "the steps with one of these words in their names"
    parser.add_argument("--only", nargs="+", default=[], metavar="WORD", help=about)
    options = parser.parse_args(arguments)
    if cuda.simulated():
        parser.exit(2, "benchmarks/proof.py: this machine has no GPU that could prove anything\n")

    wanted = [
        one for one in plan() if not options.only or any(word in one[0] for word in options.only)
    ]
    if not wanted:
        parser.error(f"--only: no step has {' or '.join(options.only)} in its name")
    steps = [step(*one) for one in wanted]
    gpus = cuda.device_count()
    only = ("--only", *options.only) if options.only else ()
    result = {
        "format": FORMAT,
        "header": machine.describe((), options.commit)
        | {"command": shlex.join(("python", "benchmarks/proof.py", *only)), "gpus": gpus},
        "modules": ["proof"],
        "quick": False,
        "steps": steps,
    }
    path = save(result, options.output)
    for one in steps:
        print(f"{'pass' if one['exit_status'] == 0 else 'FAIL'}  {one['name']}  {one['last_line']}")
    print(path)
    return int(any(one["exit_status"] for one in steps))


def plan() -> list[tuple[str, tuple[str, ...], int]]:
    """The steps: name, command, user."""
    me = os.geteuid()
    steps = [
        ("info", (*GDRPY, "info", "--json"), me),
        ("validate", (*GDRPY, "validate", "--json"), me),
        ("validate, 1 GiB", (*GDRPY, "validate", "--json", "--size", "1G"), me),
        *((name, (*GDRPY, name, "--json"), me) for name in MEASURING),
        ("contract tests", (*PYTEST, "tests/contract"), me),
        ("other tests", (*PYTEST, "tests", "--ignore", "tests/contract"), me),
    ]
    if me == 0:
        steps += [
            ("validate, unprivileged", (*GDRPY, "validate", "--json"), NOBODY),
            ("contract tests, unprivileged", (*PYTEST, "tests/contract"), NOBODY),
            (
                "libgdrapi, unprivileged",
                (*PYTEST, "tests/hardware/test_gdrapi_programs.py"),
                NOBODY,
            ),
        ]
    return steps


def step(name: str, command: tuple[str, ...], user: int) -> dict[str, Any]:
    """Run a command as a user; returns its output, decoded if it is JSON."""
    with tempfile.TemporaryDirectory() as home:
        os.chown(home, user, user)
        start = time.monotonic()
        done = subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, "HOME": home, "TMPDIR": home, "GDRPY_SIM": "0"},
            user=user if user != os.geteuid() else None,
            group=user if user != os.geteuid() else None,
            extra_groups=[] if user != os.geteuid() else None,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if "--json" not in command else subprocess.PIPE,
            text=True,
            check=False,
        )
    lines = done.stdout.rstrip("\n").splitlines()
    try:
        output: Any = json.loads(done.stdout)
        last = json.dumps(output.get("counts", ""))
        if "header" in output:
            output["header"]["kernel"] = machine.kernel_version()
    except ValueError:
        output = lines[-OUTPUT_LINES:]
        last = lines[-1] if lines else ""
    return {
        "name": name,
        "command": shlex.join(("python", *command[1:])),
        "user": user,
        "exit_status": done.returncode,
        "seconds": round(time.monotonic() - start, 1),
        "last_line": last,
        "output": output,
    }


if __name__ == "__main__":
    sys.exit(main())
