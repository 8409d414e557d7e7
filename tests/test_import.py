"""What importing the package costs and touches."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import gdrpy

WATCHED_IMPORT = """
import sys
opened = []
watched = ("open", "ctypes.dlopen")
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event in watched else None)
import gdrpy
heavy = {
    "numpy", "cuda", "_cffi_backend", "rich", "asyncio", "multiprocessing", "matplotlib", "torch"
} & set(sys.modules)
print(sorted(heavy), [path for path in opened if "/dev/" in path or "libcuda" in path])
"""


class TestImport:
    def test_touches_no_gpu_and_loads_nothing_heavy(self):
        done = subprocess.run(
            [sys.executable, "-c", WATCHED_IMPORT], capture_output=True, text=True, check=True
        )
        assert done.stdout == "[] []\n"

    def test_offers_what_all_lists(self):
        assert [name for name in gdrpy.__all__ if not hasattr(gdrpy, name)] == []

    def test_of_a_source_folder_that_is_not_built_says_what_to_do(self, tmp_path):
        source = Path(__file__).parent.parent / "gdrpy"
        copied = tmp_path / "gdrpy"
        shutil.copytree(source, copied, ignore=shutil.ignore_patterns("*.so*", "__pycache__"))
        done = subprocess.run(
            [sys.executable, "-c", "import gdrpy"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert "gdrpy's C parts are not built" in done.stderr
        assert "make build" in done.stderr


WITHOUT = """
import importlib, sys
sys.modules[sys.argv[2]] = None  # as if it were not installed
try:
    importlib.import_module(sys.argv[1])
except ModuleNotFoundError as error:
    print(error.name, error)
"""


class TestImportOfAModuleWhoseExtraIsMissing:
    @pytest.mark.parametrize(
        ("module", "missing", "remedy"),
        [
            ("gdrpy.torch", "torch", "gdrpy[torch]"),
            ("gdrpy.torch.memory_saver", "torch", "gdrpy[torch]"),
            ("gdrpy.transformers", "torch", "gdrpy[transformers]"),
            ("gdrpy.transformers", "transformers", "gdrpy[transformers]"),
            ("gdrpy.cupy", "cupy", "gdrpy[cupy]"),
            ("gdrpy.rmm", "rmm", "rmm-cu13"),
            ("gdrpy.vllm", "vllm", "gdrpy[vllm]"),
            ("gdrpy.channel.numba", "llvmlite", "gdrpy[numba]"),
            ("gdrpy.channel.triton", "triton", "gdrpy[torch]"),
        ],
    )
    def test_says_what_to_install(self, module, missing, remedy):
        done = subprocess.run(
            [sys.executable, "-c", WITHOUT, module, missing],
            capture_output=True,
            text=True,
            check=True,
        )
        said = f"{missing} No module named '{missing}': pip install '{remedy}'\n"
        assert done.stdout == said


OPENED = """
import sys
import gdrpy
heavy = sys.argv[2].split()
compiled = []
sys.addaudithook(lambda event, args: compiled.append(args[0]) if event == "compile" else None)
region = gdrpy.Region.from_fd(int(sys.argv[1]), gpu=False)
assert region.cpu.read(5) == b"hello"
region.close()
print(sorted(name for name in sys.modules if name in heavy or name.partition(".")[0] in heavy))
print([source for source in compiled if isinstance(source, str)])
"""

#: What takes long to import, and opening a region for the CPU has no use for. So does the first
#: call of compile(), as by the text annotations of a NamedTuple: 1 ms.
UNUSED = """
    numpy cuda asyncio rich importlib.metadata ctypes dataclasses inspect json logging
    pathlib subprocess
"""


class TestOpeningARegionForTheCpu:
    @pytest.mark.parametrize("device", [0, "cpu"])
    def test_imports_nothing_that_it_does_not_use_and_compiles_no_text(self, device):
        with gdrpy.alloc(4096, device) as region:
            region.write(b"hello")
            fd = region.export()
        environment = {name: value for name, value in os.environ.items() if "BACKEND" not in name}
        done = subprocess.run(
            [sys.executable, "-c", OPENED, str(fd), UNUSED],
            pass_fds=[fd],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        os.close(fd)
        assert (done.stdout, done.stderr) == ("[]\n[]\n", "")


GOT = """
import sys
import gdrpy
with gdrpy.connect(sys.argv[1]) as broker, broker.get("name", gpu=False) as region:
    assert region.read(5) == b"hello"
heavy = set(sys.argv[2].split())
print(sorted(heavy & sys.modules.keys()))
"""


class TestGettingARegionOfABroker:
    def test_imports_nothing_that_it_does_not_use(self):
        unused = """
            numpy cuda asyncio rich importlib.metadata ctypes dataclasses json logging
            pathlib subprocess
        """
        with (
            gdrpy.broker.temporary() as socket,
            gdrpy.connect(socket) as broker,
            broker.allocate("name", 4096, "cpu") as region,
        ):
            region.write(b"hello")
            done = subprocess.run(
                [sys.executable, "-c", GOT, socket, unused],
                capture_output=True,
                text=True,
                check=False,
            )
        assert (done.stdout, done.stderr) == ("[]\n", "")


class TestLazyNames:
    def test_are_those_that_type_checkers_see(self):
        tree = ast.parse(Path(gdrpy.__file__).read_text())
        seen = {
            alias.name: node.module
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
            if (node.module or "").startswith("gdrpy.")
        }
        assert set(gdrpy.__all__) == set(seen)
        lazy = {name: home for name, home in seen.items() if home != "gdrpy.errors"}
        assert lazy == gdrpy._HOMES

    def test_are_listed_before_they_are_used(self):
        code = "import gdrpy; print({*gdrpy.__all__, '__version__'} <= set(dir(gdrpy)))"
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        assert done.stdout == "True\n"

    def test_version_is_the_installed_one(self):
        assert gdrpy.__version__ == metadata.version("gdrpy")

    @pytest.mark.parametrize("name", ["aio.connect", "broker.temporary", "safetensors.load"])
    def test_of_modules_need_no_import_of_their_own(self, name):
        done = subprocess.run(
            [sys.executable, "-c", f"import gdrpy; print(callable(gdrpy.{name}))"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.stdout, done.stderr) == ("True\n", "")

    def test_that_do_not_exist_are_told_by_name(self):
        with pytest.raises(AttributeError, match="module 'gdrpy' has no attribute 'aloc'"):
            gdrpy.aloc  # noqa: B018
