"""CPU and GPU views of one region of NVIDIA GPU memory.

``alloc`` makes a region whose bytes the GPU sees at ``region.ptr`` and the CPU through
``region.cpu``, ``region.numpy()``, ``region.write()``; ``Region.from_fd`` opens it in another
process; ``open().pin()`` maps memory that somebody else allocated. Importing the package touches no
GPU.
"""

from importlib import metadata

try:
    import gdrpy._core._mapping  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "gdrpy._core._mapping":
        raise
    raise ModuleNotFoundError(
        "gdrpy's C parts are not built: this is its source folder. Run `make build` there and use "
        ".venv/bin/python, or leave the folder to import an installed gdrpy",
        name=error.name,
    ) from None

from gdrpy.errors import (
    BackendUnavailable,
    BrokerUnavailable,
    Closed,
    CudaError,
    DriverError,
    Error,
    Forked,
    Gone,
    InvalidHandle,
    InvalidRequest,
    MissingView,
    NotFound,
    OutOfMemory,
    PermissionDenied,
    ProtocolError,
    QuotaExceeded,
    ReadOnly,
    Revoked,
    Sealed,
    SizeMismatch,
    Timeout,
    UntestedDriver,
)
from gdrpy.gdr import Attributes, Gdr, Pin, PinInfo, Revocation, open
from gdrpy.mapping import Flag, Mapping, MappingType
from gdrpy.region import Region, alloc
from gdrpy.vmm import granularity, rounded_size

__version__ = metadata.version("gdrpy")

__all__ = [
    "Attributes",
    "BackendUnavailable",
    "BrokerUnavailable",
    "Closed",
    "CudaError",
    "DriverError",
    "Error",
    "Flag",
    "Forked",
    "Gdr",
    "Gone",
    "InvalidHandle",
    "InvalidRequest",
    "Mapping",
    "MappingType",
    "MissingView",
    "NotFound",
    "OutOfMemory",
    "PermissionDenied",
    "Pin",
    "PinInfo",
    "ProtocolError",
    "QuotaExceeded",
    "ReadOnly",
    "Region",
    "Revocation",
    "Revoked",
    "Sealed",
    "SizeMismatch",
    "Timeout",
    "UntestedDriver",
    "alloc",
    "granularity",
    "open",
    "rounded_size",
]
