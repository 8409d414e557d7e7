"""What pyproject.toml cannot say: the C parts.

The C core is built once, as a static library that every face links what it needs of. The hot path
is a CPython extension, the cold calls go through cffi. Plain libraries, no Python modules, are the
simulated CUDA driver, libgdrapi, which C programs and other Python packages load, the broker's
client for C programs, and the arenas that other packages take as allocators.
"""

import os
import re
import shlex
import shutil
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build import build
from setuptools.command.build_clib import build_clib
from setuptools.command.build_ext import build_ext

HERE = Path(__file__).parent
#: Free-threaded Pythons have no limited API: each minor version has wheels to itself.
FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
if FREE_THREADED and sys.version_info < (3, 14):
    raise SystemExit(
        "gdrpy needs 3.14t or newer of the free-threaded Pythons, and this is "
        f"{'.'.join(map(str, sys.version_info[:2]))}t, for which there is no cffi: take "
        "python3.14t, or a Python with the GIL from 3.11 on"
    )
CFLAGS = ["-std=gnu11", "-O2", "-fvisibility=hidden", "-Wall", "-Wextra"]
INCLUDE = ["gdrpy/_core", "gdrpy/include", "driver"]
HEADERS = ["gdrpy/_core/*/*.h", "gdrpy/include/*.h", "gdrpy/include/gdrpy/*.h"]
#: Folders of the core that are not in its library: its faces, each of which is one of its own.
FACES = {"arena", "brokerlib", "gdrapi", "python"}
PACKET = "packet_module.c"
FILTER = "filter.c"
LIBGDRAPI = "libgdrapi.so.2"
LIBGDRPY_BROKER = "libgdrpy-broker.so.1"
#: Extensions that are plain libraries, by the last part of their names.
LIBRARIES = {
    "libcuda": "libcuda.so.1",
    "libgdrapi": LIBGDRAPI,
    "libgdrapi_filter": "libgdrapi.so",
    "libgdrpy_arena": "libgdrpy_arena.so",
    "libgdrpy_broker": LIBGDRPY_BROKER,
}


def sources(*patterns: str) -> list[str]:
    """The C files that match, relative to the project as setuptools wants them."""
    return sorted(
        str(path.relative_to(HERE)) for pattern in patterns for path in HERE.glob(pattern)
    )


#: The pkg-config files: each one's template, and the header with the macros of its version.
PKG_CONFIG = {
    "gdrapi.pc": ("gdrapi", "gdrapi.h", "GDR_API_{}_VERSION"),
    "gdrpy-broker.pc": ("brokerlib", "gdrpy/broker.h", "GDRPY_BROKER_VERSION_{}"),
}


def pkg_config(name: str) -> str:
    """The pkg-config file of a library, of the version that its header tells."""
    folder, header, macro = PKG_CONFIG[name]
    pattern = rf"^#define {macro.format('(?:MAJOR|MINOR)')} (\d+)$"
    text = (HERE / "gdrpy/include" / header).read_text()
    version = ".".join(re.findall(pattern, text, re.MULTILINE))
    template = (HERE / "gdrpy/_core" / folder / f"{name}.in").read_text()
    return template.replace("@VERSION@", version).replace("@INCLUDEDIR@", "../../include")


def require_compiler() -> None:
    """End in one line where the C parts cannot be compiled, before anything is done."""
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")[0]
    if not shutil.which(compiler):
        raise SystemExit(
            f"gdrpy's C parts need a C compiler, and there is no {compiler}: apt install gcc "
            "libc6-dev (dnf install gcc), or name another one by CC"
        )


class Build(build):
    def run(self) -> None:
        require_compiler()
        super().run()


class BuildClib(build_clib):
    """The first of the parts, and in an editable installation what begins the build."""

    def run(self) -> None:
        require_compiler()
        super().run()


class BuildExt(build_ext):
    """Gives plain libraries the names that programs load them by, and pkg-config files."""

    def get_ext_filename(self, fullname: str) -> str:
        *package, name = fullname.split(".")
        if name in LIBRARIES:
            return str(Path(*package, LIBRARIES[name]))
        return super().get_ext_filename(fullname)

    def run(self) -> None:
        folder = Path(self.get_ext_fullpath("gdrpy.lib.libgdrapi")).parent / "pkgconfig"
        folder.mkdir(parents=True, exist_ok=True)
        for name in PKG_CONFIG:
            (folder / name).write_text(pkg_config(name))
        super().run()

    def build_extensions(self) -> None:
        # Some Pythons would have the libraries look where Python was on the machine of the build.
        linker = self.compiler.linker_so
        self.compiler.linker_so = [word for word in linker if not word.startswith("-Wl,-rpath")]
        super().build_extensions()


