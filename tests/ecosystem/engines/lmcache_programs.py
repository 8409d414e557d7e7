"""What the tests of LMCache run: functions of an engine's worker, or of LMCache's server.

LMCache and its wrapper are genuine. It makes the server's tensors with cupy, for which there is a
stand-in here, on the memory of the simulated GPU that LMCache has mapped by CUDA's driver.
"""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from vllm_plugin import STANDINS

import gdrpy
from gdrpy import cuda
from support import gpu_mappings, open_descriptors

lmcache: Any = None
ipc: Any = None
base: Any = None
broker: Any = None
kept: list[Any] = []
tensors: list[torch.Tensor] = []


class _Memory:
    """cupy's UnownedMemory and MemoryPointer in one."""

    def __init__(self, where: Any, nbytes: int, owner: Any = None) -> None:
        self.start = getattr(where, "start", where) + (nbytes if owner is None else 0)


def _array(nbytes: int, dtype: Any, memptr: _Memory) -> Any:
    return np.frombuffer((ctypes.c_uint8 * nbytes).from_address(memptr.start), dtype)


def start(folder: str) -> None:
    """Import LMCache from a folder, and install gdrpy's part."""
    global lmcache, ipc, base
    sys.path.insert(0, folder)
    sys.modules["cupy"] = SimpleNamespace(  # type: ignore[assignment]
        uint8=np.uint8,
        ndarray=_array,
        cuda=SimpleNamespace(Device=nullcontext, UnownedMemory=_Memory, MemoryPointer=_Memory),
    )
    torch.cuda.device = nullcontext  # type: ignore[assignment, misc]
    cuda.driver()
    from lmcache.v1.platform import ipc_policy
    from lmcache.v1.platform.base import ipc_wrapper as base
    from lmcache.v1.platform.devices.cuda import ipc_wrapper as ipc

    import gdrpy.lmcache

    lmcache = gdrpy.lmcache
    lmcache.install()
    lmcache.install()
    ipc_policy.set_use_vmm_api(True)
    uuid = cuda.uuid(0).removeprefix("GPU-")
    base.DeviceIPCWrapper._discovered_device_mapping[uuid] = 0


def reset() -> None:
    """Close all that is kept, and install gdrpy's part again."""
    tensors.clear()
    for one in reversed(kept):
        one.close()
    kept.clear()
    lmcache.install()


def share(readonly: bool = False) -> list[bytes]:
    """Wrap two layers of a KV cache in a region, the second permuted, as vLLM registers them."""
    from lmcache.v1.platform.devices.cuda import CudaDeviceSpec

    global broker
    broker = broker or gdrpy.connect()
    region = broker.allocate("kv", 8 << 20)
    kept.append(region)
    if readonly:
        region = broker.get("kv", readonly=True)
        kept.append(region)
    first = torch.from_dlpack(region.array((2, 3, 4), "bfloat16"))
    second = torch.from_dlpack(region.array((4, 2, 3), "float32", 4096)).permute(1, 2, 0)
    if not readonly:
        first.copy_(torch.arange(24).reshape(2, 3, 4))
        second.copy_(torch.arange(24).reshape(2, 3, 4))
    tensors[:] = [first, second]
    return [wire(CudaDeviceSpec().ipc_wrapper_cls.wrap(one)) for one in tensors]


def share_cache() -> list[bytes]:
    """Wrap a layer of the KV cache that gdrpy's plug-in for vLLM makes."""
    sys.path.insert(0, str(STANDINS))
    from lmcache.v1.platform.devices.cuda import CudaDeviceSpec

    from gdrpy.vllm.kv_cache import Cache

    cache = Cache(gdrpy.connect(), "cache", 8 << 20, 0)
    kept.append(cache)
    layer = torch.from_dlpack(cache.region.array((2, 3, 4), "bfloat16", 4096))
    layer.copy_(torch.arange(24).reshape(2, 3, 4))
    tensors[:] = [layer]
    return [wire(CudaDeviceSpec().ipc_wrapper_cls.wrap(layer))]


def wire(wrapper: Any) -> bytes:
    """The bytes that travel."""
    packed: bytes = base.DeviceIPCWrapper.Serialize(wrapper)
    return packed


def open_all(wires: list[bytes]) -> list[Any]:
    """The elements of tensors by their wires; they are kept."""
    wrappers = [base.DeviceIPCWrapper.Deserialize(one) for one in wires]
    kept.extend(wrappers)
    tensors.extend(wrapper.to_tensor() for wrapper in wrappers)
    return read()


def read() -> list[Any]:
    """The elements of the tensors that are kept."""
    return [one.tolist() for one in tensors]


def fill(number: float) -> None:
    """Write to all tensors."""
    for one in tensors:
        one.fill_(number)


def mapped() -> list[int]:
    """How often each mapping of LMCache's is used."""
    return [one.refcount for one in ipc._MAPPED_VMM_ALLOCATIONS.values()]


def close_one() -> list[int]:
    """Drop the last tensor and close its wrapper; the mappings after that."""
    tensors.pop()
    kept.pop().close()
    return mapped()


def held() -> tuple[int, int]:
    """This process's descriptors, and its mappings of GPU memory."""
    return len(open_descriptors()), gpu_mappings()


def uninstall() -> None:
    """Take gdrpy's resolver away."""
    ipc.set_vmm_fd_resolver(None)


def resolve(export_id: bytes) -> None:
    """Resolve an id."""
    os.close(lmcache.resolve(export_id))


def wrap_gaps() -> None:
    """Wrap a tensor with gaps between the first dimension's elements."""
    lmcache.wrap(tensors[0][:, :2])


def wrap_other() -> str:
    """What comes of memory that is not of a region, which LMCache cannot wrap without a GPU."""
    before = lmcache._wrap_other
    lmcache._wrap_other = lambda tensor: f"wrapped by LMCache: {tuple(tensor.shape)}"
    try:
        return str(lmcache.wrap(torch.zeros(3)))
    finally:
        lmcache._wrap_other = before


def pid() -> int:
    """This process's."""
    return os.getpid()
