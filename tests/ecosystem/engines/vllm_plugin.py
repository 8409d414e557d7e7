"""What the tests of vLLM's plug-in share."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import torch

import gdrpy

HERE = Path(__file__).parent
STANDINS = HERE / "standins"
#: What is imported anew for each test, and is gone after it.
OURS = ("vllm", "prometheus_client", "gdrpy.vllm", "vllm_engine")


def take_away() -> dict[str, Any]:
    """Take the modules out of those that are imported."""
    vars(gdrpy).pop("vllm", None)
    names = [one for one in sys.modules if one in OURS or one.startswith(("vllm.", "gdrpy.vllm."))]
    return {name: sys.modules.pop(name) for name in names}


def loader() -> Any:
    return sys.modules["gdrpy.vllm.loader"]


def fallbacks() -> dict[tuple[str, ...], float]:
    return sys.modules["gdrpy.vllm.fallback"]._count.counts


def parts(model: torch.nn.Module, region: gdrpy.Region) -> tuple[set[str], set[str]]:
    """The names of tensors that lie in a region, and of the others."""
    tensors = sys.modules["gdrpy.torch"].tensors_of(model)
    inside = {
        name
        for name, one in tensors.items()
        if region.ptr <= one.data_ptr() < region.ptr + region.nbytes
    }
    return inside, tensors.keys() - inside


def own_copy(engines: Any, folder: str) -> Any:
    """What an engine has that loads by itself."""
    config = engines.config_of(folder)
    config.load_config = engines.LoadConfig(load_format="files")
    return engines.state(engines.start(config))


def publish(engines: Any, folder: str, seed: float, hidden: int = 4) -> Any:
    """Have an engine publish a new version of the weights of the region "model"."""
    newer = engines.write_model(Path(folder + str(seed)), seed, hidden)
    config = engines.config_of(newer, {"name": "model", "replace": True}, hidden=hidden)
    return engines.start(config)


def backend_of(config: Any) -> Any:
    """The sleep mode's backend of an engine."""
    factory = sys.modules["vllm.device_allocator.sleep_mode_backend"].SleepModeBackendFactory
    return factory.create_backend(config.model_config)


def names(broker: gdrpy.Broker) -> list[str]:
    """The regions' names, without the stamps of copies."""
    return sorted(re.sub(r"\.host/.*", ".host", str(one.name)) for one in broker.list())
