"""NVSHMEM on two GPUs: are its atomics done by the CPU through GDRCopy, and are they right.

Its UCX transport does so where there is no InfiniBand: the CPU of the target adds through the
mapping, and UCX carries the requests through shared memory. P2P is off, or that would be taken.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from clients_program import Done, Program, compiler, link_libraries
from clients_row import Client, passed
from clients_ucx import places

NAME = "nvshmem"
WITH, WITHOUT = "GDRCopy", "without"

_SOURCE = Path(__file__).with_name("clients_nvshmem.cu")
_DISTRIBUTIONS = ("nvidia-nvshmem-cu13", "nvidia-nvshmem-cu12")

_COMMON = {
    "NVSHMEM_REMOTE_TRANSPORT": "ucx",
    "NVSHMEM_DISABLE_P2P": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
    "NVSHMEM_DISABLE_NCCL": "1",
    "NVSHMEM_SYMMETRIC_SIZE": "64M",
    "NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME": "lo",
    "NVSHMEM_DEBUG": "INFO",
    # Not ALL: that is a line for each operation, and longer than the operation.
    "NVSHMEM_DEBUG_SUBSYS": "INIT",
    "UCX_WARN_UNUSED_ENV_VARS": "n",
    "GDRCOPY_ENABLE_LOGGING": "1",
    "GDRCOPY_LOG_LEVEL": "1",
}

#: The environment of the PEs, besides the paths of the libraries.
ENVIRONMENTS = {
    WITH: _COMMON | {"NVSHMEM_DISABLE_GDRCOPY": "0"},
    WITHOUT: _COMMON | {"NVSHMEM_DISABLE_GDRCOPY": "1"},
}

OPENED, PINNED, RIGHT = "the library is opened", "memory is pinned", "sums of the peer's atomics"
REACHED = "reached"
#: Its message about atomics without GDRCopy and InfiniBand.
REFUSED = "atomics are refused"

#: The lines that show how far a PE came.
EVIDENCE = {
    OPENED: r"GDR driver version: \(\d+, \d+\)",
    PINNED: r"libgdrapi: gdr_pin_buffer\w*: (\d+ bytes .*)",
    REACHED: r"reached: (.*)",
    RIGHT: r"sums: (.*)",
    REFUSED: r"AMO \d+ not supported .*",
}

_BUILD_LIMIT = 60
_LIMITS = {WITH: 25, WITHOUT: 10}
#: Seconds in which a PE ends whose peer has ended.
_GRIEF = 3


def why_not() -> str | None:
    """Why NVSHMEM cannot be tried; None if it can."""
    if _wheel() is None:
        return f"needs NVSHMEM's wheel, {' or '.join(_DISTRIBUTIONS)}, and none is installed"
    return None


def attempt(prefix: Path, library: Path, folder: Path, step: Callable[[str], None]) -> Client:
    """Two PEs over the UCX of ``prefix``, with GDRCopy and without; built in ``folder``."""
    wheel = _wheel()
    assert wheel
    client = Client(NAME, _version(), environments=ENVIRONMENTS)
    step(f"{NAME}: building")
    link_libraries(folder, library)
    program = folder / NAME
    made_of = [f"-I{wheel / 'include'}", str(_SOURCE), "-rdc=true", "-arch=native"]
    host = min((wheel / "lib").glob("libnvshmem_host.so.*"))
    libraries = [f"-L{folder}", f"-L{wheel / 'lib'}", "-Xlinker", f"-l:{host.name}"]
    libraries += ["-lnvshmem_device", "-lcuda"]
    with compiler([*made_of, "-o", str(program), *libraries], folder) as building:
        built = building.done(_BUILD_LIMIT)
    client.add("two GPUs", "builds", passed(built.status == 0), said=built.end())
    if built.status != 0:
        return client
    found = places(prefix, library, wheel / "lib")
    for way, environment in ENVIRONMENTS.items():
        step(f"{NAME}: {way}")
        ends = _pair(program, found | environment, folder / way, _LIMITS[way])
        judge(client, way, ends)
    return client


def judge(client: Client, way: str, ends: Sequence[Done]) -> None:
    """The results of the PEs as rows, with their proofs."""
    shown = [proofs(end.output) for end in ends]
    for rank, (end, found) in enumerate(zip(ends, shown, strict=True)):
        client.logs[f"{way}, PE {rank}"] = {"end": end.how} | found
    if way == WITHOUT:
        # Of two that refuse each other, one may be gone before it could.
        refusals = [one for found in shown for one in found[REFUSED]]
        refused = bool(refusals) and all(end.status != 0 for end in ends)
        said = refusals if refused else [line for end in ends for line in end.end()]
        client.add(way, REFUSED, passed(refused), said=said)
        return
    for rank, (end, found) in enumerate(zip(ends, shown, strict=True)):
        right = end.status == 0 and [one.endswith("right") for one in found[RIGHT]] == [True]
        for what, is_so in (
            (OPENED, bool(found[OPENED])),
            (PINNED, bool(found[PINNED])),
            (RIGHT, right),
        ):
            said = [*found[what], *found[REACHED]] if is_so else [*found[REACHED], *end.end()]
            client.add(way, f"PE {rank}: {what}", passed(is_so), said=said)


def proofs(said: str) -> dict[str, Any]:
    """The lines of a PE and of the libraries that show how far it came."""
    return {what: re.findall(pattern, said) for what, pattern in EVIDENCE.items()}


def _pair(program: Path, environment: dict[str, str], place: Path, limit: float) -> list[Done]:
    """How both PEs ended; they meet by the file ``place``."""
    with ExitStack() as undo:
        pes = [
            undo.enter_context(Program([str(program), str(rank), str(place)], environment))
            for rank in range(2)
        ]
        first = pes[0].done(limit)
        return [first, pes[1].done(_GRIEF)]


def _wheel() -> Path | None:
    """Where the wheel lies."""
    with suppress(ModuleNotFoundError):
        found = importlib.util.find_spec("nvidia.nvshmem")
        if found and found.submodule_search_locations:
            return Path(next(iter(found.submodule_search_locations)))
    return None


def _version() -> str | None:
    for name in _DISTRIBUTIONS:
        with suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name)
    return None
