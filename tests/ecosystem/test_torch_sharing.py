"""A module's state by name, in one region of a broker, for every process of the machine."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading

import pytest
import safetensors.torch
import torch

import gdrpy
import gdrpy.torch
from checkpoints import write_index
from gdrpy.torch.memory_saver import torch_memory_saver
from support import gpu_mappings, open_descriptors

OTHER = """
import sys
import torch
import gdrpy.torch

broker = gdrpy.connect(sys.argv[1])
with torch.device("meta"):
    module = torch.nn.Linear(3, 2)
module.load_state_dict(gdrpy.torch.attach(broker, "model", gpu=sys.argv[2] == "gpu"), assign=True)
print(module(torch.ones(1, 3)).tolist(), flush=True)
sys.stdin.readline()
with torch.no_grad():
    module.bias += 1
print(module.bias.tolist(), flush=True)
"""

GET = """
import sys
import numpy as np
import torch
import gdrpy

broker = gdrpy.connect(sys.argv[1])
region = broker.get("one", readonly=True)
expected = torch.arange(6, dtype=torch.bfloat16).reshape(2, 3)
for take in torch.from_dlpack, torch.as_tensor:
    found = take(region)
    assert (found.dtype, found.data_ptr()) == (expected.dtype, region.ptr)
    assert torch.equal(found, expected)
