"""torch's tensors in a pool that sleeps, on real GPUs."""

from __future__ import annotations

import pytest

import gdrpy

pytestmark = pytest.mark.gpu

MIB = 1 << 20


@pytest.fixture
def pool(torch):
    from gdrpy.torch import Pool

    with gdrpy.alloc(64 * MIB) as region:
        pool = Pool(region)
        yield pool
        pool.wake()
        pool.close()


class TestPool:
    def test_wakes_with_its_tensors_at_their_addresses(self, torch, pool):
        with pool.use():
            tensor = torch.arange(MIB, dtype=torch.int32, device="cuda")
        address = tensor.data_ptr()
        free = torch.cuda.mem_get_info()[0]
        pool.sleep()
        assert torch.cuda.mem_get_info()[0] >= free + 64 * MIB
        pool.wake()
        assert tensor.data_ptr() == address
        assert torch.equal(tensor, torch.arange(MIB, dtype=torch.int32, device="cuda"))
        del tensor

    def test_wakes_with_a_graph_that_needs_no_new_capture(self, torch, pool):
        with pool.use():
            weight = torch.full((MIB,), 2.0, device="cuda")
        result = torch.zeros(MIB, device="cuda")
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            torch.mul(weight, 3, out=result)
        pool.sleep()
        pool.wake()
        graph.replay()
        torch.cuda.synchronize()
        assert (float(result.min()), float(result.max())) == (6, 6)
        del graph, weight
