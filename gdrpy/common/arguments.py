"""Checks of callers' arguments, made before a call has any effect."""

from __future__ import annotations

import os
import re
import sys
from operator import index
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def as_int(call: str, name: str, value: Any) -> int:
    """An int, from an int or an object with ``__index__`` (numpy's integers). Raises TypeError."""
    if not isinstance(value, bool):
        try:
            return index(value)
        except TypeError:
            pass
    raise TypeError(f"{call}: {name} must be an int, not {value!r}")


def as_path(call: str, name: str, value: Any) -> str:
    """A path as a str. Raises TypeError."""
    try:
        return os.fsdecode(value)
    except TypeError:
        raise TypeError(f"{call}: {name} must be a path, not {value!r}") from None


def is_of(value: object, module: str, name: str) -> bool:
    """Whether it is an instance of a module's class. Does not import the module."""
    kind = getattr(sys.modules.get(module), name, None)
    return kind is not None and isinstance(value, kind)


def as_device(call: str, device: Any, *, or_cpu: bool = False) -> int | str:
    """A GPU's name, checked: its ordinal, its UUID, its PCI address as pci_name() writes it, or
    torch's "cuda" or "cuda:1", also for a torch.device.

    With ``or_cpu`` also "cpu". Raises TypeError, ValueError.
    """
    asked = device
    if is_of(device, "torch", "device"):
        device = str(device)
    if isinstance(device, str):
        hexadecimal = device.lower()
        if or_cpu and hexadecimal in ("cpu", "cpu:0"):
            return "cpu"
        if re.fullmatch("cuda(:[0-9]{1,9})?", hexadecimal):
            return hexadecimal
        if re.fullmatch("gpu-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", hexadecimal):
            return "GPU-" + hexadecimal[4:]
        address = re.fullmatch(
            r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([01][0-9a-f])(?:\.0)?", hexadecimal
        )
        if address is not None:
            return pci_name(*(int(number or "0", 16) for number in address.groups()))
    elif not isinstance(device, bool):
        try:
            return index(device)
        except TypeError:
            pass
    link, last = (",", " or 'cpu'") if or_cpu else (" or", "")
    names = (
        f"a CUDA ordinal, a GPU's UUID ('GPU-...' as nvidia-smi -L lists it), its PCI address "
        f"('0000:3b:00.0'){link} torch's name ('cuda:0'){last}"
    )
    kind = ValueError if isinstance(device, str) else TypeError
    raise kind(f"{call}: device must be {names}, not {asked!r}")


def pci_name(domain: int, bus: int, slot: int) -> str:
    """A PCI address as the kernel writes it."""
    return f"{domain:04x}:{bus:02x}:{slot:02x}.0"


def as_size(call: str, value: Any) -> int:
    """A number of bytes to allocate or show. Raises TypeError, ValueError."""
    nbytes = as_int(call, "nbytes", value)
    if not 0 < nbytes < 1 << 62:
        raise ValueError(f"{call}: nbytes must be 1 or more (and under 2**62), not {nbytes}")
    return nbytes


def as_range(call: str, offset: Any, nbytes: Any, room: int) -> tuple[int, int]:
    """Offset and size of a range inside ``room`` bytes; size None is all from the offset on.

    Raises TypeError, ValueError.
    """
    start = as_int(call, "offset", offset)
    if not 0 <= start <= room:
        raise ValueError(f"{call}: offset {start} lies outside the {room} bytes there are")
    if nbytes is None:
        return start, room - start
    size = as_int(call, "nbytes", nbytes)
    if size < 0:
        raise ValueError(f"{call}: nbytes must be 0 or more, not {size}")
    if size > room - start:
        raise ValueError(
            f"{call}: offset {start} + {size} bytes lies outside the {room} bytes there are"
        )
    return start, size


def as_offsets(call: str, offsets: Any) -> NDArray[np.int64]:
    """Offsets in bytes, in one dimension, contiguous and aligned. Raises TypeError, ValueError."""
    import numpy as np

    array = np.asarray(offsets)
    if array.ndim != 1:
        raise ValueError(f"{call}: offsets must have one dimension, and have {array.ndim}")
    if array.size and array.dtype.kind not in "iu":
        raise TypeError(f"{call}: offsets must be integers, not {array.dtype}")
    if array.dtype == np.uint64:
        (large,) = np.nonzero(array > np.uint64(np.iinfo(np.int64).max))
        if large.size:
            raise ValueError(f"{call}: offsets[{large[0]}] {array[large[0]]} does not fit 63 bits")
    return np.require(array, np.int64, ["C", "A"])
