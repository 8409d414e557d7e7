"""A module's state by name, in one region of a broker, for every process of the machine."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch

import gdrpy
import gdrpy.torch
from gdrpy.broker import temporary
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


@pytest.fixture(scope="module")
def socket() -> Iterator[str]:
    with temporary() as path:
        yield path


@pytest.fixture
def broker(socket: str) -> Iterator[gdrpy.Broker]:
    with gdrpy.connect(socket) as broker:
        yield broker


@pytest.fixture
def module() -> torch.nn.Module:
    torch.manual_seed(1)
    return torch.nn.Linear(3, 2)


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

    def test_refuses_what_is_no_tensor(self, broker):
        with pytest.raises(TypeError, match="share: 'step' is a int, not a tensor: leave it out"):
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
        with pytest.raises(ValueError, match="safetensors"):
            gdrpy.torch.attach(broker, "plain")

    def test_of_no_region_is_refused(self, broker):
        with pytest.raises(gdrpy.NotFound):
            gdrpy.torch.attach(broker, "nothing")


class TestPool:
    def test_is_refused_where_torch_has_none(self, nothing_leaks):
        with (
            gdrpy.alloc(1 << 20) as region,
            pytest.raises(gdrpy.BackendUnavailable, match=r"Pool: torch has memory pools on real"),
        ):
            gdrpy.torch.Pool(region)


class Squares(torch.utils.data.Dataset):
    """What workers load: a number's square, and how much they hold of their parent's memory."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> tuple[int, int]:
        held = [one for one in open_descriptors().values() if "/memfd:gdrpy-" in one]
        return index**2, len(held) + gpu_mappings()


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
