"""Tensors and mirrors on a real GPU, and what torch makes of them."""

from __future__ import annotations

import gc
import os
import weakref

import numpy as np
import pytest

import gdrpy
from gdrpy import cuda, safetensors

pytestmark = pytest.mark.gpu

MIB = 1 << 20


@pytest.fixture
def region(torch):
    with gdrpy.alloc(8 * MIB) as region:
        yield region


def free_memory() -> int:
    with cuda.context(0):
        return cuda.call("cuMemGetInfo")[0]


class TestTorchTensor:
    @pytest.mark.parametrize("views", [{}, {"cpu": False}, {"gpu": False}], ids=str)
    def test_is_written_and_read_into(self, torch, views):
        tensor = torch.arange(1 << 20, dtype=torch.float32, device="cuda")
        found = torch.zeros_like(tensor)
        with gdrpy.alloc(8 * MIB, "cuda:0", **views) as region:
            region.write(tensor, 64)
            assert region.read(tensor.nbytes, 64) == tensor.cpu().numpy().tobytes()
            assert region.readinto(found, 64) == tensor.nbytes
            assert found.equal(tensor)
            region.write(torch.nn.Parameter(tensor.cpu() + 1), 64)
            region.readinto(found, 64)
            assert found.equal(tensor + 1)

    def test_on_the_gpu_is_refused_by_a_mapping(self, region, torch):
        for use in (region.cpu.write, region.cpu.readinto):
            with pytest.raises(TypeError, match=r"this Tensor is not in host memory: pass it to"):
                use(torch.zeros(4, device="cuda"))


class TestTorchTensorOfARegion:
    def test_shares_its_bytes_on_the_gpu(self, region, torch):
        tensor = torch.from_dlpack(region)
        assert (tensor.device, tensor.dtype) == (torch.device("cuda:0"), torch.uint8)
        assert (tensor.shape, tensor.data_ptr()) == ((region.nbytes,), region.ptr)
        region.write(bytes(range(100)), 1000)
        assert tensor[1000:1100].tolist() == list(range(100))
        tensor[5] = 42
        torch.cuda.synchronize()
        assert region.read(1, 5) == b"\x2a"

    def test_of_a_side_stream_shares_them_too(self, region, torch):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            tensor = torch.from_dlpack(region)
            tensor.fill_(3)
        stream.synchronize()
        assert region.read(4, region.nbytes - 4) == b"\x03" * 4

    def test_keeps_the_region_open(self, region, torch):
        tensor = torch.from_dlpack(region)
        with pytest.raises(BufferError, match=r"still use the memory \(1 of "):
            region.close()
        tensor.fill_(1)
        part = tensor[:10].clone()
        torch.cuda.synchronize()
        del tensor
        region.close()
        assert part.tolist() == [1] * 10

    def test_outlives_the_block_of_the_region(self, torch):
        with (
            pytest.warns(gdrpy.StillInUse, match="1 of the GPU view"),
            gdrpy.alloc(64 * MIB, torch.device("cuda")) as region,
        ):
            tensor = torch.from_dlpack(region.array(16 * MIB, torch.float32))
        assert region.closed
        tensor.fill_(9)
        assert float(tensor[-1]) == 9
        held = free_memory()
        del tensor
        assert free_memory() == held + 64 * MIB

    def test_outlives_the_region_object(self, torch):
        region = gdrpy.alloc(64 * MIB, cpu=False)
        tensor = torch.from_dlpack(region)
        gone = weakref.ref(region)
        del region
        gc.collect()
        assert gone() is None
        tensor.fill_(9)
        assert int(tensor[-1]) == 9
        held = free_memory()
        del tensor
        assert free_memory() == held + 64 * MIB

    def test_of_another_process_view_shares_them(self, region, torch):
        fd = region.export()
        with gdrpy.Region.from_fd(fd, cpu=False) as other:
            os.close(fd)
            tensor = torch.from_dlpack(other)
            tensor[:4] = 7
            torch.cuda.synchronize()
            assert region.read(4) == b"\x07" * 4
            del tensor

    def test_of_a_region_without_gpu_view_is_on_the_cpu(self, region, torch):
        fd = region.export()
        with gdrpy.Region.from_fd(fd, region.nbytes, gpu=False) as other:
            os.close(fd)
            tensor = torch.from_dlpack(other)
            assert tensor.device == torch.device("cpu")
            tensor[:4] = 6
            other.cpu.flush()
            assert torch.from_dlpack(region)[:4].tolist() == [6] * 4
            del tensor

    def test_goes_through_numpy_by_the_cpu_view(self, region):
        array = np.from_dlpack(region, device="cpu")
        region.write(b"\x05" * 4)
        assert array[:4].tolist() == [5] * 4


