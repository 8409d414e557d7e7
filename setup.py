"""What pyproject.toml cannot say: the C parts.

Three shared objects are built: the hot path (a CPython extension), the cold calls (cffi), and the
simulated CUDA driver, which is no Python module but a plain library with libcuda's SONAME.
"""

from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

HERE = Path(__file__).parent
CFLAGS = ["-std=gnu11", "-O2", "-fvisibility=hidden", "-Wall", "-Wextra"]
INCLUDE = ["gdrpy/_core", "gdrpy/include", "driver"]
HEADERS = ["gdrpy/_core/*.h", "gdrpy/_core/python/*.h", "gdrpy/include/gdrpy/*.h"]
PACKET = "packet.c"
SIMULATED_DRIVER = "gdrpy.sim.libcuda"


def sources(*patterns: str) -> list[str]:
    """The C files that match, relative to the project as setuptools wants them."""
    return sorted(
        str(path.relative_to(HERE)) for pattern in patterns for path in HERE.glob(pattern)
    )


class BuildExt(build_ext):
    """Gives the simulated driver the file name that programs load."""

    def get_ext_filename(self, fullname: str) -> str:
        if fullname.endswith("libcuda"):
            return str(Path(*fullname.split("."))) + ".so.1"
        return super().get_ext_filename(fullname)


setup(
    # The C core, which each of the faces links what it needs of.
    libraries=[
        (
            "gdrcore",
            {
                "sources": sources("gdrpy/_core/*.c"),
                "obj_deps": {"": sources("gdrpy/_core/*.h", "driver/uapi/*.h")},
                "include_dirs": INCLUDE,
                "cflags": [*CFLAGS, "-pthread"],
            },
        )
    ],
    ext_modules=[
        Extension(
            "gdrpy._core._mapping",
            [path for path in sources("gdrpy/_core/python/*.c") if not path.endswith(PACKET)],
            depends=sources(*HEADERS),
            include_dirs=INCLUDE,
            extra_compile_args=[*CFLAGS, "-pthread"],
            extra_link_args=["-ldl", "-pthread"],
            py_limited_api=True,
        ),
        Extension(
            "gdrpy._core._packet",
            [f"gdrpy/_core/python/{PACKET}"],
            depends=sources(*HEADERS),
            extra_compile_args=CFLAGS,
            py_limited_api=True,
        ),
        Extension(
            SIMULATED_DRIVER,
            sources("gdrpy/sim/src/*.c"),
            depends=sources("gdrpy/sim/src/*.h"),
            extra_compile_args=[*CFLAGS, "-pthread"],
            extra_link_args=["-Wl,-soname,libcuda.so.1", "-pthread"],
        ),
    ],
    cffi_modules=["gdrpy/_core/python/build_ffi.py:ffi"],
    cmdclass={"build_ext": BuildExt},
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
