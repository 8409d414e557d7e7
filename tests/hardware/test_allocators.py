"""Tensors of real libraries that are born in regions of a real GPU, and CPU views of theirs."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

import gdrpy
from gdrpy import cuda

pytestmark = pytest.mark.gpu

MIB = 1 << 20


@pytest.fixture
def cupy(backend):
    module = pytest.importorskip("cupy")
    yield module
    module.get_default_memory_pool().free_all_blocks()


@pytest.fixture
def numba_cuda(backend):
    return pytest.importorskip("numba.cuda")


@pytest.fixture
def rmm(backend):
    return pytest.importorskip("rmm")


@pytest.fixture
def jax(backend):
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    module = pytest.importorskip("jax")
    if module.default_backend() != "gpu":
        pytest.skip("jax has no GPU here")
    return module


@pytest.fixture
def region():
    with gdrpy.alloc(128 * MIB) as region:
        yield region


@pytest.fixture
def pool(torch, region):
    pool = gdrpy.torch.Pool(region)
    yield pool
    gc.collect()
    pool.close()


def lies_in(region: gdrpy.Region, address: int) -> bool:
    return region.ptr <= address < region.ptr + region.nbytes


SEEN_BY_ANOTHER = """
import sys
import numpy as np
import gdrpy

with gdrpy.Region.from_fd(int(sys.argv[1]), gpu=False) as region:
    array = region.numpy(np.float32, int(sys.argv[3]), int(sys.argv[2]))
    print(float(array.sum()))
    array[0] = 100
    region.cpu.flush()
    del array
