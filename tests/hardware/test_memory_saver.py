"""Tensors that are paused by tag, through torch_memory_saver's interface, on real GPUs."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.gpu

MIB = 1 << 20
COUNT = 16 * MIB  # of float32: 64 MiB


@pytest.fixture
def saver(torch):
    from gdrpy.torch.memory_saver import TorchMemorySaver

    saver = TorchMemorySaver()
    yield saver
    saver.resume()
    for pool in saver._pools.values():
        heap = pool.arena
        pool.close()
        heap.close()


def free(torch) -> int:
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info()[0]


class TestRegion:
    def test_gives_memory_back_and_keeps_addresses_and_contents(self, torch, saver):
        with saver.region(enable_cpu_backup=True):
            tensor = torch.arange(COUNT, dtype=torch.int32, device="cuda")
        address, before = tensor.data_ptr(), free(torch)
        saver.pause()
        assert free(torch) == before + 64 * MIB
        saver.resume()
        assert (free(torch), tensor.data_ptr()) == (before, address)
        assert torch.equal(tensor, torch.arange(COUNT, dtype=torch.int32, device="cuda"))
        del tensor

    def test_is_paused_by_its_tag_alone(self, torch, saver):
        with saver.region("weights", enable_cpu_backup=True):
            weights = torch.full((COUNT,), 3.0, device="cuda")
        with saver.region("kv_cache"):
            cache = torch.full((2 * COUNT,), 4.0, device="cuda")
        before = free(torch)
        saver.pause("kv_cache")
        assert free(torch) == before + 128 * MIB
        assert float(weights.mean()) == 3
        saver.pause("weights")
        assert free(torch) == before + 192 * MIB
        saver.resume("weights")
        assert float(weights.mean()) == 3
        saver.resume()
        assert float(cache.fill_(5).mean()) == 5
        del weights, cache

    def test_inside_another_has_its_own_tensors(self, torch, saver):
        with saver.region("outer", enable_cpu_backup=True):
            one = torch.full((COUNT,), 1.0, device="cuda")
            with saver.region("inner"):
                two = torch.full((COUNT,), 2.0, device="cuda")
            with saver.disable():
                three = torch.full((COUNT,), 3.0, device="cuda")
            four = torch.full((COUNT,), 4.0, device="cuda")
        before = free(torch)
        saver.pause("inner")
        assert free(torch) == before + 64 * MIB
        saver.pause("outer")
        assert free(torch) == before + 192 * MIB
        assert float(three.mean()) == 3
        saver.resume()
        assert (float(one.mean()), float(four.mean())) == (1, 4)
        del one, two, three, four

    def test_shows_what_it_kept(self, torch, saver):
        with saver.region(enable_cpu_backup=True):
            tensor = torch.arange(30, device="cuda").view(5, 6)
        assert saver.get_cpu_backup(tensor) is None
        saver.pause()
        backup = saver.get_cpu_backup(tensor)
        saver.resume()
        assert torch.equal(backup, torch.arange(30).view(5, 6))
        with pytest.raises(ValueError, match=r"tensor of shape \(2,\) on cuda:0 is not contiguous"):
            saver.get_cpu_backup(torch.zeros(2, device="cuda"))
        del tensor

    def test_that_is_full_raises_torchs_error_and_loses_nothing(self, torch, saver):
        with saver.region(enable_cpu_backup=True):
            tensor = torch.full((COUNT,), 3.0, device="cuda")
            with pytest.raises(torch.OutOfMemoryError):
                torch.empty(1 << 40, dtype=torch.uint8, device="cuda")
        saver.pause()
        saver.resume()
        assert float(tensor.mean()) == 3
        del tensor

    def test_frees_its_memory_with_its_tensors(self, torch, saver):
        before = free(torch)
        with saver.region():
            tensor = torch.zeros(COUNT, device="cuda")
        del tensor
        saver._pools.clear()
        assert free(torch) == before


class TestGraph:
    def test_replays_after_it_was_paused(self, torch, saver):
        with saver.region("weights", enable_cpu_backup=True):
            weight = torch.full((COUNT,), 2.0, device="cuda")
        result = torch.zeros(COUNT, device="cuda")
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with saver.cuda_graph(graph, tag="graph"):
            between = weight * 3
            result.copy_(between + 1)
        del between
        before = free(torch)
        saver.pause()
        assert free(torch) >= before + 128 * MIB
        saver.resume()
        graph.replay()
        assert (float(result.min()), float(result.max())) == (7, 7)
        graph.reset()
        del graph, weight

    def test_shares_memory_with_graphs_of_its_pool(self, torch, saver):
        handle, graphs = torch.cuda.graph_pool_handle(), []
        source = torch.ones(COUNT, device="cuda")
        result = torch.zeros(COUNT, device="cuda")
        torch.cuda.synchronize()
        for factor in (2, 3):
            graph = torch.cuda.CUDAGraph()
            with saver.cuda_graph(cuda_graph=graph, pool=handle, tag="graph"):
                result.copy_(source * factor)
            graphs.append(graph)
        ((_, pool),) = saver._pools.items()
        assert pool.arena.used < 128 * MIB
        saver.pause()
        saver.resume()
        answers = []
        for graph in graphs:
            graph.replay()
            answers.append(float(result.mean()))
            graph.reset()
        assert answers == [2, 3]
        del graph, graphs

    def test_shares_memory_with_the_graph_whose_pool_it_names(self, torch, saver):
        source, result = torch.ones(COUNT, device="cuda"), torch.zeros(COUNT, device="cuda")
        torch.cuda.synchronize()
        first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with saver.cuda_graph(first, tag="graph"):
            result.copy_(source * 2)
        with saver.cuda_graph(second, pool=first.pool(), tag="graph"):
            result.copy_(source * 3)
        assert len(saver._pools) == 1
        second.replay()
        assert float(result.mean()) == 3
        first.reset()
        second.reset()
        del first, second

    def test_frees_its_memory_with_its_last_use(self, torch, saver):
        source, result = torch.ones(COUNT, device="cuda"), torch.zeros(COUNT, device="cuda")
        before = free(torch)
        for _ in range(70):  # more than there are heaps
            graph = torch.cuda.CUDAGraph()
            with saver.cuda_graph(graph):
                result.copy_(source * 2)
            graph.reset()
            del graph
        saver.pause()
        saver.resume()
        assert (len(saver._pools), free(torch)) == (0, before)


def run(program: str) -> tuple[int, str, str]:
    """A program's status and output; torch does not recover from a capture that was ruined."""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    )
    return done.returncode, done.stdout, done.stderr


