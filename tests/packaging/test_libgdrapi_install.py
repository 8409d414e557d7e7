"""``make install`` of libgdrapi, by gcc and make alone, and programs that use it."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from gdrpy import sim

CHECKOUT = Path(__file__).parents[2]

#: Uses the names of the header.
PROGRAM = Path(__file__).with_name("gdrapi_names.c")
PRINTED = "2.6 48 Write Combining\n3 1 3 4\n65536 ffffffffffffffff 0x20006 16\n2 4\n"


def run(*command: object, **environment: str) -> str:
    done = subprocess.run(
        command,
        env={"PATH": os.environ["PATH"], **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def files_below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of them."""
    tree = tmp_path_factory.mktemp("libgdrapi") / "sources"
    tracked = run("git", "-C", CHECKOUT, "ls-files", "Makefile", "gdrpy", "driver/uapi").split()
    for path in tracked:
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_bytes((CHECKOUT / path).read_bytes())
    return tree


@pytest.fixture(scope="module")
def make(need: Callable[..., None], sources: Path) -> Callable[..., str]:
    """Runs make in a copy of the sources, on a machine where Python fails whoever runs it.

    The loader of that machine looks into the folder ``system/lib`` beside them.
    """
    need("g++", "pkg-config")
    refusals = sources.with_name("no-python")
    refusals.mkdir()
    for name in ("python", "python3"):
        (refusals / name).write_text("#!/bin/sh\nexit 1\n")
        (refusals / name).chmod(0o755)
    (refusals / "ldconfig").write_text(
        f"#!/bin/sh\necho '{sources.parent}/system/lib: (from a test)'\n"
    )
    (refusals / "ldconfig").chmod(0o755)
    path = f"{refusals}:{os.environ['PATH']}"
    return lambda *words: run("make", "--no-print-directory", "-C", sources, *words, PATH=path)


@pytest.fixture(scope="module")
def installed(make: Callable[..., str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is installed below /usr, in a folder of its own."""
    root = tmp_path_factory.mktemp("root")
    make("install", "PREFIX=/usr", f"DESTDIR={root}", "CFLAGS=-O1 -Werror")
    return root / "usr"


class TestInstall:
    def test_puts_library_links_header_and_pkg_config_file(self, installed):
        assert files_below(installed) == {
            "include/gdrapi.h",
            "lib/libgdrapi.so",
            "lib/libgdrapi.so.2",
            "lib/libgdrapi.so.2.6",
            "lib/pkgconfig/gdrapi.pc",
        }
        assert (installed / "lib/libgdrapi.so").readlink() == Path("libgdrapi.so.2")
        assert (installed / "lib/libgdrapi.so.2").readlink() == Path("libgdrapi.so.2.6")

    def test_library_has_its_soname_and_needs_no_cuda(self, installed):
        dynamic = run("readelf", "-d", installed / "lib/libgdrapi.so.2")
        assert re.findall(r"soname: \[(.*)\]", dynamic) == ["libgdrapi.so.2"]
        assert set(re.findall(r"Shared library: \[(.*)\]", dynamic)) <= {
            "libc.so.6",
            "libdl.so.2",
            "libpthread.so.0",
        }

    @pytest.mark.parametrize(
        "compiler", ["gcc -std=c99", "g++ -std=c++11 -x c++", "g++ -std=c++17 -x c++"]
    )
    def test_programs_build_by_pkg_config_and_run(self, installed, tmp_path, compiler):
        program = tmp_path / "program"
        pc = {"PKG_CONFIG_PATH": str(installed / "lib/pkgconfig")}
        flags = run("pkg-config", "--cflags", "--libs", "gdrapi", **pc).split()
        strict = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"]
        run(*compiler.split(), *strict, "-o", program, PROGRAM, *flags)
        printed = run(
            program,
            LD_LIBRARY_PATH=str(installed / "lib"),
            LD_PRELOAD=sim.driver_path(),
        )
        assert printed == PRINTED

    def test_version_of_the_pkg_config_file_is_the_headers(self, installed):
        pc = {"PKG_CONFIG_PATH": str(installed / "lib/pkgconfig")}
        assert run("pkg-config", "--modversion", "gdrapi", **pc) == "2.6\n"

    def test_folders_may_be_chosen(self, make, tmp_path):
        make("install", "PREFIX=/opt/x", "LIBDIR=/opt/x/lib/here/lib64", f"DESTDIR={tmp_path}")
        library = tmp_path / "opt/x/lib/here/lib64"
        assert (library / "libgdrapi.so.2").exists()
        pc = {"PKG_CONFIG_PATH": str(library / "pkgconfig")}
        (include,) = re.findall(r"-I(\S+)", run("pkg-config", "--cflags", "gdrapi", **pc))
        assert Path(include).resolve() == tmp_path / "opt/x/include"

    def test_folders_may_be_relative_to_where_make_runs(self, make, sources):
        make("install", "PREFIX=out", "LIBDIR=out/lib64")
        assert files_below(sources / "out") == {
            "include/gdrapi.h",
            "lib64/libgdrapi.so",
            "lib64/libgdrapi.so.2",
            "lib64/libgdrapi.so.2.6",
            "lib64/pkgconfig/gdrapi.pc",
        }
        make("install", "DESTDIR=package")
        assert (sources / "package/usr/local/lib/libgdrapi.so.2").exists()


class TestNextSteps:
    def test_are_lines_that_have_programs_found_and_built(self, make, tmp_path):
        *_, below, what, library, pc = make("install", f"PREFIX={tmp_path}").splitlines()
        assert below == f"installed below {tmp_path}"
        assert what == "next, so that programs find it, and build with it:"
        shell = "\n".join([library, pc, 'echo "$LD_LIBRARY_PATH $PKG_CONFIG_PATH"'])
        assert run("sh", "-c", shell) == f"{tmp_path}/lib {tmp_path}/lib/pkgconfig\n"
        assert run("sh", "-c", shell, LD_LIBRARY_PATH="/x", PKG_CONFIG_PATH="/y") == (
            f"{tmp_path}/lib:/x {tmp_path}/lib/pkgconfig:/y\n"
        )

    def test_are_ldconfig_in_a_folder_of_the_loaders(self, make, sources):
        told = make("install", f"PREFIX={sources.parent}/system").splitlines()
        assert told[-2:] == [
            f"installed below {sources.parent}/system",
            "next, as root, so that programs find it: ldconfig",
        ]

    def test_are_none_for_a_package(self, make, tmp_path):
        told = make("install", f"DESTDIR={tmp_path}").splitlines()
        assert told[-1] == f"installed below {tmp_path}/usr/local"


class TestUninstall:
    def test_leaves_nothing_but_what_was_there_before(self, make, tmp_path):
        (tmp_path / "usr/local/include").mkdir(parents=True)
        (tmp_path / "usr/local/include/other.h").touch()
        make("install", f"DESTDIR={tmp_path}")
        make("uninstall", f"DESTDIR={tmp_path}")
        assert files_below(tmp_path) == {"usr/local/include/other.h"}
