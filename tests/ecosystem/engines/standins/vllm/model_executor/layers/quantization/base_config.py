from abc import ABC, abstractmethod
from typing import Any

import torch


class QuantizeMethodBase(ABC):
    @abstractmethod
    def create_weights(
        self, layer: torch.nn.Module, *weight_args: Any, **extra_weight_attrs: Any
    ) -> None: ...

    @abstractmethod
    def apply(self, layer: torch.nn.Module, *args: Any, **kwargs: Any) -> torch.Tensor: ...

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:  # noqa: B027
        ...
