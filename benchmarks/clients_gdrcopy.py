"""NVIDIA's own test programs of gdrcopy, built against this library and its header."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

import gdrpy
from clients_program import compiler, libraries_in, link_libraries, run
from clients_row import FAIL, NOT_RUN, PASS, WAIVED, Client, passed

NAME = "gdrcopy"

#: Files that its sources must have.
NEEDED = ("include/gdrapi.h", "include/gdrconfig.h", "src/gdrapi_internal.h", "tests/sanity.cpp")

#: The unchanged sources, and those with exportable cuMemCreate memory.
STOCK, EXPORTABLE = "stock", "exportable"

_COHERENT = "for coherent platforms only"
_UNALIGNED = "unaligned pointers map, which the test wants refused"
_NOT_EXPORTABLE = "memory made without an exportable handle type is within a module's reach alone"
_FOREIGN = "reads the structure behind NVIDIA's own gdr_t"

#: The tests that do not pass on a machine without the module, and why.
_EXPECTED = {
    "basic_v2_forcepci_cumemalloc": (WAIVED, _COHERENT),
    "basic_v2_forcepci_vmmalloc": (WAIVED, _COHERENT),
    "data_validation_v2_forcepci_cumemalloc": (WAIVED, _COHERENT),
    "data_validation_mix_mappings_cumemalloc": (WAIVED, _COHERENT),
    "basic_with_tokens": (WAIVED, "mappings are persistent, which waives tokens"),
    "basic_unaligned_mapping": (FAIL, _UNALIGNED),
    "basic_small_buffers_mapping": (FAIL, _UNALIGNED),
}
_FOREIGN_PREFIX = "invalidation_unix_sock_shared_fd_"
_ON_VMM = "_vmmalloc"

#: Where the sources ask for memory that gdrcopy can pin, and what they would have to ask besides.
_ALLOCATION = "mprop.allocFlags.gpuDirectRDMACapable = 1;"
_ASK_EXPORTABLE = " mprop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;"

_LIMIT = 60
_BUILD_LIMIT = 120
#: Headers that the sources use without including them, which newer compilers refuse.
_MISSING_HEADERS = "cstdlib,cerrno,pthread.h"
_PROGRAMS = {
    "copybw": ("copybw.cpp",),
    "copylat": ("copylat.cpp",),
    "apiperf": ("apiperf.cpp",),
    "pplat": ("pplat.cu", "-arch=native"),
    "sanity": ("sanity.cpp", "testsuites/testsuite.cpp"),
}
_SIZES = ("-s", "1048576", "-w", "1000", "-r", "20")
_CALLS = ("-s", "16777216", "-n", "100", "-w", "10")
_VMM = ("-a", "cuMemCreate")
#: The measuring programs of each variant: arguments, and which lines of the output are results.
_MEASURING = {
    STOCK: (
        ("copybw", _SIZES, r"BW:"),
        ("copylat", _SIZES, r"gdr_copy_\w+ *\t *\d+ "),
        ("apiperf", _CALLS, r"^\d+\t"),
        ("pplat", ("-t", "10000", "-u", "20"), r"latency per iteration"),
    ),
    EXPORTABLE: (("copybw", (*_VMM, *_SIZES), r"BW:"), ("apiperf", (*_VMM, *_CALLS), r"^\d+\t")),
}


def attempt(source: Path, library: Path, folder: Path, step: Callable[[str], None]) -> Client:
    """Build all programs in ``folder`` and run them on device 0."""
    client = Client(NAME, _version((source / "include" / "gdrapi.h").read_text()))
    environment = {
        **libraries_in(library),
        "GDRCOPY_ENABLE_LOGGING": "1",
        "GDRCOPY_LOG_LEVEL": "3",
    }
    for variant in (STOCK, EXPORTABLE):
        step(f"{NAME}: building, {variant}")
        programs = folder / variant
        programs.mkdir()
        link_libraries(programs, library)
        if _build(client, variant, source, programs):
            step(f"{NAME}: running, {variant}")
            _sanity(client, variant, programs, environment)
            _measure(client, variant, programs, environment)
    return client


def _version(header: str) -> str | None:
    """The version in a gdrapi.h: ``2.6``."""
    parts = [re.search(rf"GDR_API_{part}_VERSION\s+(\d+)", header) for part in ("MAJOR", "MINOR")]
    return ".".join(part[1] for part in parts if part) or None


def exportable(text: str) -> str:
    """The sources' common.cpp, with memory that can be exported. Raises ValueError."""
    if text.count(_ALLOCATION) != 1:
        raise ValueError("tests/common.cpp of this gdrcopy allocates in another way")
    return text.replace(_ALLOCATION, _ALLOCATION + _ASK_EXPORTABLE)


