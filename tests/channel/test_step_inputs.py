"""The inputs of a step: named arrays that the CPU stores."""

from __future__ import annotations

import os
import pickle
from typing import Any

import numpy as np
import pytest

import gdrpy

ARRAYS = {"tokens": (4, "int32"), "positions": (4, "I64"), "blocks": ((4, 2), np.int32)}
TOKENS = np.arange(4, dtype=np.int32)


@pytest.fixture
def inputs(memory: None) -> gdrpy.StepInputs:
    return gdrpy.StepInputs(ARRAYS)


def read(inputs: gdrpy.StepInputs, number: int) -> dict[str, Any]:
    """What a set holds."""
    return {name: array.read().tolist() for name, array in inputs.sets[number].items()}


class TestStore:
    def test_fills_the_sets_in_turn(self, inputs):
        for step, number in enumerate((0, 1, 0)):
            assert inputs.next == number
            values = {"tokens": TOKENS + step, "positions": np.full(4, step, np.int64)}
            blocks = np.full((4, 2), step, np.int32)
            assert inputs.store(**values, blocks=blocks) == number
            assert read(inputs, number) == {
                "tokens": (TOKENS + step).tolist(),
                "positions": [step] * 4,
                "blocks": [[step] * 2] * 4,
            }

    def test_is_seen_at_the_gpus_addresses(self, inputs, gpu_read):
        inputs.store(tokens=TOKENS)
        assert gpu_read(inputs.sets[0]["tokens"].ptr, 16) == TOKENS.tobytes()

    def test_leaves_rows_and_arrays_without_a_value_as_they_are(self):
        inputs = gdrpy.StepInputs(ARRAYS, sets=1)
        inputs.store(tokens=TOKENS, positions=np.ones(4, np.int64))
        assert inputs.store(tokens=TOKENS[:2] + 7) == 0
        assert read(inputs, 0)["tokens"] == [7, 8, 2, 3]
        assert read(inputs, 0)["positions"] == [1] * 4

    @pytest.mark.parametrize(
        "value",
        [[3, 2, 1, 0], np.arange(6)[3::-1], np.arange(4, dtype=">i8")[::-1].astype("i8")],
        ids=["a list", "a view", "a copy"],
    )
    def test_takes_what_numpy_makes_an_array_of(self, inputs, value):
        inputs.store(positions=value)
        assert read(inputs, 0)["positions"] == [3, 2, 1, 0]

    def test_takes_torchs_tensors(self, inputs):
        torch = pytest.importorskip("torch")
        inputs.store(tokens=torch.tensor([5, 6], dtype=torch.int32))
        assert read(inputs, 0)["tokens"] == [5, 6, 0, 0]

    def test_takes_elements_that_numpy_lacks(self):
        ml_dtypes = pytest.importorskip("ml_dtypes")
        inputs = gdrpy.StepInputs({"scale": (2, "bf16")})
        inputs.store(scale=np.array([1.5, 2], ml_dtypes.bfloat16))
        assert inputs.sets[0]["scale"].read().tolist() == [1.5, 2]

    @pytest.mark.parametrize(
        ("values", "error", "message"),
        [
            ({"token": TOKENS}, ValueError, "is no input 'token', but tokens, positions, blocks"),
            ({"tokens": TOKENS.astype("i8")}, TypeError, "tokens is of I32, and the value of I64"),
            ({"tokens": np.zeros(5, np.int32)}, ValueError, r"shape \(4,\), and the value \(5,\)"),
            ({"tokens": np.int32(1)}, ValueError, r"shape \(4,\), and the value \(\)"),
            (
                {"blocks": np.zeros((2, 1), np.int32)},
                ValueError,
                r"shape \(4, 2\), and the value \(2, 1\)",
            ),
            ({"tokens": "1234"}, TypeError, "StepInputs.store: tokens: text must be encoded"),
        ],
    )
    def test_refuses_other_values_and_stores_nothing(self, inputs, values, error, message):
        before = read(inputs, 0)
        with pytest.raises(error, match=message):
            inputs.store(positions=np.ones(4, np.int64), **values)
        assert (read(inputs, 0), inputs.next) == (before, 0)

    def test_refuses_a_value_in_gpu_memory(self, inputs):
        with pytest.raises(TypeError, match="the value lies in GPU memory: copy it to the host"):
            inputs.store(tokens=inputs.sets[1]["tokens"])


class TestStepInputs:
    @pytest.mark.parametrize(
        ("arrays", "sets", "message"),
        [
            ({}, 2, "takes a set and an array at least, not 2 of {}"),
            (ARRAYS, 0, "takes a set and an array at least, not 0 of {'tokens'"),
            ({"a": (-1, "F32")}, 2, "StepInputs: a shape is up to 64 lengths of 0 or more"),
        ],
    )
    def test_need_a_set_and_arrays(self, arrays, sets, message):
        with pytest.raises(ValueError, match=message):
            gdrpy.StepInputs(arrays, sets=sets)

    @pytest.mark.parametrize(
        ("arrays", "message"),
        [
            ([("a", 4)], r"arrays must be a dict by name, not \[\('a', 4\)\]"),
            (None, "arrays must be a dict by name, not None"),
            ({1: (4, "I32")}, r"such as {'tokens': \(256, 'int32'\)}, and not .* for 1"),
            ({"a": 4}, "and not 4 for 'a'"),
            ({"a": (4, 2, "I32")}, r"and not \(4, 2, 'I32'\) for 'a'"),
            ({"a": np.zeros(2, np.int32)}, r"and not array\(\[0, 0\], dtype=int32\) for 'a'"),
        ],
    )
    def test_need_a_shape_and_an_element_type_by_name(self, arrays, message):
        with pytest.raises(TypeError, match=f"StepInputs: .*{message}"):
            gdrpy.StepInputs(arrays)

    def test_may_have_any_name(self):
        inputs = gdrpy.StepInputs({"self": (4, "I32")})
        inputs.store(self=TOKENS)
        assert read(inputs, 0) == {"self": TOKENS.tolist()}

    def test_may_have_empty_arrays(self):
        inputs = gdrpy.StepInputs({"none": (0, "F32")}, sets=3)
        assert [inputs.store(none=np.zeros(0, np.float32)) for _ in range(4)] == [0, 1, 2, 0]

    def test_have_arrays_apart_and_aligned_for_any_kernel(self, inputs):
        ptrs = [array.ptr for each in inputs.sets for array in each.values()]
        assert len(set(ptrs)) == 6
        assert {ptr % 256 for ptr in ptrs} == {0}

    def test_are_closed_by_their_block(self):
        with gdrpy.StepInputs(ARRAYS) as inputs:
            pass
        with pytest.raises(gdrpy.Closed):
            inputs.store(tokens=TOKENS)

    def test_stay_open_while_a_view_is_alive(self, inputs):
        view = memoryview(inputs.sets[0]["tokens"])
        with pytest.raises(BufferError):
            inputs.close()
        view.release()
        inputs.close()

    def test_belong_to_their_process(self, inputs):
        with pytest.raises(TypeError, match="a StepInputs cannot be copied or pickled"):
            pickle.dumps(inputs)
        child = os.fork()
        if not child:
            try:
                inputs.store(tokens=TOKENS)
            except gdrpy.Forked:
                os._exit(0)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

    def test_show_their_names(self, inputs):
        assert repr(inputs).startswith("<StepInputs of tokens, positions, blocks in 2 sets, <Reg")
