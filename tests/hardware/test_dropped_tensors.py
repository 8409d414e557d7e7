"""Tensors in memory of gdrpy's that are dropped while kernels that read them are queued."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

pytestmark = pytest.mark.gpu

#: In a process of its own: a kernel that touches unmapped memory ends the context.
PROGRAM = """
import torch
import gdrpy

NBYTES = 64 << 20
out = torch.zeros(NBYTES, dtype=torch.uint8, device="cuda")
with torch.cuda.stream({stream}):
    {make}
    tensor.fill_(7)
    torch.cuda.synchronize()
    torch.cuda._sleep(500_000_000)
    for _ in range(8):
        out.copy_(tensor)
    pending = not torch.cuda.current_stream().query()
    del tensor
    torch.cuda.synchronize()
free = torch.cuda.mem_get_info()[0]
gdrpy.alloc(4).close()
given_back = torch.cuda.mem_get_info()[0] - free
print(pending, out.min().item(), out.max().item(), given_back == NBYTES)
"""

OF_A_DROPPED_REGION = "tensor = torch.from_dlpack(gdrpy.alloc(NBYTES))"
OF_A_COPY = """
region = gdrpy.alloc(NBYTES)
tensor = torch.from_dlpack(region, copy=True)
"""

#: What is dropped is made before the capture, since torch collects garbage when it begins.
CAPTURE = """
import gc
import torch
import gdrpy

NBYTES = 64 << 20
source = torch.ones(1 << 20, device="cuda")
result = torch.zeros(1 << 20, device="cuda")
result.copy_(source * 2).add_(1)
torch.cuda.synchronize()
{make}
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph, capture_error_mode={mode!r}):
    result.copy_(source * 2)
    before = torch.cuda.mem_get_info()[0]
    {drop}
    kept = torch.cuda.mem_get_info()[0] == before
    result.add_(1)
result.zero_()
graph.replay()
torch.cuda.synchronize()
free = torch.cuda.mem_get_info()[0]
gdrpy.alloc(4).close()
given_back = torch.cuda.mem_get_info()[0] - free
print(kept, result.min().item(), result.max().item(), given_back == NBYTES)
"""

A_REGION = "region = gdrpy.alloc(NBYTES)", "del region"
A_TENSOR = "tensor = torch.from_dlpack(gdrpy.alloc(NBYTES))", "del tensor"
A_CYCLE = "cycle = [gdrpy.alloc(NBYTES)]; cycle.append(cycle)", "del cycle; gc.collect()"


class TestMemoryDroppedInACapture:
    @pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
    @pytest.mark.parametrize(
        ("make", "drop"),
        [A_REGION, A_TENSOR, A_CYCLE],
        ids=["a region", "a tensor", "a cycle"],
    )
    def test_leaves_it_valid_and_comes_back_later(self, backend, make, drop, mode):
        done = subprocess.run(
            [sys.executable, "-c", CAPTURE.format(make=make, drop=drop, mode=mode)],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert (done.returncode, done.stdout) == (0, "True 3.0 3.0 True\n"), done.stderr


class TestTensorDroppedUnderItsKernels:
    @pytest.mark.parametrize("stream", ["torch.cuda.default_stream()", "torch.cuda.Stream()"])
    @pytest.mark.parametrize(
        "make", [OF_A_DROPPED_REGION, OF_A_COPY], ids=["of a dropped region", "of a copy"]
    )
    def test_is_read_to_the_end(self, backend, make, stream):
        make = textwrap.indent(make.strip(), "    ").strip()
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM.format(make=make, stream=stream)],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert (done.returncode, done.stdout) == (0, "True 7 7 True\n"), done.stderr
