"""Builds what a release is made of: the source distribution, and a wheel for each processor.

The source distribution has what a checkout has, and manual pages of the commands. The wheels are
made of it, by zig for the glibc that their tags name, so that neither this machine's compiler nor
its C library is in them. The same checkout gives the same bytes: times are of $SOURCE_DATE_EPOCH,
else of the commit. Recipes for conda and Spack are filled in for the source distribution.
"""

from __future__ import annotations

import argparse
import datetime
import gzip
import hashlib
import io
import itertools
import os
import subprocess
import sys
import tarfile
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import recipes
import ziglang

CHECKOUT = Path(__file__).resolve().parent.parent
ZIG = Path(ziglang.__file__).with_name("zig")
LINKER = Path(__file__).with_name("zig_linker.py")
MANUAL = Path(__file__).with_name("manual.py")
MACHINES = ("x86_64", "aarch64")
GLIBC = (2, 28)


def platform(machine: str) -> str:
    """The platform tag of a wheel."""
    return "manylinux_{}_{}_{}".format(*GLIBC, machine)


def run(*command: str | Path, **environment: str) -> None:
    """Run a command, and show what it printed if it fails."""
    done = subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")


def build(
    what: str,
    project: Path,
    into: Path,
    *options: str,
    python: str = sys.executable,
    **environment: str,
) -> Path:
    """Have the project's build backend make an sdist or a wheel; the file made."""
    into.mkdir()
    command = (python, "-m", "build", "--no-isolation", f"--{what}", "--outdir", into)
    run(
        *command,
        *(f"--config-setting=--build-option={option}" for option in options),
        project,
        **environment,
    )
    (made,) = into.iterdir()
    return made


def commit_time() -> int:
    """When the checkout was committed, in seconds of Unix time."""
    command = ["git", "-C", str(CHECKOUT), "log", "-1", "--format=%ct"]
    return int(subprocess.run(command, capture_output=True, check=True).stdout)


def manual(into: Path, epoch: int) -> list[Path]:
    """The manual pages, made in a folder."""
    day = datetime.datetime.fromtimestamp(epoch, datetime.UTC).date()
    run(sys.executable, MANUAL, into, "--date", str(day), PYTHONPATH=str(CHECKOUT))
    return sorted(into.iterdir())


def write_sdist(made: Path, pages: list[Path], into: Path, epoch: int) -> Path:
    """Put a source distribution into a folder, without when and by whom its files were written,
    and with manual pages.
    """
    found = into / made.name
    top = made.name.removesuffix(".tar.gz")
    with (
        tarfile.open(made) as source,
        found.open("wb") as raw,
        gzip.GzipFile("", "wb", fileobj=raw, mtime=epoch) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as target,
    ):
        for member in sorted(source, key=lambda member: member.name):
            plain = tarfile.TarInfo(member.name)
            plain.type, plain.size, plain.mtime = member.type, member.size, epoch
            plain.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            target.addfile(plain, source.extractfile(member))
        for page in pages:
            plain = tarfile.TarInfo(f"{top}/man/{page.name}")
            text = page.read_bytes()
            plain.size, plain.mtime = len(text), epoch
            target.addfile(plain, io.BytesIO(text))
    return found


def suffix(python: str, machine: str) -> dict[str, str]:
    """What tells setuptools how extensions of a free-threaded Python are called on a processor."""
    program = "import sys, sysconfig; print(sysconfig.get_config_var('Py_GIL_DISABLED') and "
    program += "f'.cpython-{sys.version_info.major}{sys.version_info.minor}t-' or '')"
    done = subprocess.run([python, "-c", program], capture_output=True, text=True, check=True)
    begin = done.stdout.strip()
    return {"SETUPTOOLS_EXT_SUFFIX": f"{begin}{machine}-linux-gnu.so"} if begin else {}


def build_wheel(sdist: Path, machine: str, into: Path, epoch: int, python: str) -> Path:
    """Build the wheel for a kind of processor."""
    target = "{}-linux-gnu.{}.{}".format(machine, *GLIBC)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with tarfile.open(sdist) as archive:
            archive.extractall(folder, filter="data")
        (project,) = folder.iterdir()
        made = build(
            "wheel",
            project,
            folder / "made",
            f"--plat-name={platform(machine)}",
            python=python,
            CC=f"{ZIG} cc -target {target}",
            AR=f"{ZIG} ar",
            LDSHARED=f"{sys.executable} {LINKER} {ZIG} {target}",
            CFLAGS="-g0 -Wno-macro-redefined",
            LDFLAGS="-Wl,-s",
            _PYTHON_HOST_PLATFORM=f"linux-{machine}",
            SOURCE_DATE_EPOCH=str(epoch),
            **suffix(python, machine),
        )
        return made.rename(into / made.name)


def checksums(files: list[Path]) -> str:
    """As ``sha256sum`` prints them."""
    lines = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files]
    return "".join(sorted(lines, key=lambda line: line.split()[1]))


def build_all(
    into: Path, machines: tuple[str, ...] = MACHINES, pythons: tuple[str, ...] = ()
) -> list[Path]:
    """Build the source distribution and wheels into a folder, whose older ones go.

    ``pythons`` are free-threaded ones, each of which gets wheels to itself.
    """
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH") or commit_time())
    into.mkdir(parents=True, exist_ok=True)
    for old in (*into.glob("gdrpy-*"), *into.glob("SHA256SUMS")):
        old.unlink()
    with tempfile.TemporaryDirectory() as name:
        pages = manual(Path(name, "man"), epoch)
        files = [write_sdist(build("sdist", CHECKOUT, Path(name, "made")), pages, into, epoch)]
    with ThreadPoolExecutor() as pool:
        files += pool.map(
            lambda wheel: build_wheel(files[0], wheel[0], into, epoch, wheel[1]),
            itertools.product(machines, (sys.executable, *pythons)),
        )
    (into / "SHA256SUMS").write_text(checksums(files))
    recipes.fill(files[0], into / "recipes")
    return files


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--into",
        type=Path,
        default=CHECKOUT / "dist",
        metavar="FOLDER",
        help="where they go (default: dist, in the checkout)",
    )
    parser.add_argument(
        "--machine",
        choices=MACHINES,
        action="append",
        help="build the wheel of this processor alone",
    )
    parser.add_argument(
        "--free-threaded",
        action="append",
        default=[],
        metavar="PYTHON",
        help="build wheels of this free-threaded Python as well: it is to have build, setuptools\n"
        "and cffi",
    )
    args = parser.parse_args()
    for file in build_all(args.into, tuple(args.machine or MACHINES), tuple(args.free_threaded)):
        print(file)


if __name__ == "__main__":
    main()
