from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import resource_sharer
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from uuid import UUID

import numpy as np
import pytest

import gdrpy
from gdrpy import cuda
from gdrpy.memory.vmm import granularity

MIB = 1 << 20
REFUSED_COPIES = {
    "cuMemcpyHtoD": lambda ptr, other: (ptr, b"x" * 64, 64),
    "cuMemcpyDtoD": lambda ptr, other: (ptr, other, 64),
    "cuMemcpy": lambda ptr, other: (ptr, other, 64),
    "cuMemcpyHtoDAsync": lambda ptr, other: (ptr, b"x" * 64, 64, 0),
    "cuMemsetD8": lambda ptr, other: (ptr, 1, 64),
    "cuMemsetD32Async": lambda ptr, other: (ptr, 1, 16, 0),
    "cuMemsetD2D8": lambda ptr, other: (ptr, 16, 1, 8, 4),
}
GIB = 1 << 30

CPU_ONLY_CHILD = """
import sys
import gdrpy
with gdrpy.Region.from_fd(int(sys.argv[1]), gpu=False) as region:
    assert region.read(5, 3) == b"hello", region.read(5, 3)
    region.write(b"from the child", 100)
    assert region.device is None
    print(region.nbytes, sorted(name for name in sys.modules if name.startswith("cuda.bindings.d")))
"""


class TestAllocatedRegion:
    def test_stores_of_the_cpu_are_seen_by_the_gpu(self, region, gpu_read):
        region.numpy(np.float32)[:4] = [1, 2, 3, 4]
        region.cpu.flush()
        assert gpu_read(region.ptr, 16) == np.array([1, 2, 3, 4], np.float32).tobytes()

    def test_writes_of_the_gpu_are_seen_by_the_cpu(self, region, driver):
        cuda.call("cuMemsetD32", region.ptr + 64, 0xDEADBEEF, 4)
        cuda.call("cuCtxSynchronize")
        assert region.cpu.read(20, 62) == region.read(
            2, 62
        ) + b"\xef\xbe\xad\xde" * 4 + region.read(2, 80)
        assert region.cpu.read(16, 64) == b"\xef\xbe\xad\xde" * 4

    def test_copies_of_the_driver_are_seen_by_the_cpu(self, region, gpu_write):
        gpu_write(region.ptr + 7, b"by the copy engine")
        assert region.cpu.read(18, 7) == b"by the copy engine"

    def test_holds_a_multiple_of_the_granularity(self, backend):
        with gdrpy.alloc(1) as region:
            assert region.nbytes == 1
            assert region.allocation_size == granularity(0) == gdrpy.rounded_size(1) == 2 * MIB

    def test_is_described_by_its_repr(self, region, backend):
        where = region.location
        assert repr(region) == f"<Region of 1048576 bytes on {where}, GPU and CPU view, {backend}>"
        region.close()
        assert repr(region) == "<Region CLOSED>"

    def test_for_reading_says_so_by_its_repr(self, region, backend):
        fd = region.export()
        for gpu, views in ((True, "GPU and CPU"), (False, "CPU")):
            with gdrpy.Region.from_fd(fd, 4096, gpu=gpu, readonly=True) as reader:
                assert repr(reader) == (
                    f"<Region of 4096 bytes on {reader.location}, read-only {views} view, "
                    f"{reader.cpu.backend}>"
                )
        os.close(fd)

    def test_several_regions_hold_their_own_bytes(self, backend):
        regions = [gdrpy.alloc(4096) for _ in range(5)]
        for number, region in enumerate(regions):
            region.write(bytes([number]) * 4096)
        assert [region.read(1, 4095) for region in regions] == [bytes([n]) for n in range(5)]
        for region in regions:
            region.close()

    @pytest.mark.large
    def test_larger_than_4_gib_is_addressed_at_both_ends(self, backend, gpu_read):
        nbytes = 4 * GIB + 4 * MIB
        with gdrpy.alloc(nbytes) as region:
            region.cpu.write(b"last", nbytes - 4)
            region.cpu.write(b"first", 0)
            assert gpu_read(region.ptr + nbytes - 4, 4) == b"last"
            assert gpu_read(region.ptr, 5) == b"first"
            assert region.cpu.read(4, nbytes - 4) == b"last"

    def test_without_cpu_view_is_read_and_written_by_dma(self, backend):
        with gdrpy.alloc(4096, cpu=False) as region:
            region.write(b"dma", 1)
            assert region.read(3, 1) == b"dma"
            calls = {"cpu": lambda: region.cpu, "numpy": region.numpy, "flag": region.flag}
            for call, ask in calls.items():
                with pytest.raises(gdrpy.MissingView) as caught:
                    ask()
                why = "it was opened without a CPU view: open it with cpu=True"
                assert str(caught.value) == f"Region.{call}: {why}"

    def test_without_gpu_view_is_read_and_written_by_the_cpu(self, backend):
        if backend in ("dmabuf", "gdrdrv"):
            with pytest.raises(gdrpy.InvalidHandle, match="gpu=True"):
                gdrpy.alloc(4096, gpu=False)
            return
        with gdrpy.alloc(4096, gpu=False) as region:
            region.write(b"cpu", 1)
            assert region.read(3, 1) == b"cpu"
            with pytest.raises(gdrpy.MissingView, match=r"Region\.ptr: .* open it with gpu=True"):
                _ = region.ptr


