"""Tensors and captured graphs over regions that were detached, on real GPUs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

import gdrpy

pytestmark = pytest.mark.gpu

MIB = 1 << 20


@pytest.fixture
def region(torch) -> Iterator[gdrpy.Region]:
    with gdrpy.alloc(4 * MIB) as region:
        yield region


@pytest.fixture
def fd(region) -> Iterator[int]:
    """A descriptor of the region."""
    fd = region.export()
    yield fd
    os.close(fd)


def replayed(torch, graph, result) -> tuple[float, float]:
    """The least and the greatest of a graph's result."""
    result.zero_()
    graph.replay()
    torch.cuda.synchronize()
    return float(result.min()), float(result.max())


class TestTensor:
    def test_is_valid_again_after_the_attach(self, torch, region, fd):
        tensor = torch.from_dlpack(region.array(MIB, "float32"))
        tensor.fill_(3)
        address = tensor.data_ptr()
        region.detach()
        region.attach(fd)
        assert tensor.data_ptr() == address == region.ptr
        assert (float(tensor.min()), float(tensor.max())) == (3, 3)
        del tensor

    def test_is_read_to_the_end_by_the_work_before_the_detach(self, torch, region, fd):
        tensor = torch.from_dlpack(region.array(MIB, "float32"))
        tensor.fill_(3)
        out = torch.zeros(MIB, device="cuda")
        stream = torch.cuda.Stream()
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(500_000_000)
            out.copy_(tensor)
        assert not stream.query()
        region.detach()
        assert stream.query()
        torch.cuda.synchronize()
        assert (float(out.min()), float(out.max())) == (3, 3)
        region.attach(fd)
        del tensor


class TestCapturedGraph:
    @pytest.fixture
    def captured(self, torch, region):
        """A graph that doubles the region's floats into a tensor, and the tensor."""
        tensor = torch.from_dlpack(region.array(MIB, "float32"))
        result = torch.empty(MIB, device="cuda")
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            torch.mul(tensor, 2, out=result)
        tensor.fill_(3)
        assert replayed(torch, graph, result) == (6, 6)
        yield graph, result
        graph.reset()
        del tensor, result

    def test_sees_the_same_bytes_after_the_attach(self, torch, region, fd, captured):
        for _ in range(10):
            region.detach()
            region.attach(fd)
            assert replayed(torch, *captured) == (6, 6)

    def test_sees_other_memory_that_was_attached(self, torch, region, fd, captured):
        with gdrpy.alloc(4 * MIB) as newer:
            torch.from_dlpack(newer.array(MIB, "float32")).fill_(21)
            torch.cuda.synchronize()
            other = newer.export()
        region.detach()
        region.attach(other)
        os.close(other)
        assert replayed(torch, *captured) == (42, 42)
        region.detach()
        region.attach(fd)
        assert replayed(torch, *captured) == (6, 6)

    def test_under_capture_keeps_its_memory(self, torch):
        # In a process of its own: torch's caches do not recover from a capture that is ended so.
        code = """
import contextlib, gdrpy, torch
region = gdrpy.alloc(4 << 20)
region.write(b"kept")
tensor = torch.from_dlpack(region.array(1 << 20, "float32"))
graph = torch.cuda.CUDAGraph()
torch.cuda.synchronize()
# Asking what is queued may end the capture, which torch reports at its end.
with (
    contextlib.suppress(RuntimeError),
    torch.cuda.graph(graph, capture_error_mode="relaxed"),
):
    tensor.add_(1)
    try:
        region.detach()
    except BufferError as error:
        print(error)
print(region.detached, region.read(4))
"""
        done = subprocess.run(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True
        )
        refusal, state = done.stdout.splitlines()
        assert "while a graph is captured" in refusal
        assert state == "False b'kept'"
