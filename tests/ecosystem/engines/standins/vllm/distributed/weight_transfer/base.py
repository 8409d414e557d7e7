from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import torch

I = TypeVar("I")  # noqa: E741
U = TypeVar("U")


class WeightTransferInitInfo(ABC):  # noqa: B024
    pass


class WeightTransferUpdateInfo(ABC):  # noqa: B024
    pass


class WeightTransferEngine(ABC, Generic[I, U]):
    init_info_cls: type[I]
    update_info_cls: type[U]

    def __init__(
        self, config: Any, vllm_config: Any, device: torch.device, model: torch.nn.Module
    ) -> None:
        self.config, self.vllm_config, self.device, self.model = config, vllm_config, device, model
        self.parallel_config = vllm_config.parallel_config
        self.model_config = vllm_config.model_config

    def update_weights(self, update_info: dict[str, Any]) -> None:
        try:
            info = self.update_info_cls(**update_info)
        except TypeError as error:
            raise ValueError(f"update_info: {error}") from error
        self.receive_weights(info)
        torch.accelerator.synchronize()

    @abstractmethod
    def init_transfer_engine(self, init_info: I) -> None: ...

    @abstractmethod
    def start_weight_update(self) -> None: ...

    @abstractmethod
    def finish_weight_update(self) -> None: ...

    @abstractmethod
    def receive_weights(self, update_info: U) -> None: ...

    @abstractmethod
    def shutdown(self) -> None: ...

    @staticmethod
    @abstractmethod
    def trainer_send_weights(iterator: Iterator[Any], trainer_args: Any) -> None: ...