class TestMappingOfARegion:
    @pytest.mark.parametrize("offset", [0, 1, 4095, 4096, 4097, 65536 + 3])
    def test_begins_at_any_byte(self, region, gpu_read, offset):
        with region.map(offset, 100) as mapping:
            mapping.write(bytes(range(100)))
        assert gpu_read(region.ptr + offset, 100) == bytes(range(100))

    def test_reaches_to_the_last_byte(self, region):
        with region.map(MIB - 1) as mapping:
            assert mapping.nbytes == 1
            mapping.write(b"z")
        assert region.read(1, MIB - 1) == b"z"

    def test_two_of_them_agree(self, region):
        with region.map(100) as one, region.map(50, 1000) as other:
            one.write(b"same bytes")
            assert other.read(10, 50) == b"same bytes"

    def test_read_only_refuses_every_store(self, region):
        with region.map(readonly=True) as mapping:
            region.write(b"seen")
            assert mapping.read(4) == b"seen"
            for store in (lambda: mapping.write(b"x"), lambda: mapping.store(0, 1)):
                with pytest.raises(gdrpy.ReadOnly, match="readonly=False"):
                    store()
            with pytest.raises(gdrpy.ReadOnly):
                mapping.flag().set(1)
            with pytest.raises(ValueError, match="read-only"):
                mapping.numpy()[0] = 1
            assert memoryview(mapping).readonly

    @pytest.mark.parametrize(
        ("offset", "nbytes"), [(-1, 1), (0, 0), (0, -1), (0, MIB + 1), (MIB, 1), (MIB + 1, None)]
    )
    def test_outside_the_region_is_refused(self, region, offset, nbytes):
        with pytest.raises(ValueError, match=r"Region\.map"):
            region.map(offset, nbytes)

    def test_keeps_the_memory_alive_when_the_region_object_is_dropped(self, backend):
        array = gdrpy.alloc(4096).numpy()
        array[:3] = [1, 2, 3]
        assert array[:3].tolist() == [1, 2, 3]