PREPARED = """
from contextlib import suppress
import torch
from gdrpy.torch.memory_saver import torch_memory_saver as saver

source, result = torch.ones(1 << 24, device="cuda"), torch.zeros(1 << 24, device="cuda")
torch.cuda.synchronize()
"""

#: The first round loads the kernels, which takes memory.
AN_EXCEPTION = (
    PREPARED
    + """
for _ in range(2):
    torch.cuda.empty_cache()
    before = torch.cuda.mem_get_info()[0]
    graph = torch.cuda.CUDAGraph()
    with suppress(KeyError), saver.cuda_graph(graph, tag="graph"):
        result.copy_(source * 2)
        raise KeyError
    graph.reset()
    del graph
    saver.pause()
    saver.resume()
torch.cuda.synchronize()
torch.cuda.empty_cache()
print(len(saver._pools), torch.cuda.mem_get_info()[0] == before)
"""
)

A_RUINED_CAPTURE = (
    PREPARED
    + """
graph = torch.cuda.CUDAGraph()
try:
    with saver.cuda_graph(graph, tag="graph"):
        result.copy_(source * 2)
        {ruin}
except RuntimeError:
    print("ruined")
for _ in range(2):
    with saver.region("weights", enable_cpu_backup=True):
        weights = torch.full((1 << 24,), 5.0, device="cuda")
    saver.pause()
    saver.resume()
    print(float(weights.mean()))
    del weights
del graph
saver.pause()
saver.resume()
print(len(saver._pools))
"""
)


class TestFailedCapture:
    def test_by_an_exception_of_the_block_leaves_nothing(self, torch):
        assert run(AN_EXCEPTION) == (0, "0 True\n", "")

    @pytest.mark.parametrize(
        "ruin",
        [
            "torch.cuda.synchronize()",
            "with suppress(RuntimeError): torch.cuda.synchronize()",
        ],
        ids=["with an exception", "in silence"],
    )
    def test_that_is_ruined_raises_and_the_process_ends_well(self, torch, ruin):
        status, output, errors = run(A_RUINED_CAPTURE.format(ruin=ruin))
        assert (status, output) == (0, "ruined\n5.0\n5.0\n2\n"), errors


class TestWhatIsNotThere:
    @pytest.mark.parametrize(
        "use",
        [
            lambda saver: saver.region(enable_disk_backup=True).__enter__(),
            lambda saver: saver.region(cpu_backup_backend="pinned").__enter__(),
            lambda saver: saver.region(
                enable_cpu_backup=True, cpu_backup_backend="mmap"
            ).__enter__(),
            lambda saver: setattr(saver, "retain_cpu_backup", True),
            lambda saver: setattr(saver, "memory_margin_bytes", 1),
            lambda saver: setattr(saver, "hook_mode", "other"),
            lambda saver: saver.set_disk_backup_dir("/tmp"),
        ],
    )
    def test_is_refused(self, saver, use):
        with pytest.raises(ValueError, match=":|must be"):
            use(saver)


def test_frameworks_find_it(torch):
    code = (
        "import gdrpy.torch.memory_saver\n"
        "gdrpy.torch.memory_saver.install()\n"
        "import torch\n"
        "from torch_memory_saver import configure_subprocess, torch_memory_saver as saver\n"
        "with configure_subprocess(), saver.region(tag='a', enable_cpu_backup=True):\n"
        "    x = torch.full((1000,), 5, device='cuda')\n"
        "saver.pause('a')\n"
        "saver.resume('a')\n"
        "print(int(x.sum()))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("5000\n", "")
