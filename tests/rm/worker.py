"""Runs tests by name, each in a forked process: a line on stdin says which, and one on stdout its
exit status. What most tests import is imported once.
"""

import ast
import ctypes
import gc
import importlib
import os
import select
import signal
import sys
from operator import attrgetter
from pathlib import Path
from typing import Any

#: Nothing of this asks for a node of the driver when it is imported.
IMPORTED = ("numpy", "pytest", "cuda.bindings.driver", "cuda.pathfinder", "gdrpy.region")
SECONDS = 240


def run(path: str, name: str, arguments: dict[str, Any]) -> None:
    sys.path.insert(0, str(Path(path).parent))
    owner: object = importlib.import_module(Path(path).stem)
    class_name, _, function = name.rpartition(".")
    if class_name:
        owner = attrgetter(class_name)(owner)()
    getattr(owner, function)(**arguments)


def become(environment: dict[str, str], output: str) -> None:
    """Have the environment of a test, and what it prints in a file."""
    os.environ.clear()
    os.environ.update(environment)
    for number, path, flags in (0, os.devnull, os.O_RDONLY), (1, output, os.O_WRONLY):
        opened = os.open(path, flags)
        os.dup2(opened, number)
        os.close(opened)
    os.dup2(1, 2)


def broken_rules(path: str) -> str | None:
    """The rules of the driver that a test broke; those of the simulated manager itself may."""
    manager = ctypes.CDLL(None)
    manager.fakerm_violation.restype = ctypes.c_char_p
    if Path(path).parent == Path(__file__).parent or not manager.fakerm_count(b"violations"):
        return None
    return f"the driver's rules were broken: {manager.fakerm_violation(0).decode()}"


def end_of(process: int) -> int:
    """A process's exit status, once it has ended or had its time."""
    opened = os.pidfd_open(process)
    if not select.select([opened], [], [], SECONDS)[0]:
        signal.pidfd_send_signal(opened, signal.SIGKILL)
    os.close(opened)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


for module in IMPORTED:
    importlib.import_module(module)
gc.collect()
gc.freeze()  # else each process looks through all of it when it ends
for line in sys.stdin:
    job = ast.literal_eval(line)
    process = os.fork()
    if process == 0:
        become(job["environment"], job["output"])
        run(job["path"], job["name"], job["arguments"])
        sys.exit(broken_rules(job["path"]))
    print(end_of(process), flush=True)
