"""The CPU view of a GPU array that another library made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from gdrpy.arrays.array import Array
from gdrpy.arrays.interop import DeviceArray, packed_array
from gdrpy.arrays.regions import region_of
from gdrpy.arrays.transfer import Transferable
from gdrpy.common.arguments import as_range
from gdrpy.common.resource import Resource, Undo
from gdrpy.errors import ReadOnly
from gdrpy.memory.choice import take_pointer
from gdrpy.memory.node import own_node
from gdrpy.pins import Pin

if TYPE_CHECKING:
    import numpy as np

    from gdrpy.memory.gpu import CoreMemory
    from gdrpy.memory.view import Flag, Mapping
    from gdrpy.region import Region


def from_tensor(tensor: Any, *, backend: str | None = None) -> MappedTensor:
    """The CPU view of a contiguous GPU array of torch, cupy, numba, jax or any other library.

    Where it lies in a region of this process that has a CPU view, that view is used; else it is
    pinned, as by :meth:`Gdr.pin`: ``backend`` forces the way. What its library has queued on it is
    waited for. The tensor is kept until the view is closed.

    Raises TypeError for what is no GPU array, ValueError where it has no elements or they are not
    packed, InvalidHandle and BackendUnavailable with the reason where its memory is of a kind that
    cannot be mapped (managed, of a cudaMallocAsync pool, not exportable).
    """
    call = "from_tensor"
    array = packed_array(call, tensor)
    if array is None:
        raise TypeError(
            f"{call}: this {type(tensor).__name__} is no array in GPU memory: what lies on the "
            f"host needs no mapping"
        )
    if not array.nbytes:
        raise ValueError(f"{call}: an array of shape {array.shape} has no elements to map")
    found = region_of(array.address, array.nbytes)
    if found is not None:
        region, offset = found
        if region._cpu is not None and backend in (None, region._cpu.backend):
            return MappedTensor(array, None, region, offset)
    with Undo() as undo:
        memory = take_pointer(
            array.address,
            array.nbytes,
            revocable=False,
            sigbus=False,
            open_node=own_node.get,
            backend=backend,
        )
        undo.keep(memory)
        mapped = MappedTensor(array, undo.keep(_PinnedArray(memory, array)), None, 0)
        undo.pop_all()
        return mapped


class MappedTensor(Resource):
    """A GPU array of another library as the CPU sees it. Made by :func:`from_tensor`.

    ``shape``, ``dtype`` (safetensors' name) and ``nbytes`` are the array's, ``ptr`` is its GPU
    address, ``readonly`` says whether its library wants it left alone. It lies at byte ``offset``
    of :attr:`mapping`; in a region of this process if ``region`` is not None. Its tensor is kept
    until :meth:`close`, which raises BufferError while there are arrays made from it; or if it
    lies in a region leaves them usable.
    """

    _again = "attach what the parent shared with it"

    def __init__(
        self, array: DeviceArray, pinned: _PinnedArray | None, region: Region | None, offset: int
    ) -> None:
        self.region = region
        self.offset = offset
        self.shape = array.shape
        self.dtype = array.dtype.name
        self.nbytes = array.nbytes
        self.ptr = array.address
        self._tensor = array.owner
        self._pinned = pinned
        memory = cast("Region", pinned or region)
        self._array = Array(memory, array.shape, array.dtype, offset)
        self.readonly = array.readonly or memory.cpu.readonly
        super().__init__()

    @property
    def mapping(self) -> Mapping:
        """The mapping that it lies in, from byte ``offset`` on."""
        self._check("MappedTensor.mapping")
        return self._array.region.cpu

    @property
    def backend(self) -> str:
        """The way in which it is mapped."""
        return self.mapping.backend

    def numpy(self) -> np.ndarray[Any, Any]:
        """A numpy array of the same bytes, without a copy. Raises as :meth:`Array.numpy`."""
        self._check("MappedTensor.numpy")
        array = self._array.numpy()
        if self.readonly:
            array.flags.writeable = False
        return array

    def write(self, array: Any) -> None:
        """Copy an array of the same shape and element type into it, the fast way.

        GPU work that uses the tensor is not waited for. Raises as :meth:`Array.write`, and ReadOnly
        where the tensor's library shares it for reading only.
        """
        self._check("MappedTensor.write")
        if self.readonly:
            raise ReadOnly("MappedTensor.write: the library that made the array has it read-only")
        self._array.write(array)

    def read(self) -> np.ndarray[Any, Any]:
        """A new numpy array of a copy of the elements, made the fast way."""
        self._check("MappedTensor.read")
        return self._array.read()

    def flag(self, offset: int = 0, width: int = 4) -> Flag:
        """One aligned word of ``width`` (4 or 8) bytes at byte ``offset`` of the tensor.

        Of a read-only tensor it is read-only.
        """
        start, _ = as_range("MappedTensor.flag", offset, width, self.nbytes)
        if self.readonly and not self.mapping.readonly:
            part = self._array.region.map(self.offset + start, width, readonly=True)
            return part.flag(0, width)
        return self.mapping.flag(self.offset + start, width)

    def _release(self) -> None:
        if self._pinned is not None:
            self._pinned.close()
        del self._tensor, self._pinned, self._array

    def __repr__(self) -> str:
        if self.closed:
            return "<MappedTensor CLOSED>"
        where = "pinned" if self.region is None else f"at offset {self.offset} of {self.region!r}"
        return f"<MappedTensor {self.dtype} {self.shape} at {self.ptr:#x}, {self.backend}, {where}>"


class _PinnedArray(Pin, Transferable):
    """The memory of an array that lies in no region, with the face of one that an Array needs."""

    def __init__(self, memory: CoreMemory, array: DeviceArray) -> None:
        super().__init__(memory, array.address, array.readonly)
        self.device = array.device
        memory.source = array.owner
        self._cpu = self._map(0, memory.nbytes, self.readonly)

    @property
    def _allocation(self) -> Any:
        return self._taken

    @property
    def cpu(self) -> Mapping | None:
        """The mapping of it."""
        self._check("using a MappedTensor")
        return self._cpu

    def _copies(self) -> int:
        return self._running
