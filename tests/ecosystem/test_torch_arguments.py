"""What torch's users pass: tensors, dtypes and devices."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import gdrpy

SOME = torch.arange(8, dtype=torch.float32)


@pytest.fixture
def region() -> Iterator[gdrpy.Region]:
    with gdrpy.alloc(1 << 20) as region:
        yield region
        gc.collect()


def on_gpu(region: gdrpy.Region, offset: int) -> torch.Tensor:
    """A tensor in GPU memory: a simulated GPU's is host memory, where torch has it."""
    return torch.from_dlpack(region.array(8, torch.float32, offset))


def opened_again(region: gdrpy.Region, **how: Any) -> gdrpy.Region:
    fd = region.export()
    try:
        return gdrpy.Region.from_fd(fd, **how)
    finally:
        os.close(fd)


class TestTensorOnTheHost:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.float64])
    def test_is_written_and_read_into(self, region, dtype):
        tensor, found = SOME.to(dtype), torch.zeros(8, dtype=dtype)
        for part in (region, region.cpu):
            part.write(tensor, 64)
            assert part.readinto(found, 64) == 8 * dtype.itemsize
            assert found.equal(tensor)
            found.zero_()
            region.fill(0)

    def test_that_wants_its_gradient_is_to_be_detached_to_be_read_into(self, region):
        wanting = SOME.clone().requires_grad_()
        why = r"readinto: the tensor requires a gradient: pass tensor.detach\(\)$"
        for part, call in ((region, "Region"), (region.cpu, "Mapping")):
            with pytest.raises(BufferError, match=f"^{call}.{why}"):
                part.readinto(wanting)

    def test_may_be_forced_by_either_way(self, region):
        for via in ("mapping", "dma"):
            found = torch.zeros(8)
            region.write(SOME, via=via)
            region.readinto(found, via=via)
            assert found.equal(SOME)

    def test_is_taken_by_every_call_that_takes_buffers(self, region):
        rows = SOME.view(2, 4)
        region.write_strided(rows, 64)
        region.cpu.write_many([(128, SOME), (256, rows.half())])
        region.cpu.scatter(torch.tensor([512, 1024]).numpy(), rows)
        found = torch.zeros(2, 4)
        region.readinto_strided(found, 64)
        assert found.equal(rows)
        assert region.read(32, 128) == SOME.numpy().tobytes()
        assert region.read(16, 256) == rows.half().numpy().tobytes()
        assert region.read(16, 512) + region.read(16, 1024) == rows.numpy().tobytes()
        region.write_strided(rows.T, 8)
        assert np.array_equal(region.numpy("f4", (4, 2)), rows.T.numpy())

    def test_that_is_a_parameter_is_written(self, region):
        region.write(torch.nn.Parameter(SOME))
        assert region.read(32) == SOME.numpy().tobytes()
        with pytest.raises(BufferError, match="detach"):
            region.readinto(torch.nn.Parameter(SOME))

    def test_that_is_empty_changes_nothing(self, region):
        region.write(torch.zeros(0))
        assert region.readinto(torch.zeros(0)) == 0

    def test_that_is_not_contiguous_is_refused(self, region):
        for use in (region.write, region.readinto, region.cpu.write, region.cpu.readinto):
            with pytest.raises(ValueError, match=r"(write|readinto): \w+ must be .*C-contiguous"):
                use(SOME.view(2, 4).T)

    def test_is_let_go_after_the_call(self, region):
        tensor = SOME.clone()
        before = sys.getrefcount(tensor)
        region.write(tensor)
        region.cpu.readinto(tensor)
        assert sys.getrefcount(tensor) == before

    def test_is_not_written_where_a_region_may_only_be_read(self, region):
        with opened_again(region, gpu=False, readonly=True) as reader:
            for use in (reader.write, reader.cpu.write):
                with pytest.raises(gdrpy.ReadOnly):
                    use(SOME)
            found = torch.ones(8)
            reader.readinto(found)
            assert found.equal(torch.zeros(8))


