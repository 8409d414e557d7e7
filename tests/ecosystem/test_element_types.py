"""Element types, those of numpy and those that it lacks, between gdrpy and torch and jax."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import torch

import gdrpy
from gdrpy import safetensors
from gdrpy.common.dtypes import DTYPES

TORCH = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "U16": torch.uint16,
    "I16": torch.int16,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "U32": torch.uint32,
    "I32": torch.int32,
    "F32": torch.float32,
    "U64": torch.uint64,
    "I64": torch.int64,
    "F64": torch.float64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}
ONES = {name: torch.ones(2, 3).to(kind) for name, kind in TORCH.items()}


@pytest.fixture
def region():
    with gdrpy.alloc(1 << 20) as region:
        yield region
        gc.collect()


class TestElementType:
    def test_of_torch_is_known_for_each_of_ours(self):
        assert TORCH.keys() == DTYPES.keys()

    @pytest.mark.parametrize("name", TORCH)
    def test_is_kept_by_torch_both_ways(self, region, name):
        array = region.array((2, 3), name, 64)
        array.write(ONES[name])
        taken = torch.from_dlpack(array)
        assert (taken.dtype, taken.shape) == (TORCH[name], (2, 3))
        assert taken.data_ptr() == array.ptr
        assert taken.tolist() == [[1, 1, 1], [1, 1, 1]]

    # Without jax_enable_x64 jax has no elements of 64 bits.
    @pytest.mark.parametrize("name", [name for name, kind in DTYPES.items() if kind.nbytes < 8])
    def test_is_kept_by_jax_both_ways(self, region, name):
        import jax  # once imported, it warns of every fork

        array = region.array((2, 3), name, 64)
        array.write(ONES[name])
        taken = jax.dlpack.from_dlpack(array)
        assert (taken.dtype.name, taken.shape) == (DTYPES[name].array_name, (2, 3))
        assert taken.unsafe_buffer_pointer() == array.ptr
        other = region.array((2, 3), name, 4096)
        other.write(taken)
        assert other.region.read(other.nbytes, 4096) == region.read(array.nbytes, 64)


class TestTorchTensor:
    def test_that_is_strided_is_written_packed(self, region):
        tensor = torch.arange(6, dtype=torch.bfloat16).reshape(2, 3).T
        region.array((3, 2), "BF16").write(tensor)
        assert torch.from_dlpack(region.array((3, 2), "BF16")).equal(tensor)

    def test_that_needs_gradients_is_written(self, region):
        weights = torch.nn.Linear(3, 2).weight
        region.array((2, 3), "F32").write(weights)
        assert np.array_equal(region.array((2, 3), "F32").numpy(), weights.detach().numpy())

    def test_that_is_a_negated_view_is_written_negated(self, region):
        negated = torch.tensor([1 + 2j, 3 + 4j]).conj().imag
        array = region.array(2, "F32")
        array.write(negated)
        assert array.read().tolist() == [-2, -4]

    def test_that_is_a_negated_view_is_to_be_resolved_to_be_mapped(self, region):
        ours = torch.from_dlpack(region.array(4, "F32"))
        negated = torch.view_as_complex(ours.view(2, 2)).conj().imag
        with pytest.raises(BufferError, match=r"resolve_neg\(\)"):
            gdrpy.from_tensor(negated)

    def test_is_made_by_as_tensor_without_a_copy(self, region):
        array = region.array((2, 3), "BF16", 64)
        assert torch.as_tensor(array).data_ptr() == array.ptr

    def test_of_the_gpu_view_is_written_by_the_gpu(self, region):
        ours = torch.from_dlpack(region.array(4, "BF16"))
        ours.fill_(2)
        region.array(4, "BF16", 64).write(ours)
        assert torch.from_dlpack(region.array(4, "BF16", 64)).tolist() == [2] * 4

    def test_is_copied_where_torch_asks_for_a_copy(self, region):
        region.fill(1)
        copy = torch.from_dlpack(region, copy=True)
        region.fill(2)
        region.close()
        assert set(copy.tolist()) == {1}


class TestModel:
    def test_goes_into_an_image_and_comes_back_without_a_copy(self, region):
        model = torch.nn.Linear(3, 2).to(torch.bfloat16)
        safetensors.store(region, model.state_dict())
        other = torch.nn.Linear(3, 2, device="meta")
        tensors = safetensors.tensors(region)
        shared = {name: torch.from_dlpack(tensor) for name, tensor in tensors.items()}
        other.load_state_dict(shared, assign=True)
        assert other.weight.data_ptr() == tensors["weight"].ptr
        assert other.weight.equal(model.weight)
        assert other.bias.equal(model.bias)
