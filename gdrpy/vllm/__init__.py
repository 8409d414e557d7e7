"""A plug-in for vLLM: engines share weights in a broker's regions, and sleep in milliseconds.

vLLM calls :func:`register` when it starts, by the entry point ``vllm.general_plugins``.
"""

from vllm.device_allocator.sleep_mode_backend import SleepModeBackendFactory
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.model_loader import register_model_loader

from gdrpy.vllm.loader import Loader, update

__all__ = ["register", "update"]

#: The name of the load format, of the sleep mode's backend, and of the weight transfer engine.
NAME = "gdrpy"


def register() -> None:
    """Make the load format, the sleep mode's backend and the weight transfer engine known."""
    register_model_loader(NAME)(Loader)
    SleepModeBackendFactory.register_backend(NAME, "gdrpy.vllm.sleep", "Backend")
    WeightTransferEngineFactory.register_engine(NAME, "gdrpy.vllm.transfer", "Engine")