class TestImportedRegion:
    def test_shows_the_same_bytes_in_both_views(self, region, gpu_read):
        fd = region.export()
        with gdrpy.Region.from_fd(fd) as other:
            os.close(fd)
            assert other.nbytes == region.allocation_size
            assert other.device == 0
            other.write(b"through the other", 10)
            assert region.read(17, 10) == b"through the other"
            assert gpu_read(other.ptr + 10, 17) == b"through the other"

    def test_outlives_the_region_that_it_came_from(self, backend):
        with gdrpy.alloc(4096) as region:
            region.write(b"still here")
            fd = region.export()
        with gdrpy.Region.from_fd(fd) as other:
            os.close(fd)
            assert other.read(10) == b"still here"

    def test_can_be_exported_again(self, region):
        fd = region.export()
        with gdrpy.Region.from_fd(fd) as second:
            os.close(fd)
            again = second.export()
        with gdrpy.Region.from_fd(again, gpu=False) as third:
            os.close(again)
            third.write(b"third")
        assert region.read(5) == b"third"

    def test_shows_as_many_bytes_as_asked_for(self, region):
        fd = region.export()
        with gdrpy.Region.from_fd(fd, 1000, gpu=False) as other:
            assert other.nbytes == 1000
            with pytest.raises(ValueError, match="outside"):
                other.write(b"xy", 999)
        os.close(fd)

    def test_refuses_more_bytes_than_there_are(self, region):
        fd = region.export()
        with pytest.raises(gdrpy.SizeMismatch, match="2097153 bytes .* has 2097152"):
            gdrpy.Region.from_fd(fd, 2 * MIB + 1)
        os.close(fd)

    def test_read_only_sees_the_writers_bytes(self, region):
        fd = region.export()
        with gdrpy.Region.from_fd(fd, gpu=False, readonly=True) as reader:
            region.write(b"news")
            assert reader.read(4) == b"news"
            with pytest.raises(gdrpy.ReadOnly):
                reader.write(b"x")
        os.close(fd)

    def test_without_cpu_view_is_copied_by_dma(self, region):
        fd = region.export()
        with gdrpy.Region.from_fd(fd, cpu=False) as other:
            other.write(b"dma", 5)
        os.close(fd)
        assert region.read(3, 5) == b"dma"

    def test_opens_in_a_process_without_cuda(self, region, tmp_path: Path):
        region.write(b"hello", 3)
        fd = region.export()
        child = subprocess.run(
            [sys.executable, "-c", CPU_ONLY_CHILD, str(fd)],
            pass_fds=[fd],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            check=False,
        )
        os.close(fd)
        assert child.stdout == "2097152 []\n", child.stderr
        assert region.read(14, 100) == b"from the child"

    def test_descriptor_is_not_inherited_over_exec(self, region):
        fd = region.export()
        assert not os.get_inheritable(fd)
        os.close(fd)


class TestWrongDescriptor:
    @pytest.fixture(
        params=["pipe", "socket", "file", "memfd", "closed", "negative", "absent", "long"]
    )
    def wrong(self, request, tmp_path: Path):
        import socket

        absent = {"negative": -1, "absent": 999, "long": 1 << 40}.get(request.param)
        if absent is not None:
            yield (
                absent,
                rf"^Region.from_fd: file descriptor {absent} is not open: pass one that Re",
            )
            return
        keep = []
        if request.param == "pipe":
            fd, other = os.pipe()
            keep.append(other)
        elif request.param == "socket":
            pair = socket.socketpair()
            keep.append(pair[1].detach())
            fd = pair[0].detach()
        elif request.param == "file":
            fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
            os.ftruncate(fd, 2 * MIB)
        elif request.param == "memfd":
            fd = os.memfd_create("gdrpy-sim-dev0")
            os.ftruncate(fd, 1000)
        else:
            fd = os.dup(0)
            os.close(fd)
        closed = (
            r"^Region.from_fd: file descriptor \d+ is not open: pass one that Region.export\(\)"
        )
        words = {"closed": closed, "file": "the file", "memfd": "resized|memory of|memfd"}
        yield fd, words.get(request.param, f"a {request.param}")
        for one in keep if request.param == "closed" else [*keep, fd]:
            os.close(one)

    @pytest.mark.parametrize("gpu", [True, False])
    def test_is_refused_and_named(self, contract, wrong, gpu):
        fd, words = wrong
        with pytest.raises(gdrpy.InvalidHandle, match=words) as caught:
            gdrpy.Region.from_fd(fd, gpu=gpu)
        assert isinstance(caught.value, ValueError)


