"""Whether the copy engine works here without CUDA."""

from __future__ import annotations

from gdrpy import cuda
from gdrpy._core._mapping import engine_status
from gdrpy.errors import Error
from gdrpy.memory.backends import Status


def status(device: int | None = None) -> Status:
    """Whether the engine of a device, or of the first GPU, copies right; if not, why not.

    Makes the engine, which takes some milliseconds and 1 MiB of GPU memory. Never raises.
    """
    try:
        gpu = None if device is None else _address(cuda.device_info(device).pci)
        return Status(True, engine_status(gpu))
    except Error as error:
        return Status(False, str(error))


def _address(pci: str) -> tuple[int, int, int]:
    """The domain, bus and slot of a PCI address."""
    domain, bus, rest = pci.split(":")
    return int(domain, 16), int(bus, 16), int(rest.partition(".")[0], 16)
