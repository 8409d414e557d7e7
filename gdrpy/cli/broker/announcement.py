"""The announcement of ``gdrpy serve`` when clients can connect."""

from __future__ import annotations

import logging
import os
from typing import Any

from gdrpy import cuda
from gdrpy.broker.protocol import CPU_DEVICE
from gdrpy.broker.server.daemon import Options
from gdrpy.broker.server.memory import host_bytes
from gdrpy.broker.server.metrics import Metrics
from gdrpy.cli.header import gpu_words
from gdrpy.cli.output import Output
from gdrpy.cli.sizes import approximate_size, counted
from gdrpy.errors import Error

log = logging.getLogger(__name__)


def say(output: Output, settings: Options, recovered: int, metrics: Metrics | None) -> None:
    """Announce the broker once CUDA has started: its devices and its limits."""
    try:
        devices = [_device(*one) for one in settings.quotas.devices.items()]
    except Error as error:
        log.warning("no memory can be allocated: %s", error)
        devices = []
    for device in devices:
        output.line(
            f"{device['name']}: regions may take {approximate_size(device['limit'])} of "
            f"{approximate_size(device['memory'])}"
        )
    if settings.quotas.user is not None:
        output.line(f"of that each user {approximate_size(settings.quotas.user)}")
    if recovered:
        output.line(f"took over {counted(recovered, 'region')} of an earlier broker")
    if metrics:
        output.line(f"metrics at http://{metrics.host}:{metrics.port}/metrics")
    output.line(f"serving at {settings.path}")
    output.record(
        {
            "socket": settings.path,
            "pid": os.getpid(),
            "simulated": any(device["simulated"] for device in devices),
            "recovered": recovered,
            "devices": devices,
            "metrics": metrics and metrics.port,
        }
    )


def _device(number: int, limit: int) -> dict[str, Any]:
    """A device of regions, and how many bytes of it they may take. Raises Error."""
    if number == CPU_DEVICE:
        memory, simulated, uuid, gpu = host_bytes(), False, None, None
        name = "host memory"
    else:
        info = cuda.device_info(number)
        memory, simulated, uuid, gpu = info.memory, info.simulated, info.uuid, info.name
        name = f"GPU {number}, {gpu_words(gpu, simulated)}"
    return {
        "device": "cpu" if number == CPU_DEVICE else number,
        "uuid": uuid,
        "gpu": gpu,
        "name": name,
        "simulated": simulated,
        "memory": memory,
        "limit": limit,
    }
