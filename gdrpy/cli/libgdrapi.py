"""NCCL, NVSHMEM, UCX and other programs copy to and from GPU memory through
libgdrapi.so.2 if they find it. gdrpy brings such a library; it needs no kernel module
where the NVIDIA driver suffices. This command shows its path with its C header and
pkg-config file, the lines that make programs find it, and the backend that programs
would use on this machine, or why none can be used. GDRPY_SIM affects Python only: a C
program uses the simulated GPU if LD_PRELOAD names its library. The folder also has
libgdrpy-broker.so.1, the broker's client for C programs.

examples:
  gdrpy libgdrapi
  gdrpy libgdrapi --json | jq -r .backend    # null: none
  LD_PRELOAD=$(python -m gdrpy.sim) gdrpy libgdrapi
  export LD_LIBRARY_PATH="$(gdrpy libgdrapi --dir)${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"

exit status:
  0  always, with or without a GPU
  2  wrong usage, or the library is not built
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
from pathlib import Path

import gdrpy
from gdrpy.cli.exits import OK, UNUSABLE, CommandError
from gdrpy.cli.options import CommandParser
from gdrpy.cli.output import Output

_PACKAGE = Path(gdrpy.__file__).parent
SHARED_OBJECT = _PACKAGE / "lib" / "libgdrapi.so.2"
HEADER = _PACKAGE / "include" / "gdrapi.h"
PKG_CONFIG = _PACKAGE / "lib" / "pkgconfig" / "gdrapi.pc"

#: Acts like a C program that uses CUDA; the library writes its choice to stderr.
_PROBE = """
import ctypes, sys
try:
    result = ctypes.CDLL("libcuda.so.1").cuInit(0)
    problem = f"cuInit answers CUresult {result}" if result else None
except OSError as error:
    problem = error
if problem:
    print(f"CUDA cannot be used: {problem}", file=sys.stderr)
library = ctypes.CDLL(sys.argv[1])
library.gdr_open.restype = ctypes.c_void_p
library.gdr_open()
"""
_LOG = "libgdrapi: gdr_open: "
_USING = "using "
_SIMULATED = "programs on the simulated GPU: LD_PRELOAD=$(python -m gdrpy.sim)"


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument(
        "--dir",
        action="store_true",
        help='print only the folder of the library; with --json as {"dir": ...}',
    )


def run(args: argparse.Namespace, output: Output) -> int:
    if not SHARED_OBJECT.exists():
        raise CommandError(f"there is no {SHARED_OBJECT}: {_how_to_get()}", UNUSABLE)
    if args.dir:
        output.line(str(SHARED_OBJECT.parent))
        output.finish({"dir": str(SHARED_OBJECT.parent)})
        return OK

    backend, told = _choice()
    commands = _commands()
    files = {"library": SHARED_OBJECT, "header": HEADER, "pkg_config": PKG_CONFIG}
    for what, file in files.items():
        output.line(f"{what.replace('_', '-'):12}{file}")
    output.line(f"backend     {backend or 'none'}")
    indent = " " * 12
    for line in [*told, *([] if backend else [_SIMULATED])]:
        output.prose(indent + line, indent)
    output.line("\nto have programs find it, and to build programs with it:")
    for command in commands:
        output.line(f"  {command}")
    paths = {"dir": str(SHARED_OBJECT.parent)} | {name: str(file) for name, file in files.items()}
    output.finish({**paths, "backend": backend, "told": told, "commands": commands})
    return OK


def _how_to_get() -> str:
    if (_PACKAGE.parent / "Makefile").exists():
        return "build it by 'make build'"
    return (
        "install gcc, then gdrpy again: pip install --force-reinstall --no-deps, and the folder "
        "of its sources"
    )


def _choice() -> tuple[str | None, list[str]]:
    """The backend of a program's first pin, or None; and the lines that the library wrote.

    Opens the library in a process where Python has loaded no driver.
    """
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", _PROBE, str(SHARED_OBJECT)],
        env=os.environ | {"GDRCOPY_ENABLE_LOGGING": "1", "GDRCOPY_LOG_LEVEL": "2"},
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    told = [line.removeprefix(_LOG) for line in done.stderr.splitlines()]
    if done.returncode:
        raise CommandError(f"the library cannot be loaded: {told[-1] if told else done.returncode}")
    used = next((line for line in told if line.startswith(_USING)), None)
    backend = used.removeprefix(_USING).partition(":")[0] if used else None
    return backend, told


def _commands() -> list[str]:
    """Lines to copy into a shell."""
    paths = {"LD_LIBRARY_PATH": SHARED_OBJECT.parent, "PKG_CONFIG_PATH": PKG_CONFIG.parent}
    exports = [
        f"export {name}={shlex.quote(str(path))}${{{name}:+:${name}}}"
        for name, path in paths.items()
    ]
    return [*exports, "gcc program.c $(pkg-config --cflags --libs gdrapi)"]