class TestNamedGpu:
    @pytest.fixture(params=["uuid", "UUID", "PCI", "long PCI", "short PCI"])
    def name(self, driver, request):
        uuid = f"GPU-{UUID(bytes=bytes(cuda.call('cuDeviceGetUuid', 0).bytes))}"
        pci = cuda.call("cuDeviceGetPCIBusId", 13, 0).decode().rstrip("\0")
        return {
            "uuid": uuid,
            "UUID": uuid.upper(),
            "PCI": pci,
            "long PCI": f"0000{pci.upper()}",
            "short PCI": pci.removeprefix("0000:").removesuffix(".0"),
        }[request.param]

    def test_is_taken_wherever_an_ordinal_is(self, contract, name):
        with gdrpy.alloc(4096, name) as region:
            assert region.device == 0
        with gdrpy.page_locked(4096, name) as memory:
            assert memory.device == 0
        with gdrpy.Channel(device=name) as channel:
            assert channel.device == 0
        assert gdrpy.rounded_size(1, name) == granularity(name) == granularity(0)

    def test_is_taken_by_the_calls_of_cuda(self, contract, name):
        assert int(cuda.device(name)) == int(cuda.device(0))
        assert cuda.device_info(name) == cuda.device_info(0)
        with cuda.context(name):
            assert int(cuda.call("cuCtxGetCurrent")) == int(cuda.primary_context(0))


class TestWrongArguments:
    @pytest.mark.parametrize("nbytes", [0, -1, 1 << 62, -(1 << 70)])
    def test_size_out_of_range_is_refused(self, backend, nbytes):
        with pytest.raises(ValueError, match=f"nbytes must be .* {nbytes}$"):
            gdrpy.alloc(nbytes)

    @pytest.mark.parametrize("nbytes", [1.5, "4K", None, True])
    def test_size_that_is_no_int_is_refused(self, backend, nbytes):
        with pytest.raises(TypeError, match="nbytes must be an int"):
            gdrpy.alloc(nbytes)

    def test_more_than_the_gpu_has_is_out_of_memory(self, backend):
        words = "GPU 0 has no 64 TiB left: it has .* in all: allocate less$"
        with pytest.raises(gdrpy.OutOfMemory, match=words) as caught:
            gdrpy.alloc(1 << 46)
        assert isinstance(caught.value, MemoryError)

    @pytest.mark.parametrize("device", [-1, 99])
    def test_device_that_is_not_there_is_not_found(self, backend, device):
        words = f"there is no CUDA device {device}: this process sees [1-9], numbered from 0: "
        for call, use in (
            ("alloc", lambda: gdrpy.alloc(4096, device)),
            ("page_locked", lambda: gdrpy.page_locked(4096, device)),
            ("granularity", lambda: granularity(device)),
            ("rounded_size", lambda: gdrpy.rounded_size(1, device)),
            ("device", lambda: cuda.device(device)),
            ("device_info", lambda: cuda.device_info(device)),
        ):
            with pytest.raises(gdrpy.NotFound, match=f"^{call}: {words}.*CUDA_VISIBLE") as caught:
                use()
            assert isinstance(caught.value, KeyError)

    @pytest.mark.parametrize("device", ["0", "gpu", "GPU-0000", "3b", "0000:3b:00.1", ""])
    def test_text_that_names_no_gpu_is_refused(self, backend, device):
        words = (
            r"alloc: device must be a CUDA ordinal, a GPU's UUID .*, its PCI address .* or 'cpu'"
        )
        with pytest.raises(ValueError, match=f"{words}, not {device!r}$"):
            gdrpy.alloc(4096, device)

    @pytest.mark.parametrize("device", [None, 1.5, True])
    def test_what_names_no_gpu_is_refused(self, backend, device):
        words = (
            r"alloc: device must be a CUDA ordinal, a GPU's UUID .*, its PCI address .* or 'cpu'"
        )
        with pytest.raises(TypeError, match=f"{words}, not {device!r}$"):
            gdrpy.alloc(4096, device)

    @pytest.mark.parametrize("device", [f"GPU-{UUID(int=7)}", "0000:fe:1f.0"])
    def test_gpu_that_this_process_does_not_see_is_not_found(self, backend, device):
        words = f"alloc: there is no GPU {device} among those that this process sees .0: GPU-"
        with pytest.raises(gdrpy.NotFound, match=words):
            gdrpy.alloc(4096, device)

    def test_driver_call_without_a_current_context_is_told_how_to_get_one(self, region):
        with (
            ThreadPoolExecutor(1) as pool,
            pytest.raises(gdrpy.CudaError, match=r"with gdrpy\.cuda\.context\(0\)"),
        ):
            pool.submit(cuda.call, "cuMemcpyDtoH", bytearray(4), region.ptr, 4).result()

    def test_unknown_backend_is_refused_by_name(self, backend):
        with pytest.raises(ValueError, match="there is no backend 'magic'"):
            gdrpy.alloc(4096, backend="magic")