array = region.array()
print(array.dtype, array.shape, array.readonly, np.asarray(region).shape)
"""


@pytest.fixture
def module() -> torch.nn.Module:
    torch.manual_seed(1)
    return torch.nn.Linear(3, 2)


class TestOneTensor:
    def test_is_the_same_tensor_in_another_process(self, socket, broker):
        tensor = torch.arange(6, dtype=torch.bfloat16).reshape(2, 3)
        broker.put("one", tensor, seal=True).close()
        command = [sys.executable, "-c", GET, socket]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.stderr, done.stdout) == ("", "BF16 (2, 3) True (2, 3)\n")


class TestShare:
    def test_gives_back_the_shared_tensors(self, broker, module):
        shared = gdrpy.torch.share(broker, "model", module)
        assert {key: tensor.tolist() for key, tensor in shared.items()} == {
            key: tensor.tolist() for key, tensor in module.state_dict().items()
        }
        module.load_state_dict(shared, assign=True)
        with torch.no_grad():
            module.weight.fill_(5)
        assert gdrpy.torch.attach(broker, "model")["weight"].tolist() == [[5] * 3] * 2

    def test_takes_tensors_by_name_of_any_type(self, broker):
        tensors = {
            "half": torch.arange(6, dtype=torch.bfloat16).reshape(2, 3).t(),
            "mask": torch.tensor([True, False]),
            "step": torch.tensor(7),
        }
        shared = gdrpy.torch.share(broker, "tensors", tensors)
        for name, tensor in tensors.items():
            assert shared[name].dtype == tensor.dtype
            assert torch.equal(shared[name], tensor)

    def test_leaves_the_original_alone(self, broker, module):
        shared = gdrpy.torch.share(broker, "model", module)
        shared["bias"].fill_(9)
        assert module.bias.tolist() != [9, 9]

    @pytest.mark.parametrize("tensors", [5, None, [torch.ones(2)], torch.ones(2)])
    def test_refuses_what_has_no_names(self, broker, tensors):
        kind = type(tensors).__name__
        with pytest.raises(TypeError) as caught:
            gdrpy.torch.share(broker, "model", tensors)
        words = "share: tensors must be a module, or a dict of tensors by name, not "
        assert str(caught.value) == words + kind

    @pytest.mark.parametrize("call", [gdrpy.torch.share, gdrpy.torch.attach])
    def test_wants_the_broker_first(self, call):
        with pytest.raises(TypeError, match=r"broker must be that of gdrpy.connect\(\), not 'a'"):
            call("a", "model", *[{}] * (call is gdrpy.torch.share))

    @pytest.mark.parametrize(
        ("tensor", "error", "words"),
        [
            (torch.ones(2, device="meta"), ValueError, "the tensor has no memory"),
            (torch.eye(2).to_sparse(), BufferError, r"\(torch.sparse_coo\): pass tensor.to_dense"),
        ],
    )
    def test_put_refuses_what_has_no_elements_in_memory(self, broker, tensor, error, words):
        with pytest.raises(error, match=f"^put: .*{words}"):
            broker.put("a", tensor)

    def test_refuses_what_is_no_tensor(self, broker):
        with pytest.raises(TypeError, match="share: 'step' is of type int, not a tensor: leave"):
            gdrpy.torch.share(broker, "refused", {"step": 3})
        with pytest.raises(gdrpy.NotFound):
            broker.stat("refused")

    def test_passes_options_on(self, broker):
        gdrpy.torch.share(broker, "sealed", {"a": torch.zeros(1)}, seal=True, mode=0o640)
        found = broker.stat("sealed")
        with broker.get("sealed") as region, pytest.raises(gdrpy.Sealed, match="Arena: region"):
            gdrpy.Arena(region)
        assert (found.sealed, found.mode) == (True, 0o640)


class TestAttach:
    @pytest.mark.parametrize("view", ["gpu", "cpu"])
    def test_in_another_process_shares_the_bytes(self, broker, socket, module, view):
        shared = gdrpy.torch.share(broker, "model", module)
        module.load_state_dict(shared, assign=True)
        expected = module(torch.ones(1, 3)).tolist()
        with subprocess.Popen(
            [sys.executable, "-c", OTHER, socket, view],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as other:
            assert other.stdout.readline() == f"{expected}\n"
            shared["bias"].fill_(3)
            other.stdin.write("\n")
            other.stdin.flush()
            assert other.stdout.readline() == "[4.0, 4.0]\n"
        assert other.returncode == 0
        assert module.bias.tolist() == [4, 4]

    def test_keeps_the_region_while_there_is_a_tensor(self, broker, module):
        gdrpy.torch.share(broker, "model", module)
        gc.collect()
        assert broker.stat("model").writers == 0
        weight = gdrpy.torch.attach(broker, "model")["weight"]
        gc.collect()
        assert broker.stat("model").writers == 1
        assert weight.tolist() == module.weight.tolist()
        del weight
        gc.collect()
        assert broker.stat("model").writers == 0

    def test_finds_a_new_version(self, broker, module):
        gdrpy.torch.share(broker, "model", module)
        old = gdrpy.torch.attach(broker, "model")
        with torch.no_grad():
            module.bias.fill_(2)
        gdrpy.torch.share(broker, "model", module)
        assert old["bias"].tolist() != [2, 2]
        assert gdrpy.torch.attach(broker, "model")["bias"].tolist() == [2, 2]

    def test_of_a_region_without_tensors_is_refused(self, broker):
        broker.create("plain", 64).publish()
        with pytest.raises(ValueError, match="region 'plain' holds no tensors: publish some"):
            gdrpy.torch.attach(broker, "plain")

    def test_of_no_region_is_refused(self, broker):
        with pytest.raises(gdrpy.NotFound):
            gdrpy.torch.attach(broker, "nothing")


class Rotary(torch.nn.Module):
    """Frequencies that are computed, and are not part of the state."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("frequencies", 1 / 10 ** torch.arange(0, 4), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.cos(self.frequencies)


