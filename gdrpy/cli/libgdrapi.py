"""``gdrpy libgdrapi``: where the C library is, how programs find it, and what it uses here."""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import gdrpy
from gdrpy.cli import options
from gdrpy.cli.exits import OK, UNUSABLE, CommandError
from gdrpy.cli.output import Output

if TYPE_CHECKING:
    from gdrpy.cli.options import Commands

_PACKAGE = Path(gdrpy.__file__).parent
LIBRARY = _PACKAGE / "lib" / "libgdrapi.so.2"
HEADER = _PACKAGE / "include" / "gdrapi.h"
PKG_CONFIG = _PACKAGE / "lib" / "pkgconfig" / "gdrapi.pc"

#: As a program does that uses CUDA: what the library then tells is on stderr.
_PROBE = """
import ctypes, sys
from gdrpy import cuda
from gdrpy.errors import Error
try:
    cuda.driver()
except Error as error:
    print(f"CUDA cannot be used: {error}", file=sys.stderr)
library = ctypes.CDLL(sys.argv[1])
library.gdr_open.restype = ctypes.c_void_p
library.gdr_open()
"""
_LOG = "libgdrapi: gdr_open: "
_USING = "using "


@dataclass(frozen=True)
class Choice:
    """Which backend the library uses for the first pin, None if it has none; and what it told."""

    backend: str | None
    told: list[str]


def add_parser(commands: Commands) -> None:
    """Add ``libgdrapi`` to the command line."""
    parser = options.add_command(
        commands,
        "libgdrapi",
        run,
        summary="where libgdrapi.so.2 for C programs is, and what it uses here",
        description=(
            "NCCL, NVSHMEM, UCX and other programs copy to and from GPU memory through\n"
            "libgdrapi.so.2 where they find it. gdrpy brings one, which needs no kernel module\n"
            "where the NVIDIA driver is enough. This tells where it is, with its C header and its\n"
            "pkg-config file, the lines that have programs find it, and the backend that it would\n"
            "use on this machine, or why there is none."
        ),
        examples=(
            "gdrpy libgdrapi\n"
            "gdrpy libgdrapi --json | jq -r .backend\n"
            'export LD_LIBRARY_PATH="$(gdrpy libgdrapi --dir)${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"'
        ),
        exit_status="0  always, with or without a GPU\n2  wrong usage, or the library is not built",
    )
    parser.add_argument(
        "--dir", action="store_true", help="print the folder of the library, and nothing else"
    )


def run(args: argparse.Namespace, output: Output) -> int:
    """Print it."""
    if not LIBRARY.exists():
        raise CommandError(f"there is no {LIBRARY}: build it by 'make build'", UNUSABLE)
    if args.dir:
        output.line(str(LIBRARY.parent))
        output.finish({"dir": str(LIBRARY.parent)})
        return OK

    choice = _choice()
    commands = _commands()
    output.line(f"library     {LIBRARY}")
    output.line(f"header      {HEADER}")
    output.line(f"pkg-config  {PKG_CONFIG}")
    output.line(f"backend     {choice.backend or 'none'}")
    for line in choice.told:
        output.line(f"            {line}")
    output.line()
    output.line("to have programs find it, and to build programs with it:")
    for command in commands:
        output.line(f"  {command}")
    output.finish(
        {
            "dir": str(LIBRARY.parent),
            "library": str(LIBRARY),
            "header": str(HEADER),
            "pkg_config": str(PKG_CONFIG),
            **asdict(choice),
            "commands": commands,
        }
    )
    return OK


def _choice() -> Choice:
    """What the library says when it is opened, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _PROBE, str(LIBRARY)],
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
    return Choice(backend, told)


def _commands() -> list[str]:
    """Lines to copy into a shell."""
    paths = {"LD_LIBRARY_PATH": LIBRARY.parent, "PKG_CONFIG_PATH": PKG_CONFIG.parent}
    exports = [
        f"export {name}={shlex.quote(str(path))}${{{name}:+:${name}}}"
        for name, path in paths.items()
    ]
    return [*exports, "gcc program.c $(pkg-config --cflags --libs gdrapi)"]
