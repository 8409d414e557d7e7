"""Fabric handles: 64 bytes that name GPU memory to other nodes of a multi-node NVLink network."""

from __future__ import annotations

import os
from typing import Any

from gdrpy import cuda
from gdrpy._core._mapping import Undo
from gdrpy.errors import BackendUnavailable, CudaError, InvalidHandle
from gdrpy.memory.backends import Status

NBYTES = 64
#: The driver's folder of IMEX channels; a process needs one that it may open.
_CHANNELS = "/dev/nvidia-caps-imex-channels"
_REFUSALS = ("CUDA_ERROR_NOT_PERMITTED", "CUDA_ERROR_NOT_SUPPORTED")


def status(device: int) -> Status:
    """Whether memory of a device can have a fabric handle; if not, why. Allocates nothing."""
    if not cuda.attribute(device, "HANDLE_TYPE_FABRIC_SUPPORTED"):
        return Status(
            False,
            f"GPU {device} reports none (CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED is 0)",
            "take GPUs that NVLink joins across nodes; on one machine share Region.export()",
        )
    if not _has_channel():
        return Status(
            False,
            f"GPU {device} reports them, but this process may not open any IMEX channel",
            f"have root make one that the process may open: nvidia-modprobe -i 0:1 makes "
            f"{_CHANNELS}/channel0; across nodes nvidia-imex must run too",
        )
    if cuda.simulated():
        return Status(True, "simulated: valid on this machine, for processes of the same user")
    return Status(True, f"GPU {device} reports them, and there is an IMEX channel")


def _has_channel() -> bool:
    if cuda.simulated():
        return os.environ.get("GDRPY_SIM_FABRIC") != "no-channel"
    try:
        names = os.listdir(_CHANNELS)
    except OSError:
        return False
    channels = (f"{_CHANNELS}/{name}" for name in names if name.startswith("channel"))
    return any(os.access(channel, os.R_OK | os.W_OK) for channel in channels)


def unavailable(call: str, device: int, error: CudaError) -> BackendUnavailable:
    """The error for a call with a fabric handle that the driver refused."""
    found = status(device)
    return BackendUnavailable(
        f"{call}: fabric handles are not available ({error.name}): {found.reason}: "
        f"{found.remedy or 'check that nvidia-imex runs on every node'}"
    )


def export(handle: Any) -> bytes:
    """The fabric handle of an allocation that was made with one."""
    return bytes(cuda.call("cuMemExportToShareableHandle", handle, _kind(), 0).data)


def import_handle(undo: Undo, call: str, data: bytes, device: int) -> Any:
    """The allocation's handle, released by ``undo``. Raises BackendUnavailable, InvalidHandle."""
    words = cuda.driver().CUmemFabricHandle()
    words.data = data
    try:
        at = int(words.getPtr())
        return cuda.made(undo, "cuMemImportFromShareableHandle", at, _kind(), by="cuMemRelease")
    except CudaError as error:
        if error.name in _REFUSALS or not status(device).usable:
            raise unavailable(call, device, error) from error
        raise InvalidHandle(
            f"{call}: CUDA does not import this handle ({error.name}): pass one that "
            f"Region.export_fabric() gave, while its owner keeps the memory"
        ) from error


def _kind() -> Any:
    return cuda.driver().CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_FABRIC
