"""LMCache's server opens an engine's KV cache through the broker, instead of by CUDA IPC.

LMCache shares memory of CUDA's VMM interface by file descriptors, which it leaves to others to
deliver: to the function that ``set_vmm_fd_resolver`` takes.
"""

from __future__ import annotations

from typing import Any

import torch

try:
    from lmcache.v1.gpu_connector.kv_format.contiguity import attempt_permute_to_contiguous_view
    from lmcache.v1.platform.base.ipc_wire import TensorMetadata, VmmCudaIPCData
    from lmcache.v1.platform.devices.cuda.ipc_wrapper import (
        VmmCudaIPCWrapper,
        set_vmm_fd_resolver,
    )
except ImportError as error:
    raise ImportError(
        f"gdrpy.lmcache needs LMCache 0.5.6 or newer, and lacks something of it: {error}"
    ) from error

from gdrpy import cuda
from gdrpy.broker.client.broker import shared_broker
from gdrpy.broker.client.views import lease_at
from gdrpy.broker.place import connect_path
from gdrpy.errors import Gone, ReadOnly
from gdrpy.torch.views import extent

__all__ = ["install", "resolve", "wrap"]

#: Bytes of an export id that name the broker's life; the others are the region's number.
_LIFE_BYTES = 8
#: How LMCache wraps tensors of other memory.
_wrap_other = VmmCudaIPCWrapper.wrap


def install() -> None:
    """Use :func:`wrap` and :func:`resolve` in this process, for LMCache's ``use_vmm_api``.

    Call it in the engine's workers before they register the KV cache, and in LMCache's server.
    Calling it again does nothing.
    """
    VmmCudaIPCWrapper.wrap = staticmethod(wrap)
    set_vmm_fd_resolver(resolve)


def wrap(tensor: torch.Tensor) -> Any:
    """LMCache's VmmCudaIPCWrapper of a tensor, whose export id names a region of the broker.

    All tensors of one region have the same id, so that LMCache maps it once. The wrapper holds no
    descriptor. Tensors of other memory are wrapped as LMCache does.

    Raises ValueError if the tensor has gaps, ReadOnly if its region may not be written.
    """
    view = attempt_permute_to_contiguous_view(tensor)
    start, end = extent(view)
    found = lease_at(view.data_ptr(), end - start)
    if found is None or found.memory.ptr is None:
        return _wrap_other(tensor)
    if not view.is_contiguous():
        raise ValueError(
            f"wrap: a tensor of shape {tuple(view.shape)} and strides {view.stride()} has gaps, "
            f"which LMCache cannot share: share the whole cache"
        )
    if not found.lease.writable:
        raise ReadOnly("wrap: LMCache writes to the KV cache, and its region is read-only here")
    device = found.memory.home
    assert device is not None
    return VmmCudaIPCWrapper.from_wire(
        VmmCudaIPCData(
            version=1,
            metadata=TensorMetadata(
                dtype=str(view.dtype).removeprefix("torch."),
                shape=tuple(view.shape),
                stride=view.stride(),
                storage_offset=0,
                device_uuid=cuda.uuid(device).removeprefix("GPU-"),
            ),
            export_id=_prefix(found.lease.life) + found.lease.region.to_bytes(16 - _LIFE_BYTES),
            kind="posix_fd",
            fabric_blob=None,
            alloc_size=found.memory.size,
            alloc_offset=found.offset,
            nbytes=view.nbytes,
        )
    )


def resolve(export_id: bytes) -> int:
    """A new descriptor of the region that an export id of :func:`wrap` names.

    LMCache closes it. The region is opened by this process's rights. It holds no lease then: the
    memory stays until LMCache has closed it, uncounted by the broker.

    Raises Gone if the region no longer exists, or is not the broker's, and as ``Broker.get``.
    """
    broker = shared_broker(connect_path())
    region = int.from_bytes(export_id[_LIFE_BYTES:])
    if export_id[:_LIFE_BYTES] != _prefix(broker.life):
        raise Gone(
            f"resolve: export id {export_id.hex()} names no region of the broker at "
            f"{connect_path()}: call gdrpy.lmcache.install() in the engine's workers, keep the KV "
            f"cache in a region, and use the same broker"
        )
    with broker._attach(broker.life, region, gpu=False, cpu=False, readonly=False) as opened:
        return opened.export()


def _prefix(life: str) -> bytes:
    return bytes.fromhex(life)[:_LIFE_BYTES]