class TestClosedRegion:
    def test_closes_once_and_then_refuses_every_use(self, region):
        mapping = region.cpu
        region.close()
        region.close()
        assert region.closed
        assert mapping.closed
        uses = [
            lambda: region.ptr,
            lambda: region.cpu,
            lambda: region.write(b"x"),
            lambda: region.read(1),
            lambda: region.readinto(bytearray(1)),
            lambda: region.map(),
            lambda: region.numpy(),
            lambda: region.flag(),
            lambda: region.export(),
            lambda: region.__enter__(),
            lambda: mapping.read(1),
        ]
        for use in uses:
            with pytest.raises(gdrpy.Closed, match="closed"):
                use()

    @pytest.mark.parametrize("view", [lambda one: one.numpy(), lambda one: memoryview(one.cpu)])
    def test_with_live_views_stays_open(self, region, view):
        alive = view(region)
        with pytest.raises(BufferError, match=r"still use the memory \(1 of "):
            region.close()
        assert not region.closed
        region.write(b"x")
        assert bytes(alive[:1]) == b"x"
        del alive
        region.close()
        assert region.closed


@pytest.fixture(params=[True, False], ids=["both views", "GPU view"])
def reader(request, region):
    """The region as a process has it that opened it to be read only."""
    region.write(b"kept")
    fd = region.export()
    with gdrpy.Region.from_fd(fd, MIB, cpu=request.param, readonly=True) as reader:
        os.close(fd)
        yield reader


