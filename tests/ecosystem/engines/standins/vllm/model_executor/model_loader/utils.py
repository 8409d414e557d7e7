from typing import Any

import torch
from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase


def initialize_model(
    vllm_config: Any, *, prefix: str = "", model_class: Any = None, model_config: Any = None
) -> torch.nn.Module:
    model_class = model_class or (model_config or vllm_config.model_config).model_class
    return model_class(vllm_config=vllm_config, prefix=prefix)


def process_weights_after_loading(
    model: torch.nn.Module, model_config: Any, target_device: torch.device
) -> None:
    for _, layer in model.named_modules():
        method = getattr(layer, "quant_method", None)
        if isinstance(method, QuantizeMethodBase):
            method.process_weights_after_loading(layer)
