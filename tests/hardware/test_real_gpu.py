"""What only a real GPU can show."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import gdrpy
from gdrpy import cuda

pytestmark = pytest.mark.gpu

GIB = 1 << 30


def page_protections(address: int) -> str:
    """The permissions of the mapping that holds an address, as the kernel lists them."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, permissions, *_ = line.split()
        first, last = (int(end, 16) for end in span.split("-"))
        if first <= address < last:
            return permissions
    raise LookupError(hex(address))


class TestLargeRegion:
    def test_of_64_gib_is_right_at_both_ends(self, backend, nothing_leaks, gpu_read, gpu_write):
        nbytes = 64 * GIB
        with gdrpy.alloc(nbytes) as region:
            region.cpu.write(b"the first", 0)
            region.cpu.write(b"the last!", nbytes - 9)
            assert gpu_read(region.ptr, 9) == b"the first"
            assert gpu_read(region.ptr + nbytes - 9, 9) == b"the last!"
            gpu_write(region.ptr + nbytes - 9, b"from gpu!")
            assert region.cpu.read(9, nbytes - 9) == b"from gpu!"
            with region.map(33 * GIB + 5, 100) as middle:
                middle.write(b"the middle")
            assert gpu_read(region.ptr + 33 * GIB + 5, 10) == b"the middle"


class TestReadOnlyMapping:
    def test_is_read_only_in_the_page_table(self, backend):
        with gdrpy.alloc(4096) as region, region.map(readonly=True) as mapping:
            assert page_protections(mapping.address) == "r--s"


#: A kernel stores to a read-only GPU view, which ends the context of the process that does so.
STORE = """
import ctypes, os, sys
import gdrpy
from gdrpy import cuda

PTX = b'''
.version 6.0
.target sm_60
.address_size 64
.visible .entry store(.param .u64 where) {
	.reg .b64 %address;
	ld.param.u64 %address, [where];
	st.global.u32 [%address], 7;
	ret;
}
\\0'''
with gdrpy.Region.from_fd(int(sys.argv[1]), cpu=False, readonly=True) as reader, cuda.context(0):
    store = cuda.call("cuModuleGetFunction", cuda.call("cuModuleLoadData", PTX), b"store")
    where = (reader.ptr,), (ctypes.c_void_p,)
    try:
        cuda.call("cuLaunchKernel", store, 1, 1, 1, 1, 1, 1, 0, 0, where, 0)
        cuda.call("cuCtxSynchronize")
    except gdrpy.CudaError as error:
        print(error.name, flush=True)
os._exit(0)
"""


class TestReadOnlyGpuView:
    def test_is_not_written_by_a_kernel_of_its_process(self, backend, gpu_read):
        with gdrpy.alloc(4096) as region:
            region.write(b"kept")
            fd = region.export()
            done = subprocess.run(
                [sys.executable, "-c", STORE, str(fd)],
                pass_fds=[fd],
                capture_output=True,
                text=True,
                check=False,
                timeout=60,
            )
            os.close(fd)
            assert (done.stdout, done.stderr) == ("CUDA_ERROR_ILLEGAL_ADDRESS\n", "")
            assert gpu_read(region.ptr, 4) == region.read(4) == b"kept"


class TestTorch:
    @pytest.fixture
    def torch(self):
        return pytest.importorskip("torch")

    def test_tensor_of_the_default_allocator_is_pinned(self, torch, backend):
        tensor = torch.arange(1000, dtype=torch.int32, device="cuda")
        torch.cuda.synchronize()
        with gdrpy.open() as gdr, gdr.pin(tensor) as pin, pin.map() as mapping:
            array = mapping.numpy(np.int32)
            assert array[:1000].tolist() == list(range(1000))
            array[10:13] = [-1, -2, -3]
            mapping.flush()
            assert tensor[9:14].tolist() == [9, -1, -2, -3, 13]
            del array

    def test_slice_of_a_large_tensor_is_pinned_where_it_begins(self, torch, backend):
        tensor = torch.zeros(64 << 20, dtype=torch.uint8, device="cuda")
        part = tensor[33_333_333:33_333_433]
        torch.cuda.synchronize()
        with gdrpy.open() as gdr, gdr.pin(part) as pin, pin.map() as mapping:
            mapping.write(b"\x07" * 100)
        assert int(tensor.sum()) == 700
        assert tensor[33_333_333:33_333_433].tolist() == [7] * 100

    def test_tensor_over_a_region_shares_its_bytes(self, torch, backend):
        with gdrpy.alloc(1 << 20) as region:
            tensor = torch.as_tensor(region, device="cuda")
            region.write(bytes(range(100)), 1000)
            assert tensor[1000:1100].tolist() == list(range(100))
            tensor[5] = 42
            torch.cuda.synchronize()
            assert region.read(1, 5) == b"\x2a"
            del tensor

    def test_tensor_in_expandable_segments_is_pinned(self, backend):
        pytest.importorskip("torch")
        code = """
import torch, gdrpy
tensor = torch.full((1 << 20,), 5, dtype=torch.uint8, device="cuda")
torch.cuda.synchronize()
with gdrpy.open() as gdr, gdr.pin(tensor) as pin, pin.map() as mapping:
    print(mapping.read(4, 1000))
"""
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stdout == "b'\\x05\\x05\\x05\\x05'\n", done.stderr