class TestTensorOnAGpu:
    @pytest.mark.parametrize(
        "other", [{}, {"cpu": False}, {"gpu": False}, {"device": "cpu"}], ids=str
    )
    def test_is_written_and_read_into(self, region, other):
        ours = on_gpu(region, 4096)
        ours.copy_(SOME)
        with gdrpy.alloc(4096, **other) as target:
            target.write(ours, 8)
            assert target.read(32, 8) == SOME.numpy().tobytes()
            ours.zero_()
            assert target.readinto(ours, 8) == 32
            assert ours.equal(SOME)

    def test_lies_in_the_same_region_too(self, region):
        ours = on_gpu(region, 4096)
        ours.copy_(SOME)
        region.write(ours, via="dma")
        region.cpu.store(0, 0x40000000)
        assert region.readinto(ours) == 32
        assert ours.tolist() == [2, *range(1, 8)]

    def test_is_copied_as_mapping_or_outside_the_region_by_no_call(self, region):
        ours = on_gpu(region, 0)
        for use in (region.write, region.readinto):
            with pytest.raises(ValueError, match="this Tensor is on a GPU, .*: leave via out"):
                use(ours, via="mapping")
            with pytest.raises(ValueError, match=r"offset 1048560 \+ 32 bytes lies outside"):
                use(ours, (1 << 20) - 16)
        with pytest.raises(ValueError, match="not contiguous"):
            region.write(ours.view(2, 4).T)

    def test_is_refused_by_what_is_closed_or_read_only(self, region):
        ours = on_gpu(region, 0)
        reader = opened_again(region, readonly=True)
        with pytest.raises(gdrpy.ReadOnly):
            reader.write(ours)
        reader.close()
        for use in (reader.write, reader.readinto):
            with pytest.raises(gdrpy.Closed):
                use(ours)

    def test_of_another_device_than_a_gpu_is_refused_by_torch(self, region):
        with pytest.raises(ValueError, match="meta"):
            region.write(SOME.to("meta"))


class TestDtype:
    @pytest.mark.parametrize(
        "name", [torch.bfloat16, "torch.bfloat16", "bfloat16", "bf16", "BF16"], ids=str
    )
    def test_is_of_torch_or_named_as_there(self, region, name):
        assert region.array(4, name).dtype == "BF16"
        assert region.numpy(name, 4).dtype.name == "bfloat16"
        assert region.cpu.numpy(name).itemsize == 2
        with region.mirror(dtype=name, shape=4) as mirror:
            assert mirror.dtype.name == "bfloat16"
            mirror[:] = 0

    @pytest.mark.parametrize(
        ("dtype", "name"),
        [
            (torch.float16, "F16"),
            (torch.half, "F16"),
            (torch.float, "F32"),
            (torch.double, "F64"),
            (torch.bool, "BOOL"),
            (torch.uint8, "U8"),
            (torch.int8, "I8"),
            (torch.long, "I64"),
            (torch.float8_e4m3fn, "F8_E4M3"),
            (torch.float8_e5m2, "F8_E5M2"),
            ("fp16", "F16"),
            ("fp32", "F32"),
            ("fp64", "F64"),
        ],
        ids=str,
    )
    def test_means_the_same_type(self, region, dtype, name):
        array = region.array((2, 2), dtype)
        assert array.dtype == name
        assert region.numpy(dtype, (2, 2)).dtype == array.numpy().dtype
        if isinstance(dtype, torch.dtype):
            assert torch.from_dlpack(array).dtype == dtype

    def test_that_only_numpy_has_is_for_numpy_alone(self, region):
        assert region.numpy(torch.complex64, 4).dtype == np.complex64
        with pytest.raises(TypeError, match=r"Region\.array: dtype .*, not torch\.complex64"):
            region.array(4, torch.complex64)

    @pytest.mark.parametrize("dtype", [torch.quint8, "torch.magic", "bf17"], ids=str)
    def test_that_nobody_knows_is_refused(self, region, dtype):
        for use, call in (
            (region.numpy, r"Region\.numpy"),
            (lambda one: region.array(1, one), ""),
        ):
            with pytest.raises(TypeError, match=f"{call}: dtype must be one of .*, not "):
                use(dtype)


