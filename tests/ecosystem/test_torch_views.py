"""Tensors of any strides, types and common memory come out of a region as they went in."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.two_tensor import TwoTensor

import gdrpy
import gdrpy.torch
from gdrpy.broker import temporary

OTHER = """
import sys
import gdrpy.torch

found = gdrpy.torch.attach(gdrpy.connect(sys.argv[1]), "other")
for name, tensor in sorted(found.items()):
    print(name, tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.tolist())
found["part"].fill_(9)
"""


@pytest.fixture(scope="module")
def broker() -> Iterator[gdrpy.Broker]:
    with temporary() as path, gdrpy.connect(path) as broker:
        yield broker


def bits(tensor: torch.Tensor) -> bytes:
    """A tensor's elements in their order, as bytes."""
    plain = tensor.detach().resolve_conj().resolve_neg().reshape(-1)
    copy = plain.clone(memory_format=torch.contiguous_format)
    return copy.view(torch.uint8).numpy().tobytes()


def places(tensor: torch.Tensor) -> set[int]:
    """The addresses of a tensor's bytes."""
    index = torch.zeros((), dtype=torch.int64)
    for length, step in zip(tensor.shape, tensor.stride(), strict=True):
        index = index.unsqueeze(-1) + torch.arange(length) * step
    size = tensor.itemsize
    firsts = (tensor.data_ptr() + index * size).flatten().tolist()
    return {first + byte for first in firsts for byte in range(size)}


