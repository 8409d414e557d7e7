"""A small model, and an engine's configuration around it, by the stand-in of vLLM."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import safetensors.torch
import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor
from vllm.config.load import LoadConfig
from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase
from vllm.model_executor.model_loader import get_model_loader, register_model_loader
from vllm.model_executor.model_loader.base_loader import BaseModelLoader

import gdrpy.vllm
from gdrpy.torch import tensors_of
from gdrpy.vllm.contents import numbers_of

#: The folders that the load format "files" has loaded.
loads: list[str] = []


class Quantized(QuantizeMethodBase):
    """Stores a weight transposed, beside tensors and numbers that it makes from the data."""

    def create_weights(
        self, layer: nn.Module, *weight_args: Any, **extra_weight_attrs: Any
    ) -> None:
        layer.weight = nn.Parameter(torch.empty(weight_args), requires_grad=False)
        layer.scale = nn.Parameter(torch.tensor(-1.0), requires_grad=False)

    def apply(self, layer: nn.Module, *args: Any, **kwargs: Any) -> torch.Tensor:
        return args[0] @ layer.weight * layer.factor

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        assert layer.scale > 0, "the checkpoint has no scale"
        layer.weight = nn.Parameter(layer.weight.t(), requires_grad=False)
        layer.sums = layer.weight.sum(0)
        layer.turned = layer.weight.t()
        layer.same = layer.sums[:1].expand(3)
        layer.factor = layer.scale.item()
        layer.limit = float("inf") if layer.factor == 1 else layer.factor
        layer.zeros = int((layer.weight == 0).sum())
        layer.workspace.fill_(layer.factor)
        del layer.scale


class Layer(nn.Module):
    """A quantized layer, which is known by its name to the engine's configuration."""

    def __init__(self, vllm_config: Any, name: str, rows: int, columns: int) -> None:
        super().__init__()
        known = vllm_config.compilation_config.static_forward_context
        if name in known:
            raise ValueError(f"Duplicate layer name: {name}")
        known[name] = self
        self.quant_method = Quantized()
        self.quant_method.create_weights(self, rows, columns)
        self.factor, self.zeros = 1.0, 0
        self.rank = vllm_config.parallel_config.rank
        self.register_buffer("workspace", torch.ones(2), persistent=False)


class Model(nn.Module):
    """Tied weights, a computed buffer, and quantized layers, one of a single row."""

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__()
        hidden = vllm_config.model_config.hf_config.hidden
        self.embed = nn.Embedding(7, hidden)
        self.register_buffer("frequencies", 1 / 10 ** torch.arange(hidden), persistent=False)
        self.wide = Layer(vllm_config, f"{prefix}wide", 3, hidden)
        self.gate = Layer(vllm_config, f"{prefix}gate", hidden, 1)
        self.head = nn.Linear(hidden, 7, bias=False)
        self.head.weight = self.embed.weight

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        for name, tensor in weights:
            with torch.no_grad():
                self.get_parameter(name).copy_(tensor)


class Hiding(Model):
    """Keeps tensors where no name reaches them."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        self.hidden = [torch.ones(2)]


class Gaps(Model):
    """Has a column of a matrix that it does not keep."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        matrix = torch.arange(4096 * 512.0).reshape(4096, 512)
        self.register_buffer("column", matrix[:, 1], persistent=False)


class Odd(Model):
    """Has a tensor that no region holds."""

    odd: torch.Tensor

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        self.odd = type(self).odd


class Sparse(Odd):
    odd = torch.eye(3).to_sparse()


class Meta(Odd):
    odd = torch.ones(3, device="meta")


class Pair(Odd):
    odd = TwoTensor(torch.ones(3), torch.ones(3))


@register_model_loader("files")
class Files(BaseModelLoader):
    """Loads the safetensors file of a model's folder."""

    def download_model(self, model_config: Any) -> None:
        Path(model_config.model, "downloaded").touch()

    def load_weights(self, model: nn.Module, model_config: Any) -> None:
        loads.append(model_config.model)
        model.load_weights(safetensors.torch.load_file(f"{model_config.model}/model").items())


