"""A plug-in for vLLM: engines share weights in a broker's regions, and sleep in milliseconds.

vLLM calls :func:`register` when it starts, by the entry point ``vllm.general_plugins``.
"""

import os

from gdrpy.common.extras import brought_by

with brought_by("gdrpy[vllm]"):
    import vllm

try:
    from vllm.device_allocator.sleep_mode_backend import SleepModeBackendFactory
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
    from vllm.model_executor.model_loader import register_model_loader

    from gdrpy.vllm import inputs
    from gdrpy.vllm.loader import Loader, update
except ImportError as error:
    raise ImportError(
        f"gdrpy's plug-in for vLLM needs 0.25 or newer, and this is {vllm.__version__}, which "
        f"lacks something that it builds on: {error}"
    ) from error

__all__ = ["WorkerExtension", "register"]

#: The name of the load format, of the sleep mode's backend, and of the weight transfer engine.
NAME = "gdrpy"


class WorkerExtension:
    """For vLLM's ``worker_extension_cls``: calls by ``llm.collective_rpc``."""

    def update_shared_weights(self) -> int:
        """Take the newest versions of this worker's shared weights, between two requests.

        Returns how many were newer. The weights keep their addresses, so that captured graphs stay
        valid. The worker keeps its versions if it raises, and while it sleeps.

        Raises SizeMismatch if a newer version has another layout, InvalidRequest if it is not
        sealed, and as ``BrokerRegion.attach``.
        """
        return update()


def register() -> None:
    """Make the load format, the sleep mode's backend and the weight transfer engine known.

    ``GDRPY_STORE_INPUTS=1`` also has the CPU store the inputs of steps.
    """
    register_model_loader(NAME)(Loader)
    SleepModeBackendFactory.register_backend(NAME, "gdrpy.vllm.sleep", "Backend")
    WeightTransferEngineFactory.register_engine(NAME, "gdrpy.vllm.transfer", "Engine")
    if os.environ.get("GDRPY_STORE_INPUTS") == "1":
        inputs.install()