def shared(
    broker: gdrpy.Broker, tensors: torch.nn.Module | dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """What attach() finds of tensors; each was checked to be as it was."""
    gdrpy.torch.share(broker, "views", tensors)
    found = gdrpy.torch.attach(broker, "views")
    state = tensors.state_dict() if isinstance(tensors, torch.nn.Module) else tensors
    assert found.keys() == state.keys()
    for name, tensor in state.items():
        one = found[name]
        assert (one.dtype, one.shape, bits(one)) == (tensor.dtype, tensor.shape, bits(tensor)), name
        if tensor.numel() and not tensor.is_conj() and not tensor.is_neg():
            assert one.stride() == tensor.stride(), name
    return found


def stored(broker: gdrpy.Broker) -> dict[str, tuple[str, int]]:
    """The type and size of each array that the region has."""
    with broker.get("views", gpu=False) as region:
        return {name: (one.dtype, one.nbytes) for name, one in region.tensors().items()}


def described(value: Any) -> str:
    """A test's name for a tensor."""
    if not isinstance(value, torch.Tensor):
        return str(value)
    return f"{value.dtype}-{tuple(value.shape)}-{value.stride()}"


def random(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


class TestTensor:
    @pytest.mark.parametrize(
        "tensor",
        [
            random(3, 5).t(),
            random(2, 3, 4).permute(2, 0, 1),
            random(2, 3, 4, 5).to(memory_format=torch.channels_last),
            random(4, 8)[:, :5],
            random(8, 6)[::2, 1::2],
            random(5, 1).t(),
            random(9)[::3][:1],
            random(1).expand(3, 4),
            random(3, 1).expand(3, 4),
            random(8).unfold(0, 4, 2),
            torch.tensor([[True, False], [True, True]]).t(),
            torch.arange(-3, 3, dtype=torch.int8).reshape(2, 3).t(),
            random(2, 3, dtype=torch.bfloat16).t(),
            random(2, 3, dtype=torch.float8_e4m3fn).t(),
            random(2, 3, dtype=torch.complex64).t(),
        ],
        ids=described,
    )
    def test_with_strides_keeps_them(self, broker, tensor):
        shared(broker, {"x": tensor})
        extent = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
        ((name, (dtype, nbytes)),) = stored(broker).items()
        start = tensor.storage_offset() * tensor.itemsize % 256
        used = start + extent * tensor.itemsize
        assert (name, dtype, nbytes) == ("x.storage", "U8", -(-used // 256) * 256)

    @pytest.mark.parametrize(
        ("tensor", "dtype"),
        [
            (random(3, 5), "F32"),
            (random(20)[5:15].reshape(2, 5), "F32"),
            (torch.tensor(2.5), "F32"),
            (torch.tensor([True, False]), "BOOL"),
            (torch.arange(-3, 3, dtype=torch.int8), "I8"),
            (random(6, dtype=torch.bfloat16), "BF16"),
            (random(6, dtype=torch.float8_e4m3fn), "F8_E4M3"),
            (random(6, dtype=torch.complex64).conj().imag, "F32"),
            (torch.empty(3, 0).t(), "F32"),
        ],
        ids=described,
    )
    def test_that_the_format_holds_is_stored_as_it_is(self, broker, tensor, dtype):
        shared(broker, {"x": tensor})
        assert stored(broker) == {"x": (dtype, tensor.nbytes)}

    @pytest.mark.parametrize(
        "tensor",
        [
            random(6, dtype=torch.complex64),
            random(2, 3, dtype=torch.complex128).conj().t(),
            random(6, dtype=torch.float8_e8m0fnu),
            random(6, dtype=torch.float8_e4m3fnuz),
            torch.empty(3, 0, dtype=torch.complex64),
        ],
        ids=described,
    )
    def test_of_a_type_that_the_format_lacks_is_stored_as_bytes(self, broker, tensor):
        shared(broker, {"x": tensor})
        assert [*stored(broker)] == ["x.storage"]

    @pytest.mark.parametrize(
        ("tensor", "kind"),
        [
            (torch.eye(2).to_sparse(), "torch.sparse_coo, torch.float32"),
            (torch.eye(2).to_sparse_csr(), "torch.sparse_csr, torch.float32"),
            (torch.eye(2).to_mkldnn(), "torch._mkldnn, torch.float32"),
            (
                torch.nested.nested_tensor([torch.ones(1), torch.ones(2)], layout=torch.jagged),
                "torch.jagged, torch.float32",
            ),
            (
                torch.quantize_per_tensor(torch.ones(2), 0.5, 0, torch.qint8),
                "torch.strided, torch.qint8",
            ),
        ],
        ids=lambda value: value if isinstance(value, str) else "of",
    )
    def test_that_is_more_than_elements_is_refused_by_name(self, broker, tensor, kind):
        with pytest.raises(TypeError) as caught:
            gdrpy.torch.share(broker, "refused", {"a": torch.ones(1), "x": tensor})
        assert str(caught.value) == (
            f"share: 'x' is sparse, nested or quantized ({kind}): share its parts, or a dense copy"
        )
        with pytest.raises(gdrpy.NotFound):
            broker.stat("refused")

    @pytest.mark.parametrize(
        "tensor",
        [TwoTensor(torch.ones(2), torch.ones(2)), FakeTensorMode().from_tensor(torch.ones(2))],
    )
    def test_that_is_made_of_others_is_refused_by_name(self, broker, tensor):
        with pytest.raises(TypeError) as caught:
            gdrpy.torch.share(broker, "refused", {"x": tensor})
        assert str(caught.value) == (
            f"share: 'x' is a {type(tensor).__name__}, which may have no memory of its own: share "
            f"its parts, or a plain copy"
        )

    def test_that_is_not_initialized_is_refused_by_name(self, broker):
        with pytest.raises(ValueError, match=r"^share: ") as caught:
            gdrpy.torch.share(broker, "refused", torch.nn.LazyLinear(2))
        assert str(caught.value) == (
            "share: 'weight' has no memory (uninitialized): share a module that was loaded"
        )


class TestCommonMemory:
    def test_of_tied_and_transposed_weights_is_common(self, broker):
        weight = torch.nn.Parameter(random(4, 6))
        found = shared(broker, {"a": weight, "b": weight, "c": weight.t()})
        found["a"][1, 2] = 7
        assert (found["b"][1, 2], found["c"][2, 1]) == (7, 7)
        assert stored(broker) == {"a.storage": ("U8", 256)}

    def test_of_a_buffer_and_the_parameter_it_is_a_view_of_is_common(self, broker):
        module = torch.nn.Linear(4, 3)
        module.register_buffer("column", module.weight.detach()[:, 1])
        found = shared(broker, module)
        found["weight"].fill_(5)
        assert found["column"].tolist() == [5, 5, 5]
        assert stored(broker) == {"weight.storage": ("U8", 256), "bias": ("F32", 12)}

    def test_of_slices_with_gaps_is_common_where_they_overlap(self, broker):
        whole = random(100)
        found = shared(broker, {"even": whole[2:60:2], "third": whole[30:90:3]})
        found["even"].fill_(1)
        found["third"].fill_(2)
        assert found["even"].tolist() == [
            2 if at >= 30 and at % 3 == 0 else 1 for at in range(2, 60, 2)
        ]

    def test_of_other_types_is_common(self, broker):
        floats = random(2, 3)
        tensors = {"f": floats, "i": floats.view(torch.int32), "h": floats[1].view(torch.bfloat16)}
        found = shared(broker, tensors)
        found["f"].fill_(1)
        assert found["i"].tolist() == [[0x3F800000] * 3] * 2
        assert found["h"].tolist() == [0, 1] * 3

    def test_of_a_flat_buffer_is_not_stored_where_its_parts_are_disjoint(self, broker):
        flat = random(1000)
        parts = {str(at): flat[at : at + 100].reshape(10, 10) for at in range(0, 1000, 100)}
        shared(broker, parts)
        assert stored(broker) == dict.fromkeys(parts, ("F32", 400))

    def test_has_a_name_that_no_tensor_has(self, broker):
        whole = random(4, 4)
        shared(broker, {"x": whole.t(), "x.storage": random(2), "x.storage.storage": random(3)})
        assert stored(broker).keys() == {"x.storage", "x.storage.storage", "x" + 3 * ".storage"}

    def test_has_a_name_that_no_other_one_has(self, broker):
        shared(broker, {"x": random(2, 3).t(), "x.storage": random(3, 2).t()})
        assert stored(broker).keys() == {"x" + 2 * ".storage", "x" + 3 * ".storage"}

    @pytest.mark.parametrize("name", ["format", "gdrpy.torch.views"])
    def test_keeps_a_name_that_the_format_has_too(self, broker, name):
        weight = random(3)
        found = shared(broker, {"a": weight, name: weight})
        found["a"].fill_(5)
        assert found[name].tolist() == [5, 5, 5]

    def test_is_the_same_in_another_process(self, broker):
        whole = torch.arange(12, dtype=torch.bfloat16).reshape(3, 4)
        tensors = {"whole": whole, "part": whole.t()[1:3], "one": torch.tensor(3, dtype=torch.int8)}
        mine = gdrpy.torch.share(broker, "other", tensors)
        lines = [
            f"{name} {t.dtype} {tuple(t.shape)} {t.stride()} {t.tolist()}\n"
            for name, t in sorted(tensors.items())
        ]
        done = subprocess.run(
            [sys.executable, "-c", OTHER, broker.socket],
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.stderr, done.stdout) == ("", "".join(lines))
        assert mine["whole"].tolist() == [[0, 9, 9, 3], [4, 9, 9, 7], [8, 9, 9, 11]]

    def test_is_kept_by_its_tensors_alone(self, broker):
        whole = random(3, 4)
        gdrpy.torch.share(broker, "kept", {"whole": whole, "across": whole.t()})
        found = gdrpy.torch.attach(broker, "kept")
        del found["whole"]
        gc.collect()
        assert broker.stat("kept").writers == 1
        assert found["across"].tolist() == whole.t().tolist()
        del found
        gc.collect()
        assert broker.stat("kept").writers == 0


TYPES = (torch.float32, torch.int32, torch.bfloat16, torch.uint8, torch.float8_e4m3fn,
         torch.complex64)  # fmt: skip


@st.composite
def mixtures(draw: st.DrawFn) -> dict[str, torch.Tensor]:
    """Tensors of any types and strides, over one or two storages of random bytes."""
    storages = draw(st.lists(st.binary(min_size=256, max_size=256), min_size=1, max_size=2))
    buffers = [torch.frombuffer(bytearray(one), dtype=torch.uint8) for one in storages]
    tensors = {}
    for number in range(draw(st.integers(1, 6))):
        buffer = draw(st.sampled_from(buffers)).view(draw(st.sampled_from(TYPES)))
        shape = draw(st.lists(st.integers(0, 4), max_size=3))
        stride = [draw(st.integers(0, 4)) for _ in shape]
        last = sum((n - 1) * step for n, step in zip(shape, stride, strict=True) if n)
        offset = draw(st.integers(0, buffer.numel() - 1 - last))
        tensors[str(number)] = buffer.as_strided(shape, stride, offset)
    return tensors


class TestTensorWithLargeGaps:
    def test_is_stored_without_them(self, broker):
        big = torch.arange(1 << 19, dtype=torch.float32).reshape(1 << 10, 1 << 9)
        column = gdrpy.torch.share(broker, "column", {"x": big[:, 3:4]})["x"]
        assert torch.equal(column, big[:, 3:4])
        assert broker.stat("column").nbytes < 1 << 13


class TestMixture:
    @settings(max_examples=100, deadline=None)
    @given(tensors=mixtures())
    def test_of_tensors_keeps_bits_strides_and_common_memory(self, broker, tensors):
        found = shared(broker, tensors)
        before = {name: places(tensor) for name, tensor in tensors.items()}
        after = {name: places(tensor) for name, tensor in found.items()}
        for one in tensors:
            for other in tensors:
                assert bool(before[one] & before[other]) == bool(after[one] & after[other])
                if before[one] & before[other]:
                    distance = tensors[one].data_ptr() - tensors[other].data_ptr()
                    assert found[one].data_ptr() - found[other].data_ptr() == distance


def note(*view: Any) -> str:
    return json.dumps({"x": view})


class TestNote:
    @pytest.mark.parametrize(
        "text",
        [
            "",
            "{",
            "null",
            "[1]",
            "[" * 100000,
            note("bytes"),
            note("none", "float32", 0, [2], [1]),
            note("floats", "float32", 0, [1], [1]),
            note("bytes", "float32", -4, [2], [1]),
            note("bytes", "float32", 2, [2], [1]),
            note("bytes", "float32", 256, [1], [1]),
            note("bytes", "float32", 2**40, [0], [1]),
            note("bytes", "float32", 2**70, [2], [1]),
            note("bytes", "float32", 0, [65], [1]),
            note("bytes", "float32", 0, [2], [64]),
            note("bytes", "float32", 0, [2**70], [1]),
            note("bytes", "float32", 0, [2], [2**70]),
            note("bytes", "float32", 0, [2**63], [0]),
            note("bytes", "float32", 0, [2**62, 2**62], [0, 0]),
            note("bytes", "float32", 0, [0, 2**70], [1, 1]),
            note("bytes", "float32", 0, [-1], [1]),
            note("bytes", "float32", 4, [2], [-1]),
            note("bytes", "float32", 0, [2], [1, 1]),
            note("bytes", "float32", 0.5, [2], [1]),
            note("bytes", "float33", 0, [2], [1]),
            note("bytes", "Tensor", 0, [2], [1]),
            note("bytes", "nn", 0, [2], [1]),
            note("bytes", "", 0, [2], [1]),
            '{"x": ["bytes", "uint8", 0, [1], [1], ' + "[" * 100000,
            '{"x": ["bytes", "uint8", ' + "9" * 5000 + ", [1], [1]]}",
        ],
        ids=lambda text: text[:60],
    )
    def test_that_share_does_not_write_is_refused(self, broker, text):
        arrays = {"bytes": np.zeros(256, np.uint8), "floats": np.zeros(4, np.float32)}
        broker.put_tensors("hostile", arrays, notes={"gdrpy.torch.views": text}).close()
        words = r"^attach: <BrokerRegion 'hostile': .* has no valid note of how its tensors lie \("
        with pytest.raises(ValueError, match=words):
            gdrpy.torch.attach(broker, "hostile")


class TestTensorsOf:
    def test_finds_what_a_module_holds_once_and_by_its_first_name(self):
        module, part = torch.nn.Module(), torch.nn.Linear(2, 2)
        module.first, module.second = part, part
        module.register_parameter("absent", None)
        module.register_buffer("kept", torch.ones(1))
        module.register_buffer("computed", torch.ones(2), persistent=False)
        module.register_buffer("nothing", torch.empty(0))
        part.scale = torch.ones(3)
        part.empty = torch.empty(0, 5)
        part.count = 3
        part.tied = part.weight
        found = gdrpy.torch.tensors_of(module)
        held = {
            "kept": module.kept,
            "computed": module.computed,
            "first.weight": part.weight,
            "first.bias": part.bias,
            "first.tied": part.weight,
            "first.scale": part.scale,
        }
        assert found.keys() == held.keys()
        assert all(found[name] is tensor for name, tensor in held.items())
