"""Build the simulated resource manager, a library for LD_PRELOAD."""

import subprocess
from pathlib import Path

HERE = Path(__file__).parent
SOURCES = sorted((HERE / "src").glob("*.c"))
WARNINGS = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-U_FORTIFY_SOURCE", "-D_GNU_SOURCE"]
SANITIZER_STOPS = "-fno-sanitize-recover=all"


def build(directory: Path) -> Path:
    """Build the library into ``directory`` and return its path, the value for LD_PRELOAD.

    Raises:
        subprocess.CalledProcessError: the compiler refused.
    """
    library = directory / "libfakerm.so"
    compile_c(library, SOURCES, ["-O2", "-g", "-fPIC", "-shared", "-fvisibility=hidden"])
    return library


def compile_c(output: Path, sources: list[Path], options: list[str]) -> None:
    """Compile and link C sources with the warnings that this project's C is held to."""
    subprocess.run(
        ["gcc", *WARNINGS, *options, "-o", output, *sources, "-ldl", "-pthread"], check=True
    )


def build_fuzzer(directory: Path) -> Path:
    """Build the fuzzer of the protocol, with the address and undefined behaviour sanitizers."""
    fuzzer = directory / "fuzz"
    sources = [HERE / "fuzz.c", *(path for path in SOURCES if path.name != "preload.c")]
    compile_c(fuzzer, sources, ["-O1", "-g", "-fsanitize=address,undefined", SANITIZER_STOPS])
    return fuzzer
