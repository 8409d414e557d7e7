from importlib import import_module
from typing import Any, ClassVar

import torch
from vllm.distributed.weight_transfer.base import WeightTransferEngine


class WeightTransferEngineFactory:
    _registry: ClassVar[dict[str, tuple[str, str]]] = {}

    @classmethod
    def register_engine(
        cls, name: str, module_path_or_cls: str, class_name: str | None = None
    ) -> None:
        if name in cls._registry:
            raise ValueError(f"weight transfer engine {name!r} is there already")
        if class_name is None:
            raise ValueError("class_name is required")  # the genuine one takes a class too
        cls._registry[name] = module_path_or_cls, class_name

    @classmethod
    def create_engine(
        cls, config: Any, vllm_config: Any, device: torch.device, model: torch.nn.Module
    ) -> WeightTransferEngine[Any, Any]:
        if config.backend not in cls._registry:
            raise ValueError(f"no weight transfer backend {config.backend!r}")
        module, name = cls._registry[config.backend]
        return getattr(import_module(module), name)(config, vllm_config, device, model)