def _build(client: Client, variant: str, source: Path, programs: Path) -> bool:
    """Whether everything could be compiled; a row says so."""
    tests = programs / "tests"
    shutil.copytree(source / "tests", tests)
    if variant == EXPORTABLE:
        common = tests / "common.cpp"
        try:
            common.write_text(exportable(common.read_text()))
        except ValueError as error:
            client.add(variant, "builds", FAIL, said=[str(error)])
            return False
    # This library's gdrapi.h is found before theirs.
    folders = (gdrpy.channel.include_dir(), source / "include", source / "src")
    flags = ["-include", _MISSING_HEADERS, *(f"-I{one}" for one in folders)]
    linked = [f"-L{programs}", "-lgdrapi", "-lcuda"]
    with ExitStack() as undo:
        compiling = []
        for name, made_of in _PROGRAMS.items():
            arguments = [*flags, *made_of, "common.cpp", "-o", str(programs / name), *linked]
            compiling.append(undo.enter_context(compiler(arguments, tests)))
        done = [one.done(_BUILD_LIMIT) for one in compiling]
    failed = [line for one in done if one.status != 0 for line in one.end()]
    seconds = max(one.seconds for one in done)
    client.add(variant, "builds", passed(not failed), said=failed, seconds=seconds)
    return not failed


def _sanity(client: Client, variant: str, programs: Path, environment: Mapping[str, str]) -> None:
    """Each test in a separate process."""
    sanity = str(programs / "sanity")
    listed = run([sanity, "-l"], environment, _LIMIT)
    names = test_names(listed.output)
    if not names:
        client.add(variant, "lists its tests", FAIL, said=listed.end())
    for name in names:
        if variant == EXPORTABLE and _ON_VMM not in name:
            continue
        expected, why = expectation(variant, name)
        if expected == NOT_RUN:
            client.add(variant, name, NOT_RUN, expected=NOT_RUN, why=why)
            continue
        done = run([sanity, "-v", "-d", "0", "-t", name], environment, _LIMIT)
        found = verdict(done.output)
        said = complaints(done.output) if found == expected else done.end()
        client.add(
            variant, name, found, expected=expected, why=why, said=said, seconds=done.seconds
        )


def test_names(listed: str) -> list[str]:
    """The tests that ``sanity -l`` lists, without the extended ones, which take long."""
    return re.findall(r"^    (\w+)$", listed.partition("extended")[0], re.MULTILINE)


def expectation(variant: str, name: str) -> tuple[str, str | None]:
    """The expected result of a test, and the reason if it is not a pass."""
    if name.startswith(_FOREIGN_PREFIX):
        return NOT_RUN, _FOREIGN
    if name in _EXPECTED:
        return _EXPECTED[name]
    if variant == STOCK and _ON_VMM in name:
        return FAIL, _NOT_EXPORTABLE
    return PASS, None


def verdict(output: str) -> str:
    """The verdict on the one test that ``sanity`` ran."""
    if re.search(r"Passed: 1\b", output):
        return PASS
    return WAIVED if re.search(r"Waived: 1\b", output) else FAIL


def complaints(output: str) -> list[str]:
    """The first lines that name an error."""
    wrong = re.compile(r"fail|error|warn|assert", re.IGNORECASE)
    summary = re.compile(r"Total:|List of")
    lines = output.splitlines()
    return [line for line in lines if wrong.search(line) and not summary.search(line)][:2]


def _measure(client: Client, variant: str, programs: Path, environment: Mapping[str, str]) -> None:
    """The programs that measure, with the lines that are their results."""
    for name, arguments, results in _MEASURING[variant]:
        done = run([str(programs / name), *arguments, "-d", "0"], environment, _LIMIT)
        lines = [line for line in done.output.splitlines() if re.search(results, line)]
        right = done.status == 0 and bool(lines)
        client.add(
            variant,
            name,
            passed(right),
            said=[" ".join(line.split()) for line in lines] if right else done.end(),
            seconds=done.seconds,
        )
