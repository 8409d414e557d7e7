from abc import ABC, abstractmethod
from importlib import import_module
from typing import Any, ClassVar

from vllm.device_allocator import get_mem_allocator_instance


class SleepModeBackend(ABC):
    def __init__(self) -> None:
        self._state = "RUNNING"

    @abstractmethod
    def suspend(self, level: int = 1) -> None: ...

    @abstractmethod
    def resume(self, tags: list[str] | None = None) -> None: ...

    def state(self) -> str:
        return self._state


class CuMemBackend(SleepModeBackend):
    def suspend(self, level: int = 1) -> None:
        self._state = "SUSPENDED"
        get_mem_allocator_instance().sleep(("weights",) if level == 1 else ())

    def discard(self, tags: tuple[str, ...]) -> None:
        """As in releases newer than 0.25.1."""
        get_mem_allocator_instance().discard(tags)

    def resume(self, tags: list[str] | None = None) -> None:
        get_mem_allocator_instance().wake_up(tags)
        self._state = "RUNNING"


class SleepModeBackendFactory:
    _registry: ClassVar[dict[str, tuple[str, str]]] = {}

    @classmethod
    def register_backend(cls, name: str, module_path: str, class_name: str) -> None:
        if name in cls._registry:
            raise ValueError(f"sleep mode backend {name!r} is there already")
        cls._registry[name] = module_path, class_name

    @classmethod
    def create_backend(cls, model_config: Any) -> SleepModeBackend:
        if model_config.sleep_mode_backend not in cls._registry:
            raise ValueError(f"no sleep mode backend {model_config.sleep_mode_backend!r}")
        module, name = cls._registry[model_config.sleep_mode_backend]
        return getattr(import_module(module), name)()


SleepModeBackendFactory.register_backend("cumem", __name__, "CuMemBackend")