"""


class TestTorchPool:
    def test_tensors_are_seen_by_the_cpu(self, torch, pool, region):
        with pool.use():
            tensor = torch.arange(1000, dtype=torch.float32, device="cuda")
        torch.cuda.synchronize()
        array = pool.array(tensor)
        assert (array.shape, array.dtype) == ((1000,), "F32")
        assert array.offset == tensor.data_ptr() - region.ptr
        assert array.numpy()[::100].tolist() == list(range(0, 1000, 100))
        array.numpy()[5] = -1
        region.cpu.flush()
        assert int(tensor[5]) == -1

    def test_tensors_are_seen_by_another_process(self, torch, pool, region):
        with pool.use():
            tensor = torch.ones(1000, device="cuda")
        torch.cuda.synchronize()
        fd = region.export()
        done = subprocess.run(
            [
                sys.executable,
                "-c",
                SEEN_BY_ANOTHER,
                str(fd),
                str(pool.array(tensor).offset),
                "1000",
            ],
            pass_fds=[fd],
            capture_output=True,
            text=True,
            check=True,
        )
        os.close(fd)
        assert done.stdout == "1000.0\n"
        assert int(tensor[0]) == 100

    def test_parameters_lie_in_the_region(self, torch, pool, region):
        with pool.use():
            module = torch.nn.Linear(512, 512, device="cuda", dtype=torch.bfloat16)
        assert lies_in(region, module.weight.data_ptr())
        assert lies_in(region, module.bias.data_ptr())
        pool.array(module.bias).write(torch.full((512,), 3, dtype=torch.bfloat16, device="cuda"))
        assert module.bias.tolist() == [3] * 512

    def test_nothing_else_of_torch_goes_there(self, torch, pool, region):
        with pool.use():
            inside = torch.empty(100, device="cuda")
        outside = [torch.empty(size, device="cuda") for size in (1, 1000, MIB, 8 * MIB)]
        assert lies_in(region, inside.data_ptr())
        assert [lies_in(region, tensor.data_ptr()) for tensor in outside] == [False] * 4
        found = []
        with pool.use():
            thread = threading.Thread(
                target=lambda: found.append(torch.empty(10, device="cuda").data_ptr())
            )
            thread.start()
            thread.join()
        assert lies_in(region, found[0]) is False
        with pytest.raises(ValueError, match=r"Pool\.array: the tensor .* does not lie in <Region"):
            pool.array(outside[0])

    def test_without_room_raises_torchs_own_error(self, torch, pool):
        with pool.use():
            kept = torch.empty(100 * MIB, dtype=torch.uint8, device="cuda")
            with pytest.raises(torch.OutOfMemoryError):
                torch.empty(100 * MIB, dtype=torch.uint8, device="cuda")
        assert pool.arena.used == 100 * MIB
        torch.empty(100 * MIB, dtype=torch.uint8, device="cuda")
        del kept

    def test_memory_is_used_again(self, torch, pool):
        addresses = set()
        for _ in range(5):
            with pool.use():
                addresses.add(torch.empty(100 * MIB, dtype=torch.uint8, device="cuda").data_ptr())
        assert len(addresses) == 1

    def test_closes_with_the_last_tensor(self, torch, region):
        pool = gdrpy.torch.Pool(region)
        with pool.use():
            tensor = torch.zeros(100, device="cuda")
        with pytest.raises(BufferError, match=r"Arena\.close: 1 block with 2097152 bytes in use"):
            pool.close()
        with pytest.raises(BufferError):
            region.close()
        with pool.use():
            other = torch.ones(100, device="cuda")
        assert (float(tensor.sum()), float(other.sum())) == (0, 100)
        del tensor, other
        pool.close()
        with pytest.raises(gdrpy.Closed), pool.use():
            pass
        region.close()

    def test_that_is_dropped_leaves_its_tensors(self, torch):
        region = gdrpy.alloc(32 * MIB)
        pool = gdrpy.torch.Pool(region)
        with pool.use():
            tensor = torch.full((100,), 7.0, device="cuda")
        del pool
        gc.collect()
        with pytest.raises(BufferError):
            region.close()
        del region
        gc.collect()
        torch.cuda.empty_cache()
        assert tensor.tolist() == [7] * 100
        with gdrpy.from_tensor(tensor) as mapped:
            assert mapped.numpy().tolist() == [7] * 100
        del tensor, mapped
        torch.cuda.empty_cache()
        with gdrpy.alloc(1) as other, gdrpy.Arena(other):
            assert gdrpy.arena.blocks._abandoned == []

    def test_serves_side_streams(self, torch, pool, region):
        streams = [torch.cuda.Stream() for _ in range(3)]
        tensors = []
        for number, stream in enumerate(streams):
            with torch.cuda.stream(stream), pool.use():
                tensors.append(torch.full((MIB,), float(number), device="cuda"))
        torch.cuda.synchronize()
        assert [float(tensor[-1]) for tensor in tensors] == [0, 1, 2]
        assert all(lies_in(region, tensor.data_ptr()) for tensor in tensors)
        del tensors

    def test_serves_a_graph_under_capture(self, torch, pool, region):
        static = torch.ones(1000, device="cuda")
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, pool=pool.mem_pool.id):
            result = static * 2
        static.fill_(21)
        graph.replay()
        torch.cuda.synchronize()
        assert lies_in(region, result.data_ptr())
        assert pool.array(result).numpy()[0] == 42
        del graph, result

    def test_shares_an_arena_with_others(self, torch, region):
        with gdrpy.Arena(region, 64 * MIB) as arena:
            pool = gdrpy.torch.Pool(arena)
            with pool.use():
                tensor = torch.empty(10, device="cuda")
            assert tensor.data_ptr() >= region.ptr + 64 * MIB
            block = arena.allocate(1000)
            arena.free(block)
            del tensor
            pool.close()
            assert arena.blocks == 0


class TestTorchSharing:
    def test_of_a_gpu_module_copies_once_and_shares(self, torch):
        from gdrpy.broker import temporary

        module = torch.nn.Linear(256, 256, device="cuda", dtype=torch.bfloat16)
        expected = module.weight.tolist()
        with temporary() as socket, gdrpy.connect(socket) as broker:
            shared = gdrpy.torch.share(broker, "model", module)
            module.load_state_dict(shared, assign=True)
            attached = gdrpy.torch.attach(broker, "model")
            assert attached["weight"].device == torch.device("cuda:0")
            assert attached["weight"].tolist() == expected
            with torch.no_grad():
                module.weight.fill_(1)
            assert attached["weight"].tolist() == [[1] * 256] * 256
            del shared, attached, module


class TestCupyAllocator:
    def test_puts_arrays_into_the_region(self, cupy, region):
        with gdrpy.Arena(region) as arena:
            with cupy.cuda.using_allocator(gdrpy.cupy.allocator(arena)):
                array = cupy.arange(1000, dtype=cupy.float32)
                empty = cupy.empty(0)
            cupy.cuda.Device().synchronize()
            offset = array.data.ptr - region.ptr
            assert region.numpy(np.float32, 1000, offset)[999] == 999
            assert arena.blocks >= 1
            del array, empty
            assert arena.blocks == 0

    def test_serves_a_pool_of_cupys(self, cupy, region):
        with gdrpy.Arena(region) as arena:
            pool = cupy.cuda.MemoryPool(gdrpy.cupy.allocator(arena))
            with cupy.cuda.using_allocator(pool.malloc):
                array = cupy.ones(1000)
                assert lies_in(region, array.data.ptr)
                del array
                assert arena.blocks == 1
                assert lies_in(region, cupy.ones(1000).data.ptr)
                assert arena.blocks == 1
            pool.free_all_blocks()
            assert arena.blocks == 0

    def test_frees_an_array_of_a_captured_stream_later(self, cupy, region):
        stream = cupy.cuda.Stream(non_blocking=True)
        mode = cupy.cuda.runtime.streamCaptureModeGlobal
        with gdrpy.Arena(region) as arena:
            with stream, cupy.cuda.using_allocator(gdrpy.cupy.allocator(arena)):
                array = cupy.ones(1000)
                array += 1  # which loads the kernel
                stream.synchronize()
                stream.begin_capture(mode)
                array += 1
                del array
                graph = stream.end_capture()
                assert arena.blocks == 1
                other = cupy.ones(1000)
                assert arena.blocks == 1
                stream.synchronize()
            del other, graph
            assert arena.blocks == 0

    def test_without_room_raises_cupys_own_error(self, cupy, region):
        allocate = gdrpy.cupy.allocator(region)
        with (
            cupy.cuda.using_allocator(allocate),
            pytest.raises(cupy.cuda.runtime.CUDARuntimeError, match="out of memory"),
        ):
            cupy.empty(200 * MIB, cupy.uint8)
        pool = cupy.cuda.MemoryPool(allocate)
        with cupy.cuda.using_allocator(pool.malloc):
            kept = cupy.empty(100 * MIB, cupy.uint8)
            with pytest.raises(cupy.cuda.memory.OutOfMemoryError):
                cupy.empty(100 * MIB, cupy.uint8)
            del kept
            # What the pool keeps is freed before it gives up.
            cupy.empty(110 * MIB, cupy.uint8)
        pool.free_all_blocks()
        del pool, allocate
        gc.collect()

    def test_array_outlives_allocator_and_region_object(self, cupy):
        allocate = gdrpy.cupy.allocator(gdrpy.alloc(2 * MIB))
        with cupy.cuda.using_allocator(allocate):
            array = cupy.full(100, 5)
        del allocate
        gc.collect()
        assert array.tolist() == [5] * 100


class TestRmmResource:
    def test_puts_buffers_into_the_region(self, rmm, region):
        with gdrpy.Arena(region) as arena:
            resource = gdrpy.rmm.resource(arena)
            buffer = rmm.DeviceBuffer(size=100, mr=resource)
            buffer.copy_from_host(np.arange(100, dtype=np.uint8))
            assert lies_in(region, buffer.ptr)
            assert region.read(100, buffer.ptr - region.ptr) == bytes(range(100))
            assert arena.blocks == 1
            del buffer
            assert arena.blocks == 0
            del resource

    def test_without_room_raises_memory_error(self, rmm, region):
        resource = gdrpy.rmm.resource(region)
        with pytest.raises(MemoryError):
            rmm.DeviceBuffer(size=200 * MIB, mr=resource)
        del resource
        gc.collect()


class TestFromTensor:
    def test_of_torch_is_pinned(self, torch):
        tensor = torch.zeros(100, dtype=torch.bfloat16, device="cuda")
        with gdrpy.from_tensor(tensor) as mapped:
            assert (type(mapped.region), mapped.ptr) == (gdrpy.Pin, tensor.data_ptr())
            assert (mapped.dtype, mapped.shape) == ("BF16", (100,))
            mapped.write(torch.arange(100, dtype=torch.bfloat16))
            assert tensor.tolist() == list(range(100))
            mapped.flag(0).set(0)
            assert tensor[:2].tolist() == [0, 0]

    def test_waits_for_what_torch_has_queued(self, torch):
        tensor = torch.zeros(16 * MIB, device="cuda")
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(50):
                tensor += 1
            with gdrpy.from_tensor(tensor) as mapped:
                assert mapped.numpy()[-1] == 50

    def test_of_torch_in_a_region_is_the_regions_view(self, torch, region):
        tensor = torch.from_dlpack(region.array((4,), "F32", 4096))
        with gdrpy.from_tensor(tensor) as mapped:
            assert (mapped.region, mapped.offset) == (region, 4096)
            mapped.numpy()[:] = 4
            mapped.region.cpu.flush()
            assert tensor.tolist() == [4] * 4
        del tensor, mapped

    def test_of_a_pools_tensor_is_the_regions_view(self, torch, pool, region):
        with pool.use():
            tensor = torch.empty(4, device="cuda")
        with gdrpy.from_tensor(tensor) as mapped:
            assert mapped.region is region
        del tensor, mapped

    def test_keeps_the_tensor(self, torch):
        tensor = torch.ones(64 * MIB, dtype=torch.uint8, device="cuda")
        mapped = gdrpy.from_tensor(tensor)
        held = torch.cuda.memory_allocated()
        del tensor
        assert torch.cuda.memory_allocated() == held
        mapped.close()
        assert torch.cuda.memory_allocated() == held - 64 * MIB

    def test_of_a_parameter_is_refused_by_torch(self, torch):
        parameter = torch.nn.Parameter(torch.zeros(4, device="cuda"))
        with pytest.raises(BufferError, match="detach"):
            gdrpy.from_tensor(parameter)
        gdrpy.from_tensor(parameter.detach()).close()

    def test_of_cupys_default_pool_is_pinned(self, cupy):
        array = cupy.arange(1000)
        with gdrpy.from_tensor(array[10:20]) as mapped:
            assert mapped.read().tolist() == list(range(10, 20))
            mapped.numpy()[0] = -5
            mapped.region.cpu.flush()
            assert int(array[10]) == -5

    def test_of_managed_memory_is_refused_with_the_reason(self, cupy):
        pool = cupy.cuda.MemoryPool(cupy.cuda.malloc_managed)
        with cupy.cuda.using_allocator(pool.malloc):
            array = cupy.arange(10)
        with pytest.raises(gdrpy.Error, match="managed"):
            gdrpy.from_tensor(array)

    def test_of_a_stream_ordered_pool_is_refused_with_the_reason(self, cupy):
        with cupy.cuda.using_allocator(cupy.cuda.MemoryAsyncPool().malloc):
            array = cupy.arange(10)
        with pytest.raises(gdrpy.Error, match="cuMemAllocAsync pool"):
            gdrpy.from_tensor(array)

    def test_of_jax_is_read_only(self, jax):
        array = jax.numpy.arange(1000).block_until_ready()
        with gdrpy.from_tensor(array) as mapped:
            assert mapped.readonly
            assert mapped.read().tolist() == list(range(1000))
            with pytest.raises(gdrpy.ReadOnly):
                mapped.write(np.zeros(1000, mapped.read().dtype))

    def test_of_numba_is_pinned(self, numba_cuda):
        array = numba_cuda.to_device(np.arange(10, dtype=np.float32))
        with gdrpy.from_tensor(array) as mapped:
            assert mapped.read().tolist() == list(range(10))


EXPANDABLE = """
import torch
import gdrpy