class TestDevice:
    @pytest.mark.parametrize(
        "device", ["cuda", "cuda:0", torch.device("cuda"), torch.device("cuda:0")], ids=repr
    )
    def test_of_torch_is_taken_wherever_one_is(self, device, broker):
        with gdrpy.alloc(4096, device) as region:
            assert region.device == 0
            with opened_again(region, device=device) as other:
                assert other.device == 0
        with gdrpy.page_locked(4096, device) as memory:
            assert memory.device == 0
        with gdrpy.Channel(device=device) as channel:
            assert channel.device == 0
        assert gdrpy.rounded_size(1, device) == broker.rounded_size(1, device) == 2 << 20
        for make in (broker.allocate, broker.create):
            with make("made", 4096, device) as region:
                assert region.device == 0
        broker.put("put", SOME, device)
        broker.put_tensors("tensors", {"some": SOME}, device)
        for get in (broker.get, lambda name, **how: broker.get_many([name], **how)[0]):
            assert get("put", device=device).device == 0

    @pytest.mark.parametrize(
        "device", ["cpu", torch.device("cpu"), torch.device("cpu:0")], ids=repr
    )
    def test_is_the_host_too(self, device, broker):
        with gdrpy.alloc(4096, device) as region, broker.allocate(None, 4096, device) as other:
            assert region.location == other.location == "host memory"
        assert broker.rounded_size(1, device) == 4096

    @pytest.mark.parametrize("device", [torch.device("meta"), "mps", "cuda:", "cuda:x", "cuda:-1"])
    def test_that_is_no_gpu_is_refused(self, device, broker):
        words = rf"device must be .*torch's name .* or 'cpu', not {re.escape(repr(device))}$"
        for use in (gdrpy.alloc, lambda size, device: broker.allocate("x", size, device)):
            with pytest.raises(ValueError, match=words):
                use(4096, device)

    def test_that_is_not_there_is_not_found(self, broker):
        for use in (gdrpy.alloc, lambda size, device: broker.allocate("x", size, device)):
            with pytest.raises(gdrpy.NotFound, match="there is no CUDA device 7: this process"):
                use(4096, torch.device("cuda:7"))


class TestSeveralTensors:
    STATE = torch.nn.Linear(2, 2).state_dict()

    @pytest.mark.parametrize("value", [STATE, dict(STATE), torch.nn.Linear(2, 2)], ids=type)
    def test_are_not_put_as_one(self, broker, region, value):
        for use in (
            lambda: broker.put("model", value),
            lambda: region.write(value),
            lambda: region.array(4, "F32").write(value),
        ):
            with pytest.raises(TypeError, match=r"holds arrays by name.*broker\.put_tensors\("):
                use()
        assert broker.list() == []

    def test_are_put_by_name(self, broker):
        for value in (torch.nn.Linear(2, 2), SOME, "text"):
            with pytest.raises(TypeError, match=r"must be a dict .*state_dict\(\), not"):
                broker.put_tensors("model", value)
        found = broker.put_tensors("model", self.STATE).tensors()
        assert {name: tuple(one.shape) for name, one in found.items()} == {
            name: tuple(one.shape) for name, one in self.STATE.items()
        }


class TestText:
    @pytest.mark.parametrize("text", ["text", np.str_("text"), ["te", "xt"]], ids=repr)
    def test_is_not_stored_as_utf_32(self, broker, region, text):
        for use in (
            lambda: broker.put("text", text),
            lambda: region.array(4, "U8").write(text),
        ):
            with pytest.raises(TypeError, match="text must be encoded first"):
                use()

    def test_is_not_written(self, region):
        for use in (region.write, region.cpu.write):
            with pytest.raises(TypeError, match="'text'"):
                use("text")


class TestTorch:
    def test_is_never_imported(self):
        code = """
import sys
import gdrpy, numpy
region = gdrpy.alloc(4096, "cuda:0")
region.array(4, "bf16").write(numpy.zeros(4, "f4").astype(region.numpy("bf16").dtype))
region.array((2, 2), "F32")[1] = 3
region.write(numpy.zeros(4))
for wrong in ("text", {}, 5):
    try:
        region.write(wrong)
    except TypeError:
        continue
    raise AssertionError(wrong)
print("torch" in sys.modules)
"""
        done: Any = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=False
        )
        assert (done.stdout, done.stderr) == ("False\n", "")
