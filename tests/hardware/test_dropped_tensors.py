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
