from abc import ABC, abstractmethod
from typing import Any

import torch
from vllm.model_executor.model_loader.utils import initialize_model, process_weights_after_loading
from vllm.utils.torch_utils import set_default_torch_dtype


class BaseModelLoader(ABC):
    def __init__(self, load_config: Any) -> None:
        self.load_config = load_config

    @abstractmethod
    def download_model(self, model_config: Any) -> None: ...

    @abstractmethod
    def load_weights(self, model: torch.nn.Module, model_config: Any) -> None: ...

    def load_model(self, vllm_config: Any, model_config: Any, prefix: str = "") -> torch.nn.Module:
        named = vllm_config.load_config.device
        device = torch.device(vllm_config.device_config.device if named is None else named)
        with set_default_torch_dtype(model_config.dtype), device:
            model = initialize_model(vllm_config, prefix=prefix, model_config=model_config)
            self.load_weights(model, model_config)
            process_weights_after_loading(model, model_config, device)
        return model.eval()
