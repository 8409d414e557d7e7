"""What pyproject.toml cannot say: the C parts.

Three shared objects are built: the hot path (a CPython extension), the cold calls (cffi), and the
simulated CUDA driver, which is no Python module but a plain library with libcuda's SONAME.
"""

from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

HERE = Path(__file__).parent
CFLAGS = ["-std=gnu11", "-O2", "-fvisibility=hidden", "-Wall", "-Wextra"]
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
    ext_modules=[
        Extension(
            "gdrpy._core._mapping",
            sources(
                "gdrpy/_core/module.c",
                "gdrpy/_core/mapping.c",
                "gdrpy/_core/mapping_copies.c",
                "gdrpy/_core/flag.c",
                "gdrpy/_core/spin.c",
                "gdrpy/_core/channel*.c",
                "gdrpy/_core/dlpack.c",
                "gdrpy/_core/map.c",
                "gdrpy/_core/memfd.c",
                "gdrpy/_core/transfers.c",
                "gdrpy/_core/transfer_ways.c",
                "gdrpy/_core/transfers_rows.c",
                "gdrpy/_core/dma.c",
                "gdrpy/_core/dma_rows.c",
                "gdrpy/_core/cudadriver.c",
                "gdrpy/_core/pyhelp.c",
                "gdrpy/_core/layout.c",
                "gdrpy/_core/scatter.c",
                "gdrpy/_core/strided.c",
                "gdrpy/_core/write_many.c",
                "gdrpy/_core/copy*.c",
            ),
            depends=sources("gdrpy/_core/*.h", "gdrpy/include/gdrpy/*.h"),
            extra_compile_args=[*CFLAGS, "-pthread"],
            extra_link_args=["-ldl", "-pthread"],
            py_limited_api=True,
        ),
        Extension(
            "gdrpy._core._packet",
            sources("gdrpy/_core/packet.c"),
            depends=sources("gdrpy/_core/pyhelp.h"),
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
    cffi_modules=["gdrpy/_core/build_ffi.py:ffi"],
    cmdclass={"build_ext": BuildExt},
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