class TestTorchTensorOfAnArray:
    @pytest.mark.parametrize(
        ("dtype", "name"),
        [
            ("F32", "float32"),
            ("F16", "float16"),
            ("BF16", "bfloat16"),
            ("I64", "int64"),
            ("U8", "uint8"),
            ("BOOL", "bool"),
        ],
    )
    def test_has_its_element_type_and_shape(self, region, torch, dtype, name):
        tensor = torch.from_dlpack(region.array((3, 5), dtype, 4096))
        assert (tensor.dtype, tensor.shape) == (getattr(torch, name), (3, 5))
        assert (tensor.stride(), tensor.data_ptr()) == ((5, 1), region.ptr + 4096)

    def test_computes_in_bfloat16(self, region, torch):
        ml_dtypes = pytest.importorskip("ml_dtypes")
        a = region.array((64, 64), "BF16")
        b = region.array((64, 64), "BF16", a.nbytes)
        c = region.array((64, 64), "BF16", 2 * a.nbytes)
        a.write(np.full((64, 64), 0.5, ml_dtypes.bfloat16))
        b.write(np.full((64, 64), 2, ml_dtypes.bfloat16))
        torch.matmul(torch.from_dlpack(a), torch.from_dlpack(b), out=torch.from_dlpack(c))
        torch.cuda.synchronize()
        assert set(c.read().astype(float).flatten()) == {64.0}

    def test_comes_by_the_cuda_array_interface_too(self, region, torch):
        tensor = torch.as_tensor(region.array((4, 4), "F32", 64), device="cuda")
        assert (tensor.dtype, tensor.data_ptr()) == (torch.float32, region.ptr + 64)
        del tensor

    def test_outlives_tensor_and_region_object(self, torch):
        tensor = torch.from_dlpack(gdrpy.alloc(4096).array((4,), "F32"))
        gc.collect()
        tensor.fill_(2.5)
        assert tensor.tolist() == [2.5] * 4


class TestMirrorOnAGpu:
    @pytest.mark.parametrize("cpu", [True, False])
    @pytest.mark.parametrize("nbytes", [4096, 64 * MIB + 5])
    def test_goes_back_whole(self, torch, cpu, nbytes):
        pattern = np.arange(nbytes, dtype=np.uint32).astype(np.uint8)
        with gdrpy.alloc(nbytes, cpu=cpu) as region:
            with region.mirror() as array:
                array[:] = pattern
            tensor = torch.from_dlpack(region)
            assert np.array_equal(tensor.cpu().numpy(), pattern)
            del tensor
            with region.mirror(load=True) as array:
                assert np.array_equal(array, pattern)

    def test_is_page_locked(self, region):
        with region.mirror() as array, cuda.context(0):
            cuda.call("cuMemHostGetFlags", array.ctypes.data)


class TestSafetensorsOnAGpu:
    def test_of_a_file_are_torch_tensors_without_another_copy(self, torch, tmp_path):
        save_file = pytest.importorskip("safetensors.torch").save_file
        weights = {
            "embedding": torch.randn(1000, 64, dtype=torch.bfloat16),
            "bias": torch.arange(64, dtype=torch.float32),
            "mask": torch.tensor([True, False, True]),
        }
        path = tmp_path / "model.safetensors"
        save_file(weights, path)
        with gdrpy.alloc(safetensors.plan_file(path).nbytes) as region:
            safetensors.load(path, region)
            tensors = safetensors.tensors(region)
            assert tensors.keys() == weights.keys()
            for name, tensor in tensors.items():
                found = torch.from_dlpack(tensor)
                assert found.device == torch.device("cuda:0")
                assert torch.equal(found.cpu(), weights[name])
                del found
