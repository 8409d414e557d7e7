"""libgdrpy-broker: what it exports and needs, its header, and ``make install-broker``."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import gdrpy

PACKAGE = Path(gdrpy.__file__).parent
LIBRARY = PACKAGE / "lib" / "libgdrpy-broker.so.1"
HEADER = PACKAGE / "include" / "gdrpy" / "broker.h"
CHECKOUT = Path(__file__).parents[2]

PROGRAM = """
#include <gdrpy/broker.h>
#include <stdio.h>
int main(void)
{
	struct gdrpy_broker *broker = NULL;
	int result = gdrpy_broker_connect("none.sock", 1000, 0, &broker);
	printf("%s\\n", gdrpy_broker_result_name(result));
	return broker != NULL;
}
"""


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


class TestLibrary:
    def test_exports_the_functions_of_its_header_and_nothing_else(self):
        declared = set(re.findall(r"\b(gdrpy_\w+)\(", _without_comments(HEADER.read_text())))
        lines = run("nm", "-D", "--defined-only", LIBRARY).splitlines()
        assert {line.split()[-1] for line in lines} == declared

    def test_needs_the_c_library_alone(self):
        dynamic = run("readelf", "-d", LIBRARY)
        assert re.findall(r"soname: \[(.*)\]", dynamic) == ["libgdrpy-broker.so.1"]
        needed = re.findall(r"Shared library: \[(.*)\]", dynamic)
        # The loader has the function that finds a thread's variables.
        assert {name.partition(".")[0] for name in needed} <= {
            "libc",
            "libpthread",
            "ld-linux-x86-64",
            "ld-linux-aarch64",
        }

    def test_names_each_result_as_python_names_its_class(self, tmp_path):
        results = re.findall(r"^\tGDRPY_BROKER_\w+ = (-\d+)", HEADER.read_text(), re.M)
        assert len(results) == 16
        calls = "".join(f"puts(gdrpy_broker_result_name({one}));" for one in results)
        (tmp_path / "names.c").write_text(
            f"#include <gdrpy/broker.h>\n#include <stdio.h>\nint main(void) {{ {calls} }}\n"
        )
        build(tmp_path, "names.c")
        for name in run(tmp_path / "names").split():
            assert issubclass(getattr(gdrpy, name), gdrpy.Error)


def _without_comments(text: str) -> str:
    return re.sub(r"/\*.*?\*/", "", text, flags=re.S)


def build(folder: Path, name: str) -> None:
    where = [f"-I{PACKAGE / 'include'}", LIBRARY, f"-Wl,-rpath,{LIBRARY.parent}"]
    run("gcc", "-o", folder / Path(name).stem, folder / name, *where)


#: Sizes of structures, and offsets of their last members.
LAYOUTS = {
    "gdrpy_new_region": (112, "reserved", 48),
    "gdrpy_entry": (4568, "reserved", 4504),
    "gdrpy_event": (312, "reserved", 280),
    "gdrpy_region": (384, "uuid", 316),
}


class TestHeader:
    def test_has_the_layouts_of_the_table_and_the_librarys_version(self, tmp_path):
        rows = "".join(
            f'printf("%zu %zu\\n", sizeof(struct {name}), offsetof(struct {name}, {last}));'
            for name, (_, last, _) in LAYOUTS.items()
        )
        (tmp_path / "layouts.c").write_text(
            "#include <gdrpy/broker.h>\n#include <stdio.h>\nint main(void) { int major, minor; "
            f'gdrpy_broker_version(&major, &minor); printf("%d %d\\n", major, minor); {rows} }}\n'
        )
        build(tmp_path, "layouts.c")
        version, *layouts = run(tmp_path / "layouts").splitlines()
        assert version == "1 0"
        assert layouts == [f"{size} {offset}" for size, _, offset in LAYOUTS.values()]

    @pytest.mark.parametrize(
        "compiler",
        ["gcc -std=c99", "gcc -std=gnu17", "g++ -std=c++11 -x c++", "g++ -std=c++17 -x c++"],
    )
    def test_compiles_without_a_warning(self, tmp_path, compiler):
        (tmp_path / "only.c").write_text("#include <gdrpy/broker.h>\nint only;\n")
        strict = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", f"-I{PACKAGE / 'include'}"]
        run(*compiler.split(), *strict, "-c", "-o", tmp_path / "o", tmp_path / "only.c")


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Runs make in a copy of the sources."""
    tree = tmp_path_factory.mktemp("sources")
    for path in run("git", "-C", CHECKOUT, "ls-files", "Makefile", "gdrpy").split():
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_bytes((CHECKOUT / path).read_bytes())
    return lambda *words: run("make", "--no-print-directory", "-C", tree, *words)


class TestInstall:
    @pytest.fixture
    def installed(self, make, tmp_path) -> Path:
        make("install-broker", "PREFIX=/usr", f"DESTDIR={tmp_path}", "CFLAGS=-O1 -Werror")
        return tmp_path / "usr"

    def test_puts_library_links_header_and_pkg_config_file(self, installed):
        files = {path for path in installed.rglob("*") if not path.is_dir()}
        assert {str(path.relative_to(installed)) for path in files} == {
            "include/gdrpy/broker.h",
            "lib/libgdrpy-broker.so",
            "lib/libgdrpy-broker.so.1",
            "lib/libgdrpy-broker.so.1.0",
            "lib/pkgconfig/gdrpy-broker.pc",
        }

    def test_programs_build_by_pkg_config_and_run(self, need, installed, tmp_path):
        need("pkg-config")
        (tmp_path / "program.c").write_text(PROGRAM)
        pc = {"PKG_CONFIG_PATH": str(installed / "lib/pkgconfig")}
        assert run("pkg-config", "--modversion", "gdrpy-broker", **pc) == "1.0\n"
        flags = run("pkg-config", "--cflags", "--libs", "gdrpy-broker", **pc).split()
        run("gcc", "-Wall", "-Werror", "-o", tmp_path / "program", tmp_path / "program.c", *flags)
        there = str(installed / "lib")
        assert run(tmp_path / "program", LD_LIBRARY_PATH=there) == "BrokerUnavailable\n"

    def test_is_undone_by_make_uninstall(self, make, installed, tmp_path):
        make("uninstall-broker", "PREFIX=/usr", f"DESTDIR={tmp_path}")
        assert set(installed.rglob("*")) == {installed / "lib", installed / "include"}

    def test_is_undone_but_for_the_files_of_others(self, make, installed, tmp_path):
        others = {installed / "lib/pkgconfig/other.pc", installed / "include/gdrpy/other.h"}
        for other in others:
            other.touch()
        make("uninstall-broker", "PREFIX=/usr", f"DESTDIR={tmp_path}")
        assert {path for path in installed.rglob("*") if not path.is_dir()} == others

    def test_is_built_in_the_package_with_its_pkg_config_file(self, need, tmp_path):
        need("pkg-config")
        pc = {"PKG_CONFIG_PATH": str(LIBRARY.parent / "pkgconfig")}
        (tmp_path / "program.c").write_text(PROGRAM)
        flags = run("pkg-config", "--cflags", "--libs", "gdrpy-broker", **pc).split()
        run("gcc", "-o", tmp_path / "program", tmp_path / "program.c", *flags)
        there = str(LIBRARY.parent)
        assert run(tmp_path / "program", LD_LIBRARY_PATH=there) == "BrokerUnavailable\n"
