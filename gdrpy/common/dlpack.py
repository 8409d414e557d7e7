"""Memory shared with other array libraries by DLPack.

Memory that they drop last is freed when the GPU has done the work queued by then: see
memory/reclaim.py.
"""

import math
import operator
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from gdrpy._core import _mapping
from gdrpy.common.arguments import as_int
from gdrpy.common.dtypes import DType

#: DLPack's number for a kind of device, and the device's number.
Device = tuple[int, int]

CUDA = 2
#: Host memory. The CPU view of GPU memory counts as host memory, and so does a simulated GPU's
#: memory.
HOST: Device = (1, 0)


class View(NamedTuple):
    """Packed elements at an address of a device; ``owner`` keeps the memory.

    A write to a ``readonly`` view is a segmentation fault, or ends the GPU's context.
    """

    address: int
    device: Device
    shape: tuple[int, ...]
    dtype: DType
    readonly: bool
    owner: object


class Exporter(Protocol):
    """An object that capsules can be made of."""

    def __dlpack_device__(self) -> Device:
        """The device of capsules by default."""

    def _view(self, device: Device) -> View | None:
        """A view from that device, without a copy; None if that device does not see the memory."""

    def _copy(self, device: Device, stream: int | None) -> View:
        """A copy on a device, complete on return. Raises BufferError."""


def export(
    call: str,
    source: Exporter,
    *,
    stream: Any = None,
    max_version: tuple[int, int] | None = None,
    dl_device: Any = None,
    copy: bool | None = None,
) -> object:
    """A capsule as a consumer asks for it: see :meth:`gdrpy.Array.__dlpack__`."""
    native = source.__dlpack_device__()
    device = native if dl_device is None else _as_device(call, dl_device)
    _check_stream(call, stream, CUDA in (native[0], device[0]))
    view = None if copy else source._view(device)
    copied = view is None
    if view is None:
        if copy is False:
            raise BufferError(
                f"{call}: it is not on DLPack device {device}, but on {native}, and copy is False"
            )
        view = source._copy(device, stream)
    versioned = max_version is not None and max_version[0] >= 1
    if view.readonly and not versioned:
        raise BufferError(
            f"{call}: the memory is read-only, which capsules before DLPack 1.0 cannot say: the "
            f"consumer must ask for max_version=(1, 0) or later"
        )
    return _mapping.dlpack(
        view.address,
        *view.device,
        view.shape,
        view.dtype.code,
        8 * view.dtype.nbytes,
        view.readonly,
        view.owner,
        versioned,
        copied,
    )


def host_copy(
    call: str,
    device: Device,
    shape: tuple[int, ...],
    dtype: DType,
    readinto: Callable[[Any], object],
) -> View:
    """New host memory that ``readinto`` fills. Raises BufferError for any other device."""
    import numpy as np

    if device != HOST:
        raise BufferError(
            f"{call}: gdrpy cannot copy to DLPack device {device}: take a capsule without "
            f"dl_device, and copy it by the library that asks"
        )
    data = np.empty(math.prod(shape) * dtype.nbytes, np.uint8)
    readinto(data)
    return View(data.ctypes.data, HOST, shape, dtype, False, data)


def _as_device(call: str, value: Any) -> Device:
    try:
        kind, number = value
        return operator.index(kind), operator.index(number)
    except (TypeError, ValueError):
        raise TypeError(f"{call}: dl_device must be a pair of ints, not {value!r}") from None


def _check_stream(call: str, stream: Any, gpu: bool) -> None:
    """Check a consumer's stream: for a GPU 1 (legacy), 2 (per thread), a handle, or -1 (no wait).

    Some consumers pass a stream for GPU memory even when they ask for host memory.
    """
    if stream is None:
        return
    number = as_int(call, "stream", stream)
    if not gpu or number < -1 or number == 0:
        raise ValueError(
            f"{call}: stream {number} is not valid: it must be None for host memory, and -1 or 1 "
            f"or more for GPU memory"
        )