class Language(torch.nn.Module):
    """What models of languages have: tied weights, a part used twice, buffers of either kind."""

    def __init__(self, tied: bool = True) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(10, 4)
        self.rotary = Rotary()
        block = torch.nn.Linear(4, 4)
        self.blocks = torch.nn.ModuleList([block, torch.nn.LayerNorm(4), block])
        self.scale = torch.nn.Parameter(torch.rand(4), requires_grad=False)
        self.register_buffer("steps", torch.tensor(7))
        mask = torch.empty(10, 4).fill_(-1).triu_(1)
        self.register_buffer("mask", mask, persistent=False)
        self.register_buffer("absent", None, persistent=False)
        self.head = torch.nn.Linear(4, 10, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.rotary(self.embedding(words))
        for block in self.blocks:
            x = block(x) * self.scale + self.mask[words]
        return self.head(x)


WORDS = torch.arange(10)

WORKER = """
import sys
import torch
import gdrpy.torch
from test_torch_sharing import WORDS, Language

broker = gdrpy.connect(sys.argv[1])
with gdrpy.torch.empty_weights():
    model = Language(tied=sys.argv[2] == "tied")
gdrpy.torch.assign(model, gdrpy.torch.attach(broker, "language"))
torch.save(model(WORDS), sys.argv[3])
"""


@pytest.fixture
def language(broker: gdrpy.Broker) -> Language:
    torch.manual_seed(1)
    return Language()


class TestTiedWeights:
    def test_are_stored_once_and_shared_as_one(self, broker, language):
        shared = gdrpy.torch.share(broker, "language", language)
        stored = broker.get("language", gpu=False).tensors()
        assert shared.keys() == stored.keys() == language.state_dict().keys()
        assert shared["head.weight"] is shared["embedding.weight"]
        assert shared["blocks.0.bias"] is shared["blocks.2.bias"]
        assert stored["head.weight"] is stored["embedding.weight"]
        nbytes = sum(tensor.nbytes for tensor in {id(one): one for one in shared.values()}.values())
        assert nbytes == 4 * (10 * 4 + 4 * 4 + 4 + 4 + 4 + 4) + 8
        assert broker.stat("language").nbytes < nbytes + 2048

    def test_that_are_not_tied_stay_apart(self, broker):
        shared = gdrpy.torch.share(broker, "language", Language(tied=False))
        assert shared["head.weight"] is not shared["embedding.weight"]
        assert shared["head.weight"].data_ptr() != shared["embedding.weight"].data_ptr()

    def test_in_part_or_of_no_elements_are_stored_apart(self, broker):
        whole = torch.arange(6.0)
        tensors = {"whole": whole, "part": whole[:3], "across": whole.reshape(2, 3).t()}
        tensors |= {"none": torch.empty(0), "no": torch.empty(0)}
        shared = gdrpy.torch.share(broker, "parts", tensors)
        assert len({id(tensor) for tensor in shared.values()}) == 5
        for name, tensor in tensors.items():
            assert torch.equal(shared[name], tensor)

    def test_are_what_safetensors_stored_under_an_alias(self, broker, language, tmp_path):
        safetensors.torch.save_model(language, str(tmp_path / "model.safetensors"))
        broker.load(tmp_path / "model.safetensors", "language").close()
        found = gdrpy.torch.attach(broker, "language")
        assert found.keys() == language.state_dict().keys()
        assert found["head.weight"] is found["embedding.weight"]

    @pytest.mark.parametrize(
        ("aliases", "reason"),
        [
            ({"a": "a"}, "alias 'a' is a tensor's name: choose another"),
            ({"b": "c"}, "alias 'b' stands for 'c', which is not a tensor's name"),
            ({"format": "a"}, "alias 'format' cannot name a tensor: choose another"),
            ({"note": "a"}, "alias 'note' cannot name a tensor: choose another"),
        ],
    )
    def test_have_aliases_of_tensors_alone(self, broker, aliases, reason):
        with pytest.raises(ValueError, match=f"put_tensors: {reason}"):
            broker.put_tensors("a", {"a": [1]}, aliases=aliases, notes={"note": "text"})


class TestEmptyWeights:
    def test_have_no_memory_and_stay_tied(self):
        with gdrpy.torch.empty_weights():
            model = Language()
        assert {parameter.is_meta for parameter in model.parameters()} == {True}
        assert model.head.weight is model.embedding.weight
        assert [parameter.requires_grad for parameter in (model.scale, model.head.weight)] == [
            False,
            True,
        ]

    def test_leave_the_buffers(self):
        with gdrpy.torch.empty_weights():
            model = Language()
        for name, buffer in Language().named_buffers():
            assert torch.equal(model.get_buffer(name), buffer)

    def test_tie_parameters_that_are_shared_before_they_are_registered(self):
        with gdrpy.torch.empty_weights():
            one = torch.nn.Parameter(torch.ones(2))
            first, second = torch.nn.Module(), torch.nn.Module()
            first.weight = one
            second.weight = one
        assert first.weight is second.weight
        assert first.weight.is_meta

    def test_are_those_of_this_thread_and_this_block(self):
        made = []
        with gdrpy.torch.empty_weights():
            thread = threading.Thread(target=lambda: made.append(Language()))
            thread.start()
            thread.join()
        made.append(Language())
        assert not any(parameter.is_meta for one in made for parameter in one.parameters())


class Counting(torch.nn.Linear):
    """A layer whose state has something else than tensors."""

    steps = 0

    def get_extra_state(self):
        return {"steps": self.steps}

    def set_extra_state(self, state):
        self.steps = state["steps"]


class TestAssign:
    @pytest.mark.parametrize("tied", [True, False])
    def test_makes_a_worker_compute_the_same(self, broker, socket, tmp_path, tied):
        model = Language(tied)
        expected = model(WORDS)
        gdrpy.torch.assign(model, gdrpy.torch.share(broker, "language", model))
        assert torch.equal(model(WORDS), expected)
        assert (model.head.weight is model.embedding.weight) == tied
        words = [sys.executable, "-c", WORKER, socket, "tied" if tied else "apart"]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        subprocess.run([*words, str(tmp_path / "out")], env=environment, check=True)
        assert torch.equal(torch.load(tmp_path / "out"), expected)

    def test_uses_the_tensors_themselves_and_keeps_what_learns(self, broker, language):
        shared = gdrpy.torch.share(broker, "language", language)
        gdrpy.torch.assign(language, shared)
        for name, tensor in language.state_dict().items():
            assert tensor.data_ptr() == shared[name].data_ptr()
        assert language.blocks[0].weight.requires_grad
        assert not language.scale.requires_grad
        assert language.steps is shared["steps"]

    def test_of_a_checkpoints_files_ties_what_they_have_once(self, broker, language, tmp_path):
        state = language.state_dict()
        del state["head.weight"], state["blocks.2.weight"], state["blocks.2.bias"]
        embedding = {"embedding.weight": state.pop("embedding.weight")}
        safetensors.torch.save_file(embedding, tmp_path / "1.safetensors")
        safetensors.torch.save_file(state, tmp_path / "2.safetensors")
        files = dict.fromkeys(embedding, "1.safetensors") | dict.fromkeys(state, "2.safetensors")
        write_index(tmp_path, files)
        broker.load_checkpoint(tmp_path, "files", gpu=False)
        with gdrpy.torch.empty_weights():
            model = Language()
        gdrpy.torch.assign(model, gdrpy.torch.attach(broker, "files"))
        assert torch.equal(model(WORDS), language(WORDS))
        assert model.head.weight is model.embedding.weight

    def test_takes_a_tied_tensor_by_the_name_that_there_is(self, broker, language):
        state = language.state_dict()
        del state["embedding.weight"]
        with gdrpy.torch.empty_weights():
            model = Language()
        gdrpy.torch.assign(model, gdrpy.torch.share(broker, "language", state))
        assert torch.equal(model(WORDS), language(WORDS))

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (({}, torch.nn.Linear(2, 2)), "module must be a torch.nn.Module, not dict"),
            ((torch.nn.Linear(2, 2), "x"), "tensors must be a dict of tensors by name, not str"),
            (
                (torch.nn.Linear(2, 2), {"bias": [1, 2]}),
                "'bias' is of type list, not a tensor: pass what attach() returned",
            ),
        ],
    )
    def test_names_arguments_of_another_kind(self, arguments, words):
        with pytest.raises(TypeError) as caught:
            gdrpy.torch.assign(*arguments)
        assert str(caught.value) == f"assign: {words}"

    def test_refuses_buffers_that_nothing_fills_and_says_how_to_make_them(self, broker, language):
        shared = gdrpy.torch.share(broker, "language", language)
        with torch.device("meta"):
            model = Language()
        with pytest.raises(ValueError, match="assign: ") as caught:
            gdrpy.torch.assign(model, shared)
        assert str(caught.value) == (
            "assign: buffer 'mask' has no memory (device meta) and is not part of the module's "
            "state, so that no tensor fills it: make the module inside "
            '`with gdrpy.torch.empty_weights():` instead of torch.device("meta")'
        )
        assert model.head.weight.is_meta

    def test_refuses_what_is_missing_too_much_or_of_another_shape(self, broker, language):
        state = language.state_dict()
        with pytest.raises(RuntimeError, match="size mismatch for scale"):
            gdrpy.torch.assign(language, {**state, "scale": torch.ones(5)})
        more = {**state, "more": torch.ones(1)}
        with pytest.raises(RuntimeError, match=r'Unexpected key.*"more"'):
            gdrpy.torch.assign(language, more)
        gdrpy.torch.assign(language, more, strict=False)
        del state["scale"]
        with pytest.raises(RuntimeError, match=r'Missing key.*"scale"'):
            gdrpy.torch.assign(language, state)

    def test_takes_extra_state_that_is_no_tensor(self):
        module = Counting(3, 2)
        tensors = {"weight": torch.ones(2, 3), "bias": torch.ones(2), "_extra_state": {"steps": 7}}
        gdrpy.torch.assign(module, tensors)
        assert (module.steps, module.weight.data_ptr()) == (7, tensors["weight"].data_ptr())

    def test_moves_other_buffers_to_the_tensors_device(self):
        model = Language()
        state = {name: tensor.to("meta") for name, tensor in model.state_dict().items()}
        gdrpy.torch.assign(model, state)
        assert {buffer.device.type for buffer in model.buffers()} == {"meta"}
        assert model.absent is None