class TestMemoryWithoutHandle:
    def test_of_a_stream_ordered_pool_is_refused(self, driver, backend):
        stream = cuda.call("cuStreamCreate", 1)
        pointer = cuda.call("cuMemAllocAsync", 4096, stream)
        with gdrpy.open() as gdr, pytest.raises(gdrpy.InvalidHandle, match="cuMemAllocAsync pool"):
            gdr.pin(int(pointer), 4096)
        cuda.call("cuMemFreeAsync", pointer, stream)
        cuda.call("cuStreamSynchronize", stream)
        cuda.call("cuStreamDestroy", stream)


class TestSeveralGpus:
    @pytest.fixture(autouse=True)
    def _(self):
        if cuda.device_count() < 2:
            pytest.skip("this machine has one GPU")

    def test_regions_lie_on_their_own(self, backend):
        regions = [gdrpy.alloc(4096, device) for device in range(cuda.device_count())]
        assert len({region.location for region in regions}) == len(regions)
        for device, region in enumerate(regions):
            region.write(bytes([device + 1]) * 100)
        for device, region in enumerate(regions):
            found = bytearray(100)
            with cuda.context(device):
                cuda.call("cuMemcpyDtoH", found, region.ptr, 100)
            assert bytes(found) == bytes([device + 1]) * 100
            fd = region.export()
            with gdrpy.Region.from_fd(fd) as again:
                assert again.device == device
                assert again.read(100) == bytes([device + 1]) * 100
            os.close(fd)
            region.close()

    def test_pointers_are_pinned_on_their_own(self, backend):
        with gdrpy.open() as gdr:
            for device in reversed(range(cuda.device_count())):
                with cuda.context(device):
                    pointer = int(cuda.call("cuMemAlloc", 100_000))
                    cuda.call("cuMemsetD8", pointer, device + 5, 100_000)
                    cuda.call("cuCtxSynchronize")
                with gdr.pin(pointer, 100_000) as pin, pin.map() as mapping:
                    assert pin.device == device
                    assert mapping.read(100, 99_900) == bytes([device + 5]) * 100
                with cuda.context(device):
                    cuda.call("cuMemFree", pointer)

    def test_see_each_others_regions(self, backend):
        with gdrpy.alloc(1 << 20, 0) as region:
            fd = region.export()
            with gdrpy.Region.from_fd(fd, device=1) as other:
                assert (other.device, other.location) == (1, region.location)
                region.write(b"hello")
                assert other.read(5, via="dma") == b"hello"
                other.write(b"world", via="dma")
                assert region.cpu.read(5) == b"world"
                for device in range(2):  # both may use the address
                    found = bytearray(5)
                    with cuda.context(device):
                        cuda.call("cuMemcpyDtoH", found, other.ptr, 5)
                    assert found == b"world"
            os.close(fd)

    def test_run_kernels_on_each_others_regions(self, backend):
        torch = pytest.importorskip("torch")
        with gdrpy.alloc(1 << 20, 0) as region:
            fd = region.export()
            other = gdrpy.Region.from_fd(fd, region.nbytes, device=1)
            os.close(fd)
            away = torch.from_dlpack(other)
            assert away.device == torch.device("cuda", 1)
            away.fill_(5)
            torch.cuda.synchronize(1)
            assert int(torch.from_dlpack(region).sum()) == 5 << 20
            shown = torch.as_tensor(other, device="cuda")  # of whichever GPU CUDA says
            assert int(shown.sum()) == 5 << 20
            other.array(1 << 20, "U8").write(torch.full((1 << 20,), 6, dtype=torch.uint8).cuda(0))
            assert int(away.sum()) == 6 << 20
            del away, shown
            other.close()

    @staticmethod
    def run(code: str, visible: str, *arguments: object, fds: tuple[int, ...] = ()) -> list[str]:
        """The lines that a program prints that sees some of the GPUs, in some order."""
        done = subprocess.run(
            [sys.executable, "-c", code, *map(str, arguments)],
            env={**os.environ, "CUDA_VISIBLE_DEVICES": visible},
            pass_fds=fds,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    def test_are_found_by_uuid_and_address_in_any_order(self, backend):
        code = """
import sys, gdrpy
for name in sys.argv[1:]:
    with gdrpy.alloc(4096, name) as region:
        print(region.device, region.location)
"""
        address = cuda.location(1)
        assert self.run(code, "1,0", cuda.uuid(1), address) == [f"0 {address}"] * 2

    def test_that_are_not_seen_are_told_with_the_remedy(self, backend):
        code = """
import sys, gdrpy
try:
    gdrpy.Region.from_fd(int(sys.argv[1]))
except gdrpy.NotFound as error:
    print(error)
print(gdrpy.Region.from_fd(int(sys.argv[1]), gpu=False).read(5))
"""
        with gdrpy.alloc(4096, 1) as region:
            region.write(b"hello")
            fd = region.export()
            error, found = self.run(code, "0", fd, fds=(fd,))
            os.close(fd)
        assert "the memory lies on a GPU that this process does not see" in error
        assert found == "b'hello'"

    def test_have_tensors_shared_where_they_are_whatever_the_broker_calls_it(self):
        pytest.importorskip("torch")
        code = """
import sys, gdrpy, torch
with gdrpy.connect(sys.argv[1]) as broker:
    tensors = gdrpy.torch.share(broker, "shared", {"one": torch.ones(10, device="cuda:0")})
    told = broker.stat("shared")
    print(told.device, told.uuid, tensors["one"].device, float(tensors["one"].sum()))
"""
        with gdrpy.broker.temporary() as path:
            assert self.run(code, "1,0", path) == [f"1 {cuda.uuid(1)} cuda:0 10.0"]
