"""Memory shown to other array libraries by DLPack.

What they drop last is given back when the GPU has done what was queued by then: see
memory/reclaim.py.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from gdrpy._core import _mapping
from gdrpy.common.arguments import as_int
from gdrpy.common.dtypes import DType

#: A kind of devices by DLPack's number, and which of them.
Device = tuple[int, int]

CUDA = 2
#: The host's memory. The CPU view of GPU memory counts as that, and so does all that a simulated
#: GPU has.
HOST: Device = (1, 0)


class View(NamedTuple):
    """Packed elements at an address of a device; ``owner`` keeps the memory.

    Writing what is ``readonly`` is a segmentation fault, or ends the GPU's context.
    """

    address: int
    device: Device
    shape: tuple[int, ...]
    dtype: DType
    readonly: bool
    owner: object


class Exporter(Protocol):
    """What a capsule can be made of."""

    def __dlpack_device__(self) -> Device:
        """Where it lies, if nobody wishes otherwise."""

    def _view(self, device: Device) -> View | None:
        """It as that device sees it, without a copy; None if that device does not."""

    def _copy(self, device: Device, stream: int | None) -> View:
        """A copy on a device, made by the time that it returns. Raises BufferError."""


def export(
    call: str,
    source: Exporter,
    *,
    stream: Any = None,
    max_version: tuple[int, int] | None = None,
    dl_device: Any = None,
    copy: bool | None = None,
) -> object:
    """The capsule that a consumer wishes for: see :meth:`gdrpy.Array.__dlpack__`."""
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
            f"{call}: the memory is read-only, which the consumer cannot be told: it must ask for "
            f"max_version=(1, 0) or later"
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
    """New host memory that ``readinto`` has filled. Raises BufferError for any other device."""
    import numpy as np

    if device != HOST:
        raise BufferError(
            f"{call}: gdrpy cannot copy it to DLPack device {device}: take it where it is, and "
            f"copy it by the library that asks"
        )
    data = np.empty(math.prod(shape) * dtype.nbytes, np.uint8)
    readinto(data)
    return View(data.ctypes.data, HOST, shape, dtype, False, data)


def _as_device(call: str, value: Any) -> Device:
    try:
        kind, number = value
        return operator.index(kind), operator.index(number)
    except (TypeError, ValueError):
        raise TypeError(f"{call}: dl_device must be a pair of ints, and is {value!r}") from None


def _check_stream(call: str, stream: Any, gpu: bool) -> None:
    """A consumer's stream: of a GPU 1 (legacy), 2 (per thread), a handle, or -1 (do not wait).

    Some consumers name one for memory that a GPU has, also when they wish for host memory.
    """
    if stream is None:
        return
    number = as_int(call, "stream", stream)
    if not gpu or number < -1 or number == 0:
        raise ValueError(
            f"{call}: stream {number} is none: it must be None for host memory, and -1 or 1 or "
            f"more for a GPU's"
        )
