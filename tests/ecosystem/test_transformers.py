"""Pretrained models of transformers: loaded once, and shared by all processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers
from transformers import AutoModel, BertConfig, BertModel, LlamaConfig, LlamaForCausalLM

import gdrpy
import gdrpy.transformers
from gdrpy.torch import tensors_of
from gdrpy.transformers import region_of

WORDS = torch.arange(3, 19).reshape(1, -1)
OTHER = """
import sys
import torch
import gdrpy.transformers

broker = gdrpy.connect(sys.argv[1])
model = gdrpy.transformers.from_pretrained(sys.argv[2], broker=broker)
said = model.generate(torch.arange(3, 19).reshape(1, -1), do_sample=False, max_new_tokens=8)
print(said.tolist())
"""


def saved(folder: Path, seed: int = 1, **more: object) -> str:
    """A Llama's folder, with a way of generating of its own."""
    torch.manual_seed(seed)
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": True}
    config = LlamaConfig(vocab_size=128, dtype=torch.bfloat16, **sizes, **heads, **more)
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    model.generation_config.update(max_new_tokens=7, eos_token_id=None)
    model.save_pretrained(folder)
    return str(folder)


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return saved(tmp_path / "llama")


def load(folder: str, broker: gdrpy.Broker, **more: object) -> torch.nn.Module:
    return gdrpy.transformers.from_pretrained(folder, broker=broker, **more)


def say(model: torch.nn.Module) -> list[list[int]]:
    return model.generate(WORDS, do_sample=False, max_new_tokens=8).tolist()


def names(broker: gdrpy.Broker) -> list[str]:
    return [str(info.name) for info in broker.list()]


class TestFromPretrained:
    def test_gives_all_processes_the_very_model_of_transformers(self, broker, folder):
        expected = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="auto").eval()
        first, second = load(folder, broker), load(folder, broker)
        path = broker.socket
        words = [sys.executable, "-c", OTHER, path, folder]
        third = subprocess.run(words, capture_output=True, text=True, check=False)
        assert third.stdout == f"{say(expected)}\n", third.stderr
        for model in first, second:
            assert say(model) == say(expected)
            own, other = tensors_of(model), tensors_of(expected)
            assert own.keys() == other.keys()
            for name, tensor in own.items():
                assert (tensor.dtype, tensor.stride()) == (other[name].dtype, other[name].stride())
                assert torch.equal(tensor, other[name]), name
            assert model.generation_config == expected.generation_config
            assert (model.training, model.dtype) == (False, torch.bfloat16)

    def test_shares_every_weight_and_keeps_ties(self, broker, folder):
        first, second = load(folder, broker), load(folder, broker)
        [name] = names(broker)
        assert name.startswith("transformers/llama/")
        for model in first, second:
            region = region_of(model)
            for weight in model.parameters():
                assert 0 <= weight.data_ptr() - region.ptr <= region.nbytes - weight.nbytes
            assert model.lm_head.weight is model.model.embed_tokens.weight

    def test_takes_a_name_and_permissions(self, broker, folder):
        load(folder, broker, name="model", mode=0o640)
        info = broker.stat("model")
        assert (info.mode, info.sealed) == (0o640, True)

    def test_knows_files_and_options_apart(self, broker, folder):
        load(folder, broker)
        load(folder, broker, dtype=torch.float32)
        assert len(names(broker)) == 2
        load(saved(Path(folder), seed=2), broker)
        assert len(names(broker)) == 3

    def test_knows_a_model_by_any_path_and_way_of_attention(self, broker, folder, monkeypatch):
        monkeypatch.chdir(Path(folder).parent)
        load(folder, broker)
        for path in (f"{folder}/", "llama"):
            other = load(path, broker, attn_implementation="eager")
            assert other.config._attn_implementation == "eager"
        assert len(names(broker)) == 1

    def test_takes_a_class_of_its_own_and_a_subfolder(self, broker, tmp_path):
        for seed in (1, 2):
            saved(tmp_path / f"step-{seed}", seed)
            model, other = (
                load(str(tmp_path), broker, kind=LlamaForCausalLM, subfolder=f"step-{seed}")
                for _ in range(2)
            )
            expected = LlamaForCausalLM.from_pretrained(tmp_path / f"step-{seed}")
            for one in model, other:
                assert torch.equal(one.lm_head.weight, expected.lm_head.weight)

    def test_takes_other_kinds_of_models(self, broker, tmp_path):
        sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1}
        BertModel(BertConfig(vocab_size=64, num_attention_heads=2, **sizes)).save_pretrained(
            tmp_path
        )
        first, second = (load(str(tmp_path), broker, kind=AutoModel) for _ in range(2))
        found = [model(WORDS).last_hidden_state for model in (first, second)]
        assert torch.equal(*found)

    def test_wakes_weights_that_sleep(self, broker, folder):
        model = load(folder, broker, name="model")
        expected = say(model)
        broker.sleep_many([region_of(model)])
        assert [name.rpartition("/")[0] for name in names(broker)] == ["model.host"]
        other = load(folder, broker, name="model")
        broker.wake_many([region_of(model)])
        assert (say(other), say(model)) == (expected, expected)
        assert region_of(other).id == region_of(model).id
        with pytest.raises(ValueError, match="LlamaForCausalLM is not from gdrpy.transformers"):
            region_of(LlamaForCausalLM(model.config))

    def test_takes_another_users_region_by_its_name_alone(self, broker, folder, tmp_path):
        load(folder, broker)
        load(folder, broker)
        assert "allocate" not in broker.status()["requests"]  # it takes nothing of any quota
        [name] = names(broker)
        broker.save(tmp_path / "saved")
        index = tmp_path / "saved" / "snapshot.json"
        told = json.loads(index.read_text())
        told["regions"][0]["uid"] += 1234
        index.write_text(json.dumps(told))
        broker.delete(name)
        broker.restore(tmp_path / "saved")
        with pytest.raises(gdrpy.PermissionDenied, match="is that of user .*: pass its name if"):
            load(folder, broker)
        assert region_of(load(folder, broker, name=name)).name == name

    def test_refuses_what_shared_weights_cannot_be(self, broker, folder, tmp_path):
        with pytest.raises(TypeError, match="option 'device_map' is none that shared weights"):
            load(folder, broker, device_map="auto")
        about = {"quant_method": "fp8", "activation_scheme": "dynamic"}
        quantized = saved(tmp_path / "quantized", quantization_config=about)
        with pytest.raises(ValueError, match="is quantized, and its parts depend on what"):
            load(quantized, broker)
        with pytest.raises(OSError, match="missing"):
            load(str(tmp_path / "missing"), broker)
        assert names(broker) == []
