from collections.abc import Callable
from typing import Any

from vllm.model_executor.model_loader.base_loader import BaseModelLoader

_LOADERS: dict[str, type[BaseModelLoader]] = {}


def register_model_loader(load_format: str) -> Callable[[Any], Any]:
    def registered(loader: Any) -> Any:
        if not issubclass(loader, BaseModelLoader):
            raise ValueError(f"{loader} is no BaseModelLoader")
        _LOADERS[load_format] = loader
        return loader

    return registered


def get_model_loader(load_config: Any) -> BaseModelLoader:
    if load_config.load_format not in _LOADERS:
        raise ValueError(f"no load format {load_config.load_format!r}")
    return _LOADERS[load_config.load_format](load_config)
