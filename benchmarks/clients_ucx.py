"""UCX's gdr_copy: does UCX have it, use it, copy right, and how fast beside cuda_copy alone?"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from string import ascii_uppercase
from types import MappingProxyType
from typing import Any

from clients_program import Done, Program, compiler, libraries_in, run
from clients_row import Client, passed
from nccl_pair import free_port
from sweep import AGAIN, SIZE, Point, Sweep
from words import size_words

NAME = "ucx"
VARIANT = "tcp over loopback"

WITH, WITHOUT = "gdr_copy", "without"
WITH_AGAIN = f"{WITH} {AGAIN}"
GAIN = f"{WITHOUT} over {WITH}"
OVER_ITSELF = f"{WITH} over itself"
OPERATION = "latency of tagged messages between CUDA memory, TCP over loopback"
_METHOD = "ucx_perftest -t tag_lat: median one-way time of a run"

_COMMON = {
    "UCX_NET_DEVICES": "lo",
    "UCX_WARN_UNUSED_ENV_VARS": "n",
    # The CPU packs and unpacks eager messages, which is the purpose of gdr_copy.
    "UCX_RNDV_THRESH": "inf",
}
_TRANSPORTS = {
    WITH: "tcp,gdr_copy,cuda_copy",
    WITH_AGAIN: "tcp,gdr_copy,cuda_copy",
    WITHOUT: "tcp,cuda_copy",
}

#: The environment of each way, besides the paths of the libraries.
ENVIRONMENTS = {way: _COMMON | {"UCX_TLS": names} for way, names in _TRANSPORTS.items()}

_PERFTEST, _INFO, _EXAMPLE = "bin/ucx_perftest", "bin/ucx_info", "ucp_hello_world"
_EXAMPLE_SOURCE = f"share/ucx/examples/{_EXAMPLE}.c"

#: Files that an installed UCX must have.
NEEDED = (_INFO, _PERFTEST, _EXAMPLE_SOURCE, "include/ucp/api/ucp.h")

_TEXTS = (16, 300, 5000, 200000)
#: Bytes of a message, and how many go to and fro.
TIMED = {8: 500, 64: 500, 512: 500, 4096: 500, 8192: 500, 65536: 500, 1 << 20: 100}
_ROUNDS = 5
_WARM_UP = 50

#: Lines of UCX's log that prove its calls of the library.
EVIDENCE = {
    "memory is pinned and mapped": r"registered memory .* bar_ptr 0x\w+",
    "gdr_copy_to_mapping is called": r"gdr_copy_ep\.c.*PUT_SHORT.*",
    "gdr_copy_from_mapping is called": r"gdr_copy_ep\.c.*GET_SHORT.*",
    "memory is unmapped and unpinned": r"deregistered memory.*",
}

_LIMIT = 60
_LISTENING = 20


def places(prefix: Path, *libraries: Path) -> dict[str, str]:
    """The environment in which UCX, at any prefix, and other libraries are found."""
    lib = prefix / "lib"
    return libraries_in(lib, *libraries) | {"UCX_MODULE_DIR": str(lib / "ucx")}


def version(prefix: Path, environment: Mapping[str, str]) -> str | None:
    """The version that UCX reports."""
    said = run([str(prefix / _INFO), "-v"], environment, _LIMIT).output
    found = re.search(r"Library version: (\S+)", said)
    return found[1] if found else None


def attempt(prefix: Path, library: Path, folder: Path, step: Callable[[str], None]) -> Client:
    """Try UCX on device 0; its example is built in ``folder``."""
    trial = _Trial(prefix, library, folder)
    step(f"{NAME}: texts")
    trial.transport()
    trial.texts()
    trial.log()
    step(f"{NAME}: times")
    trial.times()
    return trial.client


class _Trial:
    def __init__(self, prefix: Path, library: Path, folder: Path) -> None:
        self._prefix = prefix
        self._folder = folder
        self._places = places(prefix, library)
        self.client = Client(NAME, version(prefix, self._places), environments=ENVIRONMENTS)

    def transport(self) -> None:
        """Does UCX list it? It does if gdr_open() succeeds."""
        done = run([str(self._prefix / _INFO), "-d"], self._places, _LIMIT)
        there = "Transport: gdr_copy" in done.output
        self._add("gdr_copy is a transport of ucx_info -d", there, done.end())

    def texts(self) -> None:
        """Texts sent from CUDA memory to CUDA memory, by UCX's own example."""
        example = str(self._folder / _EXAMPLE)
        lib = self._prefix / "lib"
        # Without these the linker would take dependencies from a UCX of the system.
        libraries = [f"-L{lib}", f"-Xlinker=-rpath-link={lib}", "-lucp", "-lucs"]
        libraries += ["-cudart", "shared"]
        made_of = ["-DHAVE_CUDA", f"-I{self._prefix / 'include'}", self._prefix / _EXAMPLE_SOURCE]
        with compiler([*map(str, made_of), "-o", example, *libraries], self._folder) as building:
            built = building.done(_LIMIT)
        if built.status != 0:
            self._add(f"{_EXAMPLE} builds", False, built.end())
            return
        for nbytes in _TEXTS:
            arguments = ["-m", "cuda", "-s", str(nbytes)]
            client, server = self._pair(WITH, example, ["-n"], arguments)
            right = client.status == 0 and texts_in(client.output + server.output) == [text(nbytes)]
            self._add(
                f"a text of {size_words(nbytes)} arrives", right, [*client.end(5), *server.end(5)]
            )

    def log(self) -> None:
        """UCX's log of some messages."""
        arguments = ["-t", "tag_lat", "-m", "cuda,cuda", "-s", "64", "-n", "5", "-w", "1", "-f"]
        ends = self._pair(WITH, self._perftest, [], arguments, {"UCX_LOG_LEVEL": "data"})
        said = "".join(one.output for one in ends)
        self.client.logs[NAME] = evidence = proofs(said)
        for what, found in evidence.items():
            self._add(f"log: {what}", bool(found["count"]), ends[0].end(10))

    def times(self) -> None:
        """Runs of all sizes, the ways in turns; the order of each round is drawn by lot."""
        batch = self._folder / "batch"
        batch.write_text("".join(map(_batch_line, TIMED)))
        arguments = ["-b", str(batch), "-v", "-f"]
        samples: dict[str, list[list[float]]] = {way: [] for way in ENVIRONMENTS}
        lot = random.Random(1)
        for _ in range(_ROUNDS):
            for way in lot.sample(list(ENVIRONMENTS), len(ENVIRONMENTS)):
                client, server = self._pair(way, self._perftest, [], arguments)
                found = latencies(client.output)
                if client.status != 0 or list(found) != list(TIMED):
                    self._add(f"latency, {way}", False, [*client.end(), *server.end(10)])
                    return
                samples[way].append(list(found.values()))
        timed = sweep(samples)
        self.client.sweeps.append(timed)
        self.client.samples = by_size(timed)

    @property
    def _perftest(self) -> str:
        return str(self._prefix / _PERFTEST)

    def _pair(
        self,
        way: str,
        program: str,
        option: Sequence[str],
        arguments: Sequence[str],
        more: Mapping[str, str] = MappingProxyType({}),
    ) -> tuple[Done, Done]:
        """A client and its server; how they ended."""
        port = free_port()
        command = [program, *arguments, "-p", str(port)]
        environment = self._places | ENVIRONMENTS[way] | dict(more)
        with Program(command, environment) as server:
            deadline = time.monotonic() + _LISTENING
            while server.runs and not listens(port) and time.monotonic() < deadline:
                time.sleep(0.01)
            client = run([program, *option, "127.0.0.1", *command[1:]], environment, _LIMIT)
            return client, server.done(_LIMIT if client.status == 0 else 1)

    def _add(self, test: str, right: bool, said: Sequence[str]) -> None:
        self.client.add(VARIANT, test, passed(right), said=() if right else said)