setup(
    libraries=[
        (
            "gdrcore",
            {
                "sources": [
                    path
                    for path in sources("gdrpy/_core/*/*.c")
                    if Path(path).parent.name not in FACES
                ],
                "obj_deps": {"": sources("gdrpy/_core/*/*.h", "driver/uapi/*.h")},
                "include_dirs": INCLUDE,
                "cflags": [*CFLAGS, "-pthread"],
            },
        )
    ],
    ext_modules=[
        Extension(
            "gdrpy._core._mapping",
            [path for path in sources("gdrpy/_core/python/*.c") if not path.endswith(PACKET)],
            depends=sources(*HEADERS, "gdrpy/_core/*/*.c"),
            include_dirs=INCLUDE,
            extra_compile_args=[*CFLAGS, "-pthread"],
            extra_link_args=["-ldl", "-pthread"],
            py_limited_api=not FREE_THREADED,
        ),
        Extension(
            "gdrpy._core._packet",
            ["gdrpy/_core/python/packet.c", f"gdrpy/_core/python/{PACKET}"],
            depends=sources(*HEADERS, "gdrpy/_core/*/*.c"),
            extra_compile_args=CFLAGS,
            py_limited_api=not FREE_THREADED,
        ),
        Extension(
            "gdrpy.sim.libcuda",
            sources("gdrpy/sim/src/*.c"),
            depends=sources("gdrpy/sim/src/*.h"),
            extra_compile_args=[*CFLAGS, "-pthread"],
            extra_link_args=["-Wl,-soname,libcuda.so.1", "-pthread"],
        ),
        # Never unloaded: what it opens for the process, and its watch over forks, stay too.
        Extension(
            "gdrpy.lib.libgdrapi",
            [path for path in sources("gdrpy/_core/gdrapi/*.c") if not path.endswith(FILTER)],
            depends=sources(*HEADERS),
            include_dirs=INCLUDE,
            extra_compile_args=[*CFLAGS, "-pthread"],
            extra_link_args=[
                f"-Wl,-soname,{LIBGDRAPI}",
                "-Wl,-z,defs",
                "-Wl,-z,nodelete",
                "-ldl",
                "-pthread",
            ],
        ),
        # Never unloaded: other libraries keep the addresses of its functions.
        Extension(
            "gdrpy.lib.libgdrpy_arena",
            sources("gdrpy/_core/arena/*.c"),
            depends=sources("gdrpy/_core/arena/*.h"),
            include_dirs=INCLUDE,
            extra_compile_args=[*CFLAGS, "-pthread"],
            extra_link_args=["-Wl,-soname,libgdrpy_arena.so", "-Wl,-z,nodelete", "-pthread"],
        ),
        Extension(
            "gdrpy.lib.libgdrpy_broker",
            ["gdrpy/_core/common/forks.c", *sources("gdrpy/_core/brokerlib/*.c")],
            depends=sources(*HEADERS),
            include_dirs=INCLUDE,
            extra_compile_args=[*CFLAGS, "-pthread"],
            extra_link_args=[
                f"-Wl,-soname,{LIBGDRPY_BROKER}",
                "-Wl,-z,defs",
                "-Wl,-z,nodelete",
                "-pthread",
            ],
        ),
        Extension(
            "gdrpy.lib.libgdrapi_filter",
            [f"gdrpy/_core/gdrapi/{FILTER}"],
            extra_compile_args=CFLAGS,
            extra_link_args=["-Wl,-soname,libgdrapi.so", f"-Wl,--filter,$ORIGIN/{LIBGDRAPI}"],
        ),
    ],
    # In a source distribution, which gets them from packaging/manual.py.
    data_files=[("share/man/man1", sources("man/*.1"))],
    cffi_modules=["gdrpy/_core/python/build_ffi.py:ffi"],
    cmdclass={"build": Build, "build_clib": BuildClib, "build_ext": BuildExt},
    options={} if FREE_THREADED else {"bdist_wheel": {"py_limited_api": "cp311"}},
)
