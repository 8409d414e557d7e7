"""Captures of streams into CUDA graphs, which a question about a whole context invalidates.

CUDA tells only of one stream whether it is captured.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any
from weakref import ref

from gdrpy import cuda
from gdrpy.errors import CudaError

#: CU_STREAM_LEGACY, which tells of the captures of all blocking streams of its context.
_LEGACY = 1

#: Streams that were captured when they were last asked, by device and handle: what returns the
#: object that keeps each, None once it is gone. To keep the object here would keep a capture that
#: is given up from ending.
_captured: dict[tuple[int, int], Callable[[], object]] = {}


def under_way(device: int) -> bool:
    """Whether a capture is seen that a question about a device's primary context would invalidate.

    The context is current. It sees captures of this thread's current streams of torch and CuPy, of
    blocking streams in any thread, and of streams that it has seen captured before.
    """
    for key, keeper in list(_captured.items()):
        if key[0] != device:
            continue
        stream = keeper()  # so that no other thread destroys it until CUDA was asked
        if stream is not None and is_captured(key[1]):
            return True
        _captured.pop(key, None)
    for handle, found in _current(device):
        if is_captured(handle):
            if found is not None:
                _captured[device, handle] = found
            return True
    return is_captured(_LEGACY)


def is_captured(handle: Any) -> bool:
    """Whether a stream is captured, or the legacy one waits for one that is.

    ``handle`` is an integer or a CUstream. A context is current.
    """
    try:
        return bool(int(cuda.call("cuStreamIsCapturing", handle)))
    except CudaError as error:
        return error.name == "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT"


def _current(device: int) -> Iterator[tuple[int, Callable[[], object] | None]]:
    """The handles of this thread's current streams, each with what returns the object that keeps
    it, or None.

    The modules may be half imported, or have no driver.
    """
    torch, cupy = sys.modules.get("torch.cuda"), sys.modules.get("cupy.cuda")
    with suppress(AttributeError, RuntimeError):
        if torch is not None and torch.is_initialized():
            stream = torch.current_stream(device)
            # torch never destroys its streams; those of others have their handle as their number.
            owned = stream.stream_id != stream.cuda_stream
            yield stream.cuda_stream, _lasting if owned else None
    with suppress(AttributeError, RuntimeError):
        if cupy is not None:
            stream = cupy.get_current_stream()
            yield stream.ptr, ref(stream) if isinstance(stream, cupy.Stream) else None


def _lasting() -> bool:
    """What keeps torch's streams, which are never destroyed."""
    return True