def text(nbytes: int) -> str:
    """The text that the example sends, without its last byte."""
    return "".join(ascii_uppercase[index % 26] for index in range(nbytes - 1))


def texts_in(said: str) -> list[str]:
    """The texts that the example says arrived."""
    found = re.findall(r"----- UCP TEST SUCCESS ----\s*(.*?)\s*-{8,}", said, re.DOTALL)
    return [str(one) for one in found]


def proofs(log: str) -> dict[str, dict[str, Any]]:
    """For each line that proves use: how often it occurs, and its first occurrence."""
    found = {what: re.findall(pattern, log) for what, pattern in EVIDENCE.items()}
    return {
        what: {"count": len(lines), "first": lines[0] if lines else None}
        for what, lines in found.items()
    }


def latencies(csv: str) -> dict[int, float]:
    """By size of the messages, the median one-way time in ns, as ``ucx_perftest -v`` prints it."""
    lines = re.findall(r"^(\d+), *\d+,([\d.]+),", csv, re.MULTILINE)
    return {int(nbytes): float(us) * 1e3 for nbytes, us in lines}


def sweep(samples: Mapping[str, Sequence[Sequence[float]]]) -> Sweep:
    """From ns by way, round and size."""
    methods = dict.fromkeys(samples, _METHOD)
    found = Sweep(NAME, OPERATION, (SIZE,), methods=methods, unmoved=set(samples))
    for index, nbytes in enumerate(TIMED):
        point = Point((nbytes,), {way: [one[index] for one in of] for way, of in samples.items()})
        ratios = {
            GAIN: point.ratio(WITHOUT, [WITH]),
            OVER_ITSELF: point.ratio(WITH_AGAIN, [WITH]),
        }
        found.keep(point, ratios)
    return found


def by_size(timed: Sweep) -> dict[str, dict[str, list[float]]]:
    """Every sample in us, in the order of the rounds: by way, by size."""
    return {
        way: {
            size_words(*point.key): [round(ns / 1e3, 3) for ns in point.times[way]]
            for point in timed.points
        }
        for way in timed.methods
    }


def listens(port: int) -> bool:
    """Whether a process of this network namespace listens at a port, without connecting to it."""
    tables = (Path(f"/proc/net/{name}") for name in ("tcp", "tcp6"))
    listening = re.compile(rf"^ *\d+: \w+:{port:04X} \w+:0000 0A ", re.MULTILINE)
    return any(listening.search(table.read_text()) for table in tables if table.exists())


def _batch_line(nbytes: int) -> str:
    count = TIMED[nbytes]
    return f"{nbytes} -t tag_lat -m cuda,cuda -s {nbytes} -n {count} -w {_WARM_UP}\n"
