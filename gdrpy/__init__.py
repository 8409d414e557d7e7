"""CPU and GPU views of one region of NVIDIA GPU memory.

``alloc`` makes a region whose bytes the GPU sees at ``region.ptr`` and the CPU through
``region.cpu``, ``region.numpy()``, ``region.write()``; ``Region.from_fd`` opens it in another
process; ``open().pin()`` maps memory that somebody else allocated. Importing the package touches no
GPU.
"""

from gdrpy.errors import (
    BackendUnavailable,
    Closed,
    CudaError,
    DriverError,
    Error,
    Forked,
    InvalidHandle,
    MissingView,
    NotFound,
    OutOfMemory,
    PermissionDenied,
    ReadOnly,
    SizeMismatch,
    Timeout,
    UntestedDriver,
)
from gdrpy.gdr import Attributes, Gdr, Pin, PinInfo, open
from gdrpy.mapping import Flag, Mapping, MappingType
from gdrpy.region import Region, alloc
from gdrpy.vmm import granularity, rounded_size

__all__ = [
    "Attributes",
    "BackendUnavailable",
    "Closed",
    "CudaError",
    "DriverError",
    "Error",
    "Flag",
    "Forked",
    "Gdr",
    "InvalidHandle",
    "Mapping",
    "MappingType",
    "MissingView",
    "NotFound",
    "OutOfMemory",
    "PermissionDenied",
    "Pin",
    "PinInfo",
    "ReadOnly",
    "Region",
    "SizeMismatch",
    "Timeout",
    "UntestedDriver",
    "alloc",
    "granularity",
    "open",
    "rounded_size",
]