class HfConfig:
    """The model's configuration."""

    def __init__(self, hidden: int, path: str) -> None:
        self.hidden = hidden
        self._name_or_path = path

    def to_json_string(self, use_diff: bool) -> str:
        return json.dumps(vars(self) | {"use_diff": use_diff})


def write_model(folder: Path, seed: float = 1, hidden: int = 4) -> str:
    """Write a model's weights into a folder; returns its path."""
    generator = torch.Generator().manual_seed(int(seed))
    tensors = {
        "embed.weight": torch.randn(7, hidden, generator=generator),
        "wide.weight": torch.randn(3, hidden, generator=generator),
        "wide.scale": torch.tensor(0.5 + seed),
        "gate.weight": torch.randn(hidden, 1, generator=generator),
        "gate.scale": torch.tensor(1.0),  # as before it was loaded
    }
    folder.mkdir(exist_ok=True)
    safetensors.torch.save_file(tensors, folder / "model")
    return str(folder)


class Hashed(SimpleNamespace):
    """A part of vLLM's configuration. Its hash has what decides on the computation."""

    def compute_hash(self) -> str:
        counted = ("dtype", "quantization", "_size", "_parallel", "moe_backend")
        return repr({key: one for key, one in vars(self).items() if key.endswith(counted)})


def config_of(folder: str, extra: Any = None, **more: Any) -> SimpleNamespace:
    """An engine's configuration: the extra one of the loader, and changes of what is usual."""
    given = {"hidden": 4, "dtype": torch.float32, "quantization": None, "rank": 0, "world": 1}
    given |= {"model_class": Model, "sleep": False, "cache": "auto", "kernel": "auto"}
    given |= {
        "cache_nbytes": None,
        "data_rank": 0,
        "experts": False,
        "eplb": False,
        "transfer": None,
        **more,
    }
    model = Hashed(
        model=folder,
        revision=None,
        dtype=given["dtype"],
        quantization=given["quantization"],
        hf_config=HfConfig(given["hidden"], folder),
        model_class=given["model_class"],
        enable_sleep_mode=given["sleep"],
        sleep_mode_backend="cumem",
        get_num_layers=lambda parallel: 2,
    )
    parallel = Hashed(
        rank=given["rank"],
        world_size=given["world"],
        tensor_parallel_size=given["world"],
        pipeline_parallel_size=1,
        data_parallel_size=1,
        data_parallel_rank=given["data_rank"],
        enable_expert_parallel=given["experts"],
        enable_eplb=given["eplb"],
        enable_elastic_ep=False,
    )
    if not isinstance(extra, str):
        extra = {"load_format": "files"} | (extra or {})
    return SimpleNamespace(
        model_config=model,
        parallel_config=parallel,
        cache_config=SimpleNamespace(
            cache_dtype=given["cache"], kv_cache_memory_bytes=given["cache_nbytes"]
        ),
        kernel_config=Hashed(moe_backend=given["kernel"]),
        lora_config=None,
        weight_transfer_config=given["transfer"],
        device_config=SimpleNamespace(device="cpu"),
        load_config=LoadConfig(load_format="gdrpy", model_loader_extra_config=extra),
        compilation_config=SimpleNamespace(static_forward_context={}, static_all_moe_layers=[]),
    )


def start(config: SimpleNamespace) -> Any:
    """The model of an engine of this configuration."""
    loader = get_model_loader(config.load_config)
    return loader.load_model(vllm_config=config, model_config=config.model_config)


def state(model: nn.Module) -> dict[str, Any]:
    """All tensors and numbers of a model."""
    tensors = {
        name: (str(one.dtype), tuple(one.shape), one.stride(), one.tolist())
        for name, one in tensors_of(model).items()
    }
    return json.loads(json.dumps(tensors | numbers_of(model)))


if __name__ == "__main__":
    gdrpy.vllm.register()
    print(json.dumps([state(start(config_of(sys.argv[1]))), loads]))