class TestReadOnlyRegion:
    def test_says_so(self, region, reader):
        assert (region.readonly, reader.readonly) == (False, True)

    def test_is_read_by_the_gpu(self, region, reader, gpu_read):
        assert gpu_read(reader.ptr, 4) == b"kept"
        region.write(b"news")
        assert gpu_read(reader.ptr, 4) == b"news"
        assert reader.read(4, via="dma") == b"news"

    @pytest.mark.parametrize("function", REFUSED_COPIES)
    def test_is_not_written_by_the_gpu(self, region, reader, driver, function):
        arguments = REFUSED_COPIES[function](reader.ptr, region.ptr)
        with pytest.raises(gdrpy.CudaError, match=f"{function}: CUDA_ERROR_INVALID_VALUE"):
            cuda.call(function, *arguments)
        cuda.call("cuCtxSynchronize")
        assert region.read(4) == reader.read(4) == b"kept"

    def test_refuses_every_way_to_write(self, reader):
        for write in (
            lambda: reader.write(b"x"),
            lambda: reader.write(bytes(MIB)),
            lambda: reader.write(b"x", via="dma"),
            lambda: reader.write_strided(np.ones((2, 4), np.uint8), 16),
            lambda: reader.fill(1),
            lambda: reader.array(4, "U8").write(np.zeros(4, np.uint8)),
            lambda: gdrpy.Arena(reader),
        ):
            with pytest.raises(gdrpy.ReadOnly, match="the region is read-only; open it with"):
                write()
        assert reader.read(4) == b"kept"

    def test_tells_by_its_mappings_too_how_one_may_write(self, reader):
        words = r"read-only; map with readonly=False, from .*: Region.from_fd\(.* a broker lets"
        with reader.map(0, 4096) as mapping:
            for write in (
                lambda: mapping.write(b"x"),
                lambda: mapping.flag(0).set(1),
                lambda: mapping.flag(0).stream_write(None, 1),
            ):
                with pytest.raises(gdrpy.ReadOnly, match=words):
                    write()

    def test_gives_read_only_mappings(self, reader):
        with reader.map(0, 4096) as mapping:
            assert mapping.readonly
            assert mapping.read(4) == b"kept"

    def test_refuses_to_have_its_words_written_by_a_stream(self, reader):
        with reader.map(0, 4096) as mapping, pytest.raises(gdrpy.ReadOnly, match="Flag.stream_wri"):
            mapping.flag().stream_write(None, 1)

    def test_shows_its_gpu_view_read_only(self, reader):
        if not cuda.simulated():
            assert reader.__cuda_array_interface__["data"] == (reader.ptr, True)
        if reader._cpu is not None:
            assert not np.from_dlpack(reader, device="cpu").flags.writeable
        with pytest.raises(BufferError, match=r"read-only.*max_version=\(1, 0\)"):
            reader.__dlpack__()

    @pytest.mark.parametrize("pointer", [lambda one: one.ptr, lambda one: one.array(MIB, "U8")])
    def test_is_pinned_read_only_if_it_can_be_pinned(self, reader, backend, asking, pointer):
        with gdrpy.open() as gdr:
            if backend in ("sim", "nvrm"):
                with pytest.raises(gdrpy.InvalidHandle, match="cannot be exported"):
                    gdr.pin(pointer(reader), MIB)
                return
            with gdr.pin(pointer(reader), MIB, **asking) as pin, pin.map() as mapping:
                assert (pin.readonly, mapping.readonly) == (True, True)
                assert mapping.read(4) == b"kept"

    def test_is_read_only_where_it_is_sent(self, reader):
        with ForkingPickler.loads(ForkingPickler.dumps(reader)) as other:
            assert other.readonly
            assert other.ptr != reader.ptr
            with pytest.raises(gdrpy.ReadOnly):
                other.write(b"x")
        resource_sharer.stop()


class TestMemoryThatTheGpuMayOnlyRead:
    """Of whoever mapped it so: the page tables tell."""

    @pytest.fixture
    def protected(self, region, driver):
        region.write(b"kept")
        access = driver.CUmemAccessDesc()
        access.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READ
        cuda.call("cuMemSetAccess", region.ptr, region.allocation_size, [access], 1)
        return region

    def test_is_pinned_read_only(self, protected, asking):
        with gdrpy.open() as gdr, gdr.pin(protected.ptr, MIB, **asking) as pin:
            mapping = pin.map()
            assert (pin.readonly, mapping.readonly) == (True, True)
            assert mapping.read(4) == b"kept"
            with pytest.raises(gdrpy.ReadOnly):
                mapping.write(b"x")

    def test_is_pinned_writable_where_it_may_write(self, region, asking):
        with gdrpy.open() as gdr, gdr.pin(region.ptr, MIB, **asking) as pin, pin.map() as mapping:
            assert (pin.readonly, mapping.readonly) == (False, False)