tensor = torch.zeros(1 << 20, device="cuda")
mapped = gdrpy.from_tensor(tensor)
mapped.numpy()[-1] = 3
mapped.region.cpu.flush()
print(type(mapped.region).__name__, float(tensor[-1]))
"""


class TestFromTensorInExpandableSegments:
    def test_is_mapped(self, torch):
        done = subprocess.run(
            [sys.executable, "-c", EXPANDABLE],
            env={**os.environ, "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout == "Pin 3.0\n"

    def test_pool_serves_tensors_beside_them(self, torch):
        program = """
import torch
import gdrpy

region = gdrpy.alloc(32 << 20)
pool = gdrpy.torch.Pool(region)
with pool.use():
    inside = torch.ones(100, device="cuda")
outside = torch.ones(100, device="cuda")
print(0 <= inside.data_ptr() - region.ptr < region.nbytes)
print(0 <= outside.data_ptr() - region.ptr < region.nbytes)
"""
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout == "True\nFalse\n"


class TestArenaOnAGpu:
    def test_frees_a_block_when_its_stream_is_done(self, backend, region):
        with gdrpy.Arena(region) as arena, cuda.context(0):
            stream = cuda.call("cuStreamCreate", 1)
            block = arena.allocate(64 * MIB)
            cuda.call("cuMemsetD8Async", block, 7, 64 * MIB, stream)
            arena.free(block, stream)
            assert cuda.call("cuStreamQuery", stream) is None
            cuda.call("cuStreamDestroy", stream)
