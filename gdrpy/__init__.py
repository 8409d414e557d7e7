"""CPU and GPU views of one region of NVIDIA GPU memory.

``alloc`` makes a region whose bytes the GPU sees at ``region.ptr`` and the CPU through
``region.cpu``, ``region.numpy()``, ``region.write()``; ``Region.from_fd`` opens it in another
process; ``pin`` maps memory that another library allocated. Importing the package does not touch
the GPU; each name is imported on first use.
"""

from typing import TYPE_CHECKING

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
    AddressInUse,
    BackendUnavailable,
    BrokerUnavailable,
    Closed,
    CudaError,
    Detached,
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
    StillInUse,
    Timeout,
    TooLarge,
    UntestedDriver,
)

#: The modules of the other names, imported on first use.
_HOMES = {
    "Arena": "gdrpy.arena.arena",
    "Array": "gdrpy.arrays.array",
    "Broker": "gdrpy.broker.client.broker",
    "BrokerRegion": "gdrpy.broker.client.broker",
    "Channel": "gdrpy.channel",
    "Flag": "gdrpy.memory.view",
    "Gdr": "gdrpy.pins",
    "Heap": "gdrpy.arena.heap",
    "Inbox": "gdrpy.channel",
    "Link": "gdrpy.channel",
    "Mapping": "gdrpy.memory.view",
    "Pin": "gdrpy.pins",
    "Region": "gdrpy.region",
    "StepInputs": "gdrpy.channel",
    "alloc": "gdrpy.region",
    "detach_many": "gdrpy.region",
    "connect": "gdrpy.broker.client.broker",
    "from_tensor": "gdrpy.pins",
    "open": "gdrpy.pins",
    "page_locked": "gdrpy.memory.page_locked",
    "pin": "gdrpy.pins",
    "register": "gdrpy.memory.engine",
    "rounded_size": "gdrpy.memory.vmm",
}

#: Public modules, imported on first use.
_MODULES = ("aio", "broker", "channel", "cupy", "pins", "rmm", "safetensors", "torch")

if TYPE_CHECKING:
    from gdrpy import aio as aio
    from gdrpy import broker as broker
    from gdrpy import channel as channel
    from gdrpy import cupy as cupy
    from gdrpy import pins as pins
    from gdrpy import rmm as rmm
    from gdrpy import safetensors as safetensors
    from gdrpy import torch as torch
    from gdrpy.arena.arena import Arena
    from gdrpy.arena.heap import Heap
    from gdrpy.arrays.array import Array
    from gdrpy.broker.client.broker import Broker, BrokerRegion, connect
    from gdrpy.channel import Channel, Inbox, Link, StepInputs
    from gdrpy.memory.engine import register
    from gdrpy.memory.page_locked import page_locked
    from gdrpy.memory.view import Flag, Mapping
    from gdrpy.memory.vmm import rounded_size
    from gdrpy.pins import Gdr, Pin, from_tensor, open, pin
    from gdrpy.region import Region, alloc, detach_many

    __version__: str
else:

    def __getattr__(name: str) -> object:
        if name == "__version__":
            from importlib import metadata

            value = metadata.version(__name__)
        elif name in _HOMES:
            value = getattr(__import__(_HOMES[name], fromlist=(name,)), name)
        elif name in _MODULES:
            value = __import__(f"gdrpy.{name}", fromlist=("",))
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__, *_MODULES, "__version__"})


__all__ = [
    "AddressInUse",
    "Arena",
    "Array",
    "BackendUnavailable",
    "Broker",
    "BrokerRegion",
    "BrokerUnavailable",
    "Channel",
    "Closed",
    "CudaError",
    "Detached",
    "DriverError",
    "Error",
    "Flag",
    "Forked",
    "Gdr",
    "Gone",
    "Heap",
    "Inbox",
    "InvalidHandle",
    "InvalidRequest",
    "Link",
    "Mapping",
    "MissingView",
    "NotFound",
    "OutOfMemory",
    "PermissionDenied",
    "Pin",
    "ProtocolError",
    "QuotaExceeded",
    "ReadOnly",
    "Region",
    "Revoked",
    "Sealed",
    "SizeMismatch",
    "StepInputs",
    "StillInUse",
    "Timeout",
    "TooLarge",
    "UntestedDriver",
    "alloc",
    "connect",
    "detach_many",
    "from_tensor",
    "open",
    "page_locked",
    "pin",
    "register",
    "rounded_size",
]
