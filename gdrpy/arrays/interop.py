"""Other libraries' arrays: their addresses, and the objects that keep their memory."""

import math
import operator
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from gdrpy import cuda, sim
from gdrpy._core._mapping import take_dlpack
from gdrpy.common.arguments import is_of
from gdrpy.common.dtypes import DType, as_typestr, of_dlpack
from gdrpy.errors import CudaError, Forked

#: DLPack's device types: host memory, a CUDA device's, page-locked host memory, managed memory.
_CPU, _CUDA, _CUDA_HOST, _CUDA_MANAGED = 1, 2, 3, 13
_VERSION = (1, 1)


class DeviceArray(NamedTuple):
    """An array in GPU memory, kept by ``owner``; the work queued on it is done.

    ``strides`` are in bytes, None if the elements are packed in C order. ``device`` is the CUDA
    ordinal. ``readonly`` is set by the array's library, whether or not the GPU enforces it.
    """

    address: int
    device: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    dtype: DType
    readonly: bool
    owner: object

    @property
    def nbytes(self) -> int:
        """The size of the elements in bytes."""
        return math.prod(self.shape) * self.dtype.nbytes


def device_array(call: str, obj: Any) -> DeviceArray | None:
    """The GPU array behind an object of any library; None for host arrays and other objects.

    It is found by ``__dlpack__``, else by ``__cuda_array_interface__``. The call waits for the work
    that the library has queued on the array, but not for unrelated GPU work.

    An array of a host library that lies in the simulated GPU's memory is a GPU array.

    Raises TypeError for other devices and for unknown element types, and the errors of the object's
    library.
    """
    found = None
    # Numpy arrays are host memory, and some have no capsules.
    if hasattr(obj, "__dlpack__") and not is_of(obj, "numpy", "ndarray"):
        found = _by_dlpack(call, obj)
        # jax's arrays never change, but its capsules do not say so.
        if found is not None and is_of(obj, "jax", "Array"):
            found = found._replace(readonly=True)
    if found is None and hasattr(obj, "__cuda_array_interface__"):
        found = _by_interface(call, obj.__cuda_array_interface__, obj)
    return found


def packed_array(call: str, obj: Any) -> DeviceArray | None:
    """Like :func:`device_array`; raises ValueError for elements that are not packed in C order."""
    found = device_array(call, obj)
    if found is not None and found.strides is not None:
        raise ValueError(
            f"{call}: the CUDA array is not contiguous (shape {found.shape}, strides "
            f"{found.strides} bytes): make a contiguous copy first"
        )
    return found


def host_array(call: str, obj: Any) -> DeviceArray | None:
    """The host array behind an object with ``__dlpack__``; None for any other object.

    Its ``device`` means nothing. Raises TypeError for unknown element types.
    """
    if not hasattr(obj, "__dlpack__") or int(obj.__dlpack_device__()[0]) not in (_CPU, _CUDA_HOST):
        return None
    return _consume(call, _capsule(call, obj))


def _by_dlpack(call: str, obj: Any) -> DeviceArray | None:
    if is_of(obj, "torch", "Tensor") and obj.is_meta:
        raise ValueError(f"{call}: the tensor has no memory (device meta): pass one that has")
    kind, device = obj.__dlpack_device__()
    kind, device = int(kind), int(device)
    if kind == _CUDA_HOST or (kind == _CPU and not sim.loaded()):
        return None
    if kind == _CPU:
        found = _consume(call, _capsule(call, obj))
        where = _simulated_device(found)
        return None if where is None else found._replace(device=where)
    if kind not in (_CUDA, _CUDA_MANAGED):
        raise TypeError(
            f"{call}: the {type(obj).__name__} lies on DLPack device {(kind, device)}; pass "
            f"memory of a CUDA device (2)"
        )
    with _waited_for(device) as stream:
        return _consume(call, _capsule(call, obj, stream=stream))._replace(device=device)


def _capsule(call: str, obj: Any, **wishes: Any) -> object:
    """An object's capsule, of DLPack 1, which can say that it is read-only, if possible."""
    if is_of(obj, "torch", "Tensor"):
        if str(obj.layout) != "torch.strided":
            raise BufferError(
                f"{call}: the tensor's elements are not all in its memory ({obj.layout}): pass "
                f"tensor.to_dense()"
            )
        if obj.requires_grad:
            raise BufferError(f"{call}: the tensor requires a gradient: pass tensor.detach()")
        if obj.is_neg():
            raise BufferError(
                f"{call}: the tensor is a negated view of its memory, which DLPack cannot express: "
                f"pass tensor.resolve_neg()"
            )
    try:
        return obj.__dlpack__(max_version=_VERSION, **wishes)
    except TypeError:  # a library from before DLPack 1.0
        return obj.__dlpack__(**wishes)


def _consume(call: str, capsule: object) -> DeviceArray:
    address, _, device, shape, strides, code, bits, lanes, readonly, owner = take_dlpack(capsule)
    dtype = of_dlpack(call, code, bits, lanes)
    if strides is not None:
        strides = tuple(stride * dtype.nbytes for stride in strides)
    strides = _unless_packed(shape, strides, dtype.nbytes)
    return DeviceArray(address, device, shape, strides, dtype, readonly, owner)


def _simulated_device(array: DeviceArray) -> int | None:
    """The simulated GPU that the memory belongs to; None for other host memory."""
    try:
        driver = cuda.driver()
        attribute = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
        kind = cuda.call("cuPointerGetAttribute", attribute, array.address)
        if int(kind) != int(driver.CUmemorytype.CU_MEMORYTYPE_DEVICE):
            return None
        return _device_of(array.address)
    except (CudaError, Forked):  # a forked child has no GPU memory
        return None


def _device_of(address: int) -> int:
    attribute = cuda.driver().CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    return int(cuda.call("cuPointerGetAttribute", attribute, address))


def _by_interface(call: str, interface: dict[str, Any], obj: object) -> DeviceArray:
    address, readonly = interface["data"]
    shape = tuple(operator.index(length) for length in interface["shape"])
    dtype = as_typestr(call, interface["typestr"])
    strides = _unless_packed(shape, interface.get("strides"), dtype.nbytes)
    device = _device_of(address) if address else 0
    stream = interface.get("stream")
    if stream is not None:
        with cuda.context(device):
            cuda.call("cuStreamSynchronize", stream)
    return DeviceArray(int(address), device, shape, strides, dtype, bool(readonly), obj)


@contextmanager
def _waited_for(device: int) -> Iterator[int]:
    """A stream that a producer makes wait for its work; the block's end waits for the stream."""
    with cuda.context(device):
        stream = cuda.call("cuStreamCreate", cuda.driver().CUstream_flags.CU_STREAM_NON_BLOCKING)
        try:
            yield int(stream)
            cuda.call("cuStreamSynchronize", stream)
        finally:
            cuda.call("cuStreamDestroy", stream)


def _unless_packed(
    shape: tuple[int, ...], strides: tuple[int, ...] | None, itemsize: int
) -> tuple[int, ...] | None:
    """The strides, or None if the elements are packed in C order."""
    if strides is None or 0 in shape:
        return None
    expected = itemsize
    for length, stride in zip(reversed(shape), reversed(strides), strict=True):
        if length != 1 and stride != expected:
            return tuple(strides)
        expected *= length
    return None
