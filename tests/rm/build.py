"""Build the simulated resource manager (RM), a library for LD_PRELOAD.

In front of the C library it serves /dev/nvidiactl, /dev/nvidia<minor> and the files of
/proc/driver/nvidia as the stock NVIDIA kernel driver would, over the memory of the simulated GPU.

Its answers are those of the driver's release in releases.tsv, which releases.py makes.

Environment: FAKE_RM_VERSION, FAKE_RM_DEVICES and others (src/machine.h), FAKE_RM_GPU and
FAKE_RM_NO_COPY (src/channel.h), FAKE_RM_DELAY (src/engine.h), and FAKE_RM_FAULT (src/fault.h).
Functions for tests, through ``ctypes.CDLL(None)``: fakerm_count, fakerm_violation, fakerm_xid,
fakerm_set_fault and fakerm_pass_time (the end of src/preload.c).
"""

import hashlib
import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

import releases

HERE = Path(__file__).parent
PROJECT = HERE.parent.parent
CORE = PROJECT / "gdrpy/_core"
INCLUDE = PROJECT / "gdrpy/include"
SIM = PROJECT / "gdrpy/sim"
DRIVER = PROJECT / "driver"
SOURCES = sorted((HERE / "src").glob("*.c"))
WARNINGS = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-U_FORTIFY_SOURCE", "-D_GNU_SOURCE"]
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
#: The sanitizers' runtime must come before a preloaded library: so it is linked in.
PRELOADED = {
    "memory": [*SANITIZERS, "-static-libasan"],
    "threads": ["-fsanitize=thread", "-Wno-tsan", "-static-libtsan"],
}


def build(directory: Path) -> Path:
    """Build the library into ``directory`` and return its path, the value for LD_PRELOAD.

    A library that was built of the same is copied from the checkout's build folder.

    Raises:
        subprocess.CalledProcessError: the compiler refused.
    """
    library = directory / "libfakerm.so"
    kept = PROJECT / "build/rm" / f"libfakerm-{fingerprint()}.so"
    if kept.exists():
        shutil.copy(kept, library)
        return library
    compile_library(library)
    with suppress(OSError):  # as of a checkout that may only be read
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=kept.parent, delete=False) as copy:
            copy.write(library.read_bytes())
        Path(copy.name).chmod(0o755)
        Path(copy.name).rename(kept)
    return library


def fingerprint() -> str:
    """What tells one library from another: the sources, how they are compiled, and by what."""
    found = hashlib.sha256(subprocess.run(["gcc", "-v"], capture_output=True, check=True).stderr)
    for path in (Path(__file__), HERE / "releases.py", releases.TABLE, *sorted(HERE.glob("src/*"))):
        found.update(b"%s %d " % (path.name.encode(), path.stat().st_size) + path.read_bytes())
    return found.hexdigest()[:32]


def compile_library(library: Path) -> None:
    """Compile it, beside a header with the table of releases."""
    directory = library.parent
    write_releases(directory / "releases.h")
    # As the kernel does, it must do its part of a fork after everybody else's: so it begins first.
    options = [
        f"-I{directory}",
        "-O2",
        "-g",
        "-fPIC",
        "-shared",
        "-fvisibility=hidden",
        "-Wl,-z,initfirst",
    ]
    compile_c(library, SOURCES, options)


def build_fuzzer(directory: Path) -> Path:
    """Build fuzz.c and all but the interposers, to be run without LD_PRELOAD, under ASan and UBSan.

    Raises:
        subprocess.CalledProcessError: the compiler refused.
    """
    fuzzer = directory / "fuzz"
    write_releases(directory / "releases.h")
    sources = [HERE / "fuzz.c", *(path for path in SOURCES if path.name != "preload.c")]
    compile_c(fuzzer, sources, [f"-I{directory}", "-O1", "-g", *SANITIZERS])
    return fuzzer


def write_releases(header: Path) -> None:
    """The table of releases as C: an enumeration of the facts, and the facts of each release."""
    table = releases.read()
    names = [f"FACT_{name.replace('.', '_').upper()}" for name in table[0].facts]
    rows = []
    for release in table:
        numbers = ", ".join(map(c_number, release.facts.values()))
        first = ", ".join(map(str, releases.version_key(release.first)))
        rows.append(f"{{{{{first}}}, {{{numbers}}}}},")
    header.write_text(
        "#pragma once\n#include <stdint.h>\n#define FACT_ABSENT UINT32_MAX\n"
        f"enum fact {{{', '.join(names)}, FACT_COUNT}};\n"
        "struct release { unsigned int first[3]; uint32_t facts[FACT_COUNT]; };\n"
        "__attribute__((unused)) static const struct release releases[] = {\n"
        + "\n".join(rows)
        + "\n};\n"
    )


def c_number(value: str) -> str:
    """A value of the table; a list of indices as the bits that have these numbers."""
    if value == releases.ABSENT:
        return "FACT_ABSENT"
    if "," in value:
        return hex(sum(1 << int(index) for index in value.split(",")))
    return value


def build_core_test(directory: Path, name: str, *core: str, checks: str = "memory") -> Path:
    """Build a test and the files of the C core that match, for LD_PRELOAD, under sanitizers.

    What begins with a hyphen is an option for the compiler. ``checks`` is a key of PRELOADED.

    Raises:
        subprocess.CalledProcessError: the compiler refused.
    """
    program = directory / name
    sources = [HERE / f"{name}.c", *(path for pattern in core for path in CORE.glob(pattern))]
    folders = [f"-I{CORE}", f"-I{DRIVER}", f"-I{INCLUDE}", f"-I{SIM / 'src'}"]
    cuda = [f"-Wl,--no-as-needed,-rpath,{SIM}", SIM / "libcuda.so.1"]
    options = ["-O1", "-g", *folders, *PRELOADED[checks]]
    options += [pattern for pattern in core if pattern.startswith("-")]
    compile_c(program, [*sources, *cuda], options)
    return program


def compile_c(output: Path, sources: list[Path | str], options: list[str]) -> None:
    """Compile and link C sources with the warnings that this project's C is held to."""
    subprocess.run(
        ["gcc", *WARNINGS, *options, "-o", output, *sources, "-ldl", "-pthread"], check=True
    )
