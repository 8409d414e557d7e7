"""Third-party programs that use GDRCopy, with this libgdrapi: is it used, is it right, how fast?

gdrcopy's own test programs, UCX's gdr_copy on CUDA memory, and NVSHMEM's atomics on two GPUs.
Needs CUDA's nvcc.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import clients_gdrcopy
import clients_nvshmem
import clients_ucx
import machine
from clients_program import nvcc
from clients_row import Client, lines
from gdrpy import cuda
from harness import Session
from results import add_arguments, result, save, show

SCRIPT = "benchmarks/clients.py"
LIBRARY = "libgdrapi.so.2"
CLIENTS = (clients_gdrcopy, clients_ucx, clients_nvshmem)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line; wrong usage ends with exit status 2."""
    parser = argparse.ArgumentParser(prog=SCRIPT, description=__doc__)
    parser.add_argument(
        "--library", dest="folder", metavar="DIR", type=Path, required=True, help="libgdrapi.so.2's"
    )
    parser.add_argument(
        "--gdrcopy",
        metavar="SOURCES",
        type=Path,
        help="run its test programs: git clone -b v2.6 https://github.com/NVIDIA/gdrcopy",
    )
    parser.add_argument(
        "--ucx",
        metavar="PREFIX",
        type=Path,
        help="the prefix of UCX 1.22: configure --with-cuda --with-gdrcopy --enable-mt",
    )
    parser.add_argument(
        "--nvshmem",
        metavar="UCX_PREFIX",
        type=Path,
        help="run NVSHMEM over that UCX: pip install nvidia-nvshmem-cu13",
    )
    add_arguments(parser)
    options = parser.parse_args(arguments)
    options.folder = options.folder.resolve()
    if not (options.folder / LIBRARY).exists():
        parser.error(f"--library {options.folder.name}: no {LIBRARY} there")
    chosen = _chosen(options)
    if not chosen:
        parser.error("nothing to try: give --gdrcopy, --ucx or --nvshmem")
    for name, place in chosen.items():
        setattr(options, name, place.absolute())
        needed = clients_gdrcopy if name == clients_gdrcopy.NAME else clients_ucx
        if missing := [one for one in needed.NEEDED if not (place / one).exists()]:
            parser.error(f"--{name} {place.name}: no {', '.join(missing)} there")
    return options


def _chosen(options: argparse.Namespace) -> dict[str, Path]:
    """The place of each client to try, by its name."""
    given = vars(options)
    return {one.NAME: given[one.NAME] for one in CLIENTS if given[one.NAME]}


def why_not(chosen: Collection[str]) -> str | None:
    """Why these clients cannot be tried on this machine, or None."""
    needed = 2 if clients_nvshmem.NAME in chosen else 1
    count = 0 if cuda.simulated() else cuda.device_count()
    if count < needed:
        words = "two GPUs" if needed == 2 else "a GPU"
        return f"needs {words}, and this machine has {count or 'none'}"
    if nvcc() is None:
        return "needs CUDA's nvcc, which is missing"
    return clients_nvshmem.why_not() if clients_nvshmem.NAME in chosen else None


def measuring_arguments(options: argparse.Namespace) -> list[str]:
    """The arguments that decide what is tried, without this machine's folders."""
    places = {"library": options.folder, **_chosen(options)}
    return [word for name, place in places.items() for word in (f"--{name}", place.name)]


def attempt(options: argparse.Namespace) -> dict[str, Any]:
    """Try the chosen clients; the result as plain values."""
    chosen = _chosen(options)
    session = Session(0, False, _step)
    header = machine.describe(measuring_arguments(options), options.commit, SCRIPT)
    clients: list[Client] = []
    durations = {}
    for module in CLIENTS:
        if module.NAME not in chosen:
            continue
        begun = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="gdrpy-clients-") as folder:
            clients.append(module.attempt(chosen[module.NAME], options.folder, Path(folder), _step))
        durations[module.NAME] = round(time.monotonic() - begun, 1)
    if clients_nvshmem.NAME in chosen:
        header["gpus"] = 2
    session.sweeps += [sweep for one in clients for sweep in one.sweeps]
    return result(
        session,
        header | {one.name: one.version for one in clients},
        [one.name for one in clients],
        durations,
        samples_us={one.name: one.samples for one in clients if one.samples},
        environments={one.name: one.environments for one in clients},
        logs={one.name: one.logs for one in clients},
        tests=[row.json() for one in clients for row in one.rows],
    )


def _step(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0, 1 if anything was not as expected, 2 for wrong usage or no GPU."""
    options = parse(sys.argv[1:] if arguments is None else arguments)
    if reason := why_not(_chosen(options)):
        print(f"{SCRIPT}: {reason}", file=sys.stderr)
        return 2
    found = attempt(options)
    path = save(found, options.output)
    print("\n".join(lines(found["tests"])))
    show(found, path)
    return int(any(one["found"] != one["expected"] for one in found["tests"]))


if __name__ == "__main__":
    sys.exit(main())