class TestShareOfAModuleWithoutMemory:
    def test_is_refused(self, broker):
        with gdrpy.torch.empty_weights():
            model = Language()
        with pytest.raises(
            ValueError, match="share: 'scale' has no memory .*: share a module that"
        ):
            gdrpy.torch.share(broker, "nothing", model)


class TestPool:
    def test_is_refused_where_torch_has_none(self, nothing_leaks):
        with (
            gdrpy.alloc(1 << 20) as region,
            pytest.raises(gdrpy.BackendUnavailable, match=r"Pool: torch has memory pools on real"),
        ):
            gdrpy.torch.Pool(region)


class TestMemorySaver:
    @pytest.mark.parametrize(("call", "arguments"), [("region", ()), ("cuda_graph", (None,))])
    def test_is_refused_where_torch_has_no_pools(self, call, arguments):
        block = getattr(torch_memory_saver, call)(*arguments)
        words = f"{call}: torch has memory pools on real GPUs only"
        with pytest.raises(gdrpy.BackendUnavailable, match=words), block:
            pass


class Squares(torch.utils.data.Dataset):
    """What workers load: a number's square, and how much they hold of their parent's memory."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> tuple[int, int]:
        held = [one for one in open_descriptors().values() if "/memfd:gdrpy-" in one]
        return index**2, len(held) + gpu_mappings()


class TestTensorsOfARegion:
    def test_are_those_of_attach_and_sleep_with_the_region(self, broker):
        module = torch.nn.Linear(3, 2)
        gdrpy.torch.share(broker, "asleep", module, seal=True)
        with broker.get("asleep", cpu=False) as region:
            found = gdrpy.torch.tensors_in(region)
            assert found.keys() == gdrpy.torch.attach(broker, "asleep").keys()
            broker.sleep_many([region])
            broker.wake_many([region])
            assert torch.equal(found["weight"], module.weight)
            del found
        broker.delete("asleep")

    def test_of_a_region_without_tensors_are_refused(self, broker):
        with broker.put("plain", b"bytes") as region, pytest.raises(ValueError, match="tensors"):
            gdrpy.torch.tensors_in(region)
        broker.delete("plain")


class TestDataLoader:
    def test_workers_made_by_fork_keep_no_memory_of_their_parents(self, broker):
        regions = [gdrpy.alloc(4096), gdrpy.alloc(4096, device="cpu"), broker.put("a", [1], "cpu")]
        loader = torch.utils.data.DataLoader(
            Squares(), batch_size=4, num_workers=2, multiprocessing_context="fork"
        )
        loaded = torch.cat([torch.stack(batch) for batch in loader], 1)
        assert loaded.tolist() == [[0, 1, 4, 9, 16, 25, 36, 49], [0] * 8]
        for region in regions:
            region.write(b"there")
            region.close()
