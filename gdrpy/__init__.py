"""CPU and GPU views of one region of NVIDIA GPU memory.

``alloc`` makes a region whose bytes the GPU sees at ``region.ptr`` and the CPU through
``region.cpu``, ``region.numpy()``, ``region.write()``; ``Region.from_fd`` opens it in another
process; ``open().pin()`` maps memory that somebody else allocated. Importing the package touches no
GPU, and what it offers is imported when it is first used.
"""

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

#: Where the rest is: imported when it is first asked for.
_HOMES = {
    "Arena": "gdrpy.arena",
    "Array": "gdrpy.array",
    "Attributes": "gdrpy.gdr",
    "Broker": "gdrpy.broker.client.broker",
    "BrokerRegion": "gdrpy.broker.client.region",
    "Channel": "gdrpy.channel",
    "ChannelReader": "gdrpy.channel",
    "Event": "gdrpy.broker.messages",
    "Flag": "gdrpy.mapping",
    "Gdr": "gdrpy.gdr",
    "MappedTensor": "gdrpy.mappedtensor",
    "Mapping": "gdrpy.mapping",
    "MappingType": "gdrpy.mappingtype",
    "Pin": "gdrpy.gdr",
    "PinInfo": "gdrpy.gdr",
    "Region": "gdrpy.region",
    "RegionInfo": "gdrpy.broker.messages",
    "Revocation": "gdrpy.gdr",
    "Watch": "gdrpy.broker.client.watch",
    "alloc": "gdrpy.region",
    "connect": "gdrpy.broker.client.broker",
    "from_tensor": "gdrpy.mappedtensor",
    "granularity": "gdrpy.vmm",
    "include_dir": "gdrpy.channel",
    "open": "gdrpy.gdr",
    "pinned": "gdrpy.pinnedmemory",
    "rounded_size": "gdrpy.vmm",
}

#: Modules that users name: imported when they are first asked for.
_MODULES = ("aio", "broker", "cupy", "rmm", "safetensors", "torch")

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gdrpy import aio as aio
    from gdrpy import broker as broker
    from gdrpy import cupy as cupy
    from gdrpy import rmm as rmm
    from gdrpy import safetensors as safetensors
    from gdrpy import torch as torch
    from gdrpy.arena import Arena
    from gdrpy.array import Array
    from gdrpy.broker.client.broker import Broker, connect
    from gdrpy.broker.client.region import BrokerRegion
    from gdrpy.broker.client.watch import Watch
    from gdrpy.broker.messages import Event, RegionInfo
    from gdrpy.channel import Channel, ChannelReader, include_dir
    from gdrpy.gdr import Attributes, Gdr, Pin, PinInfo, Revocation, open
    from gdrpy.mappedtensor import MappedTensor, from_tensor
    from gdrpy.mapping import Flag, Mapping
    from gdrpy.mappingtype import MappingType
    from gdrpy.pinnedmemory import pinned
    from gdrpy.region import Region, alloc
    from gdrpy.vmm import granularity, rounded_size

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
    "Arena",
    "Array",
    "Attributes",
    "BackendUnavailable",
    "Broker",
    "BrokerRegion",
    "BrokerUnavailable",
    "Channel",
    "ChannelReader",
    "Closed",
    "CudaError",
    "DriverError",
    "Error",
    "Event",
    "Flag",
    "Forked",
    "Gdr",
    "Gone",
    "InvalidHandle",
    "InvalidRequest",
    "MappedTensor",
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
    "RegionInfo",
    "Revocation",
    "Revoked",
    "Sealed",
    "SizeMismatch",
    "Timeout",
    "UntestedDriver",
    "Watch",
    "alloc",
    "connect",
    "from_tensor",
    "granularity",
    "include_dir",
    "open",
    "pinned",
    "rounded_size",
]
