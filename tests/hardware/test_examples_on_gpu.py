"""The examples on a real GPU, with kernels where they have some."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import brokerimport
import gdrpy
from exampleruns import EXAMPLES, LAST_LINES, NO_KERNELS, run
from gdrpy.broker import temporary
from gdrpy.cli import libgdrapi

pytestmark = pytest.mark.gpu

#: What they need beside gdrpy.
NEEDS = {
    "call_a_kernel.py": "cuda.bindings.nvrtc",
    "channel_to_kernel.py": "cuda.bindings.nvrtc",
    "decode_step.py": "torch",
    "paged_kv_cache.py": "torch",
    "parameter_server.py": "torch",
    "resident_kernel.py": "numba_cuda",
    "rolling_update.py": "torch",
    "transformers_weights.py": "torch",
    "two_engines.py": "torch",
}


@pytest.fixture(params=LAST_LINES)
def example(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    return name


class TestExample:
    def test_prints_its_result(self, backend, example, tmp_path):
        printed = run(example, tmp_path)
        assert printed.endswith(LAST_LINES[example].format(backend=backend))
        assert NO_KERNELS not in printed


class TestExampleInC:
    @pytest.fixture
    def build(self, tmp_path):
        def build(name: str, *words: str) -> Path:
            program = tmp_path / name.removesuffix(".c")
            subprocess.run(["gcc", "-o", program, EXAMPLES / name, *words], check=True)
            return program

        return build

    def test_of_the_broker_writes_by_cuda(self, backend, tmp_path):
        program = brokerimport.build(tmp_path, "-l:libcuda.so.1")
        with temporary() as path, gdrpy.connect(path) as broker:
            region = broker.allocate("greeting", 100)
            done = subprocess.run(
                [program, path, "greeting", "hello from C"], check=True, capture_output=True
            )
            assert done.stdout == f"{region.info().uuid}: written by CUDA\n".encode()
            assert region.read(12) == b"hello from C"

    def test_of_libgdrapi_stores_into_cuda_memory(self, build):
        folder = libgdrapi.SHARED_OBJECT.parent
        words = (
            f"-I{gdrpy.channel.include_dir()}",
            f"-L{folder}",
            "-lgdrapi",
            f"-Wl,-rpath,{folder}",
        )
        program = build("libgdrapi.c", *words, "-l:libcuda.so.1")
        done = subprocess.run([program], check=True, capture_output=True)
        assert (done.stdout, done.stderr) == (b"written by the CPU, read by CUDA\n", b"")
