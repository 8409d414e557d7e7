"""A region: one allocation of GPU memory with a GPU view, a CPU view, or both."""

from __future__ import annotations

import sys
from _weakref import ref
from errno import EACCES

from gdrpy._arguments import as_int, as_size, as_viewer
from gdrpy._core import _mapping
from gdrpy._fd import duplicate, is_writable, private
from gdrpy._reduction import Parcel, open_region
from gdrpy._resource import Undo
from gdrpy.backends import host, take_allocation, take_export
from gdrpy.backends.memfd import SIMULATED, Memfd, mapping_error, simulated_location
from gdrpy.errors import MissingView, PermissionDenied, SizeMismatch
from gdrpy.mapping import Mapping, Origin
from gdrpy.transfer import Transferable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from typing import Any, Self

    import numpy as np
    from numpy.typing import DTypeLike

    from gdrpy._core._mapping import Descriptor
    from gdrpy.allocation import Allocation
    from gdrpy.array import Array
    from gdrpy.backends.memory import Memory
    from gdrpy.mapping import Flag


def alloc(
    nbytes: int,
    device: int | str = 0,
    *,
    gpu: bool = True,
    cpu: bool = True,
    backend: str | None = None,
    fabric: bool = False,
) -> Region:
    """Allocate a region of ``nbytes`` bytes on a device, or on the host: ``device="cpu"``.

    A device is named by its CUDA ordinal, which may differ from process to process, by its UUID
    ("GPU-...") or by its PCI address ("0000:3b:00.0").

    ``gpu=False`` leaves out the GPU view and needs no CUDA context, ``cpu=False`` leaves out the
    CPU view. ``backend`` forces the way in which the CPU view is made. ``fabric`` gives it a handle
    for other nodes, :meth:`Region.export_fabric`. The memory taken is ``nbytes`` rounded up to the
    granularity; do not rely on what it holds at first.

    Host memory has the CPU view alone, whatever ``gpu`` and ``backend`` say, so that one program
    can use either kind; it is rounded up to whole pages.

    Raises ValueError, NotFound (no such device), OutOfMemory, BackendUnavailable, CudaError.
    """
    size = as_size("alloc", nbytes)
    if device == "cpu":
        if fabric:
            raise ValueError("alloc: host memory has no fabric handle: alloc on a device")
        return _alloc_on_host(size, cpu)
    _check_views("alloc", gpu, cpu)
    from gdrpy import cuda, vmm

    ordinal = cuda.ordinal("alloc", device, or_cpu=True)
    with Undo() as undo:
        allocation = undo.keep(vmm.create(size, ordinal, gpu=gpu, fabric=bool(fabric)))
        memory = undo.keep(take_allocation(allocation, backend)) if cpu else None
        region = Region(allocation, memory, size, cpu=cpu, readonly=False, backend=backend)
        undo.pop_all()
        return region


def _alloc_on_host(size: int, cpu: bool) -> Region:
    if not cpu:
        raise ValueError("alloc: host memory has no other view than the CPU's, and cpu is False")
    with Undo() as undo:
        fd = private(host.create, size)
        memory = undo.keep(Memfd(fd, host.rounded_size(size), host.NAME, host.LOCATION))
        region = Region(memory, memory, size, cpu=True, readonly=False, backend=None)
        undo.pop_all()
        return region


class Region(Transferable, _mapping.Buffer):
    """GPU memory as a user holds it. Made by :func:`alloc` and :meth:`from_fd`.

    ``nbytes`` bytes, addressed by byte offsets, are seen by the GPU at :attr:`ptr` and by the CPU
    through :attr:`cpu`. ``device`` is the CUDA ordinal of the GPU that views it, None in a process
    without the GPU view and for host memory; ``location`` says in words where the memory lies.
    Threads may share a region.

    Wait for GPU work that uses the region before closing it. Arrays and mappings made from it keep
    its memory alive when only the Region object is dropped, and dropped GPU memory stays until the
    work that was queued by then is done.
    """

    _held: Allocation | Memfd | None = None
    _taken: Memory | None = None
    _backend: str | None = None
    _parcel: Parcel | None = None
    #: What the memory keeps alive as long as this process has anything of it.
    _source: object = None
    _location: str

    def __init__(
        self,
        allocation: Allocation | Memfd,
        memory: Memory | None,
        nbytes: int,
        *,
        cpu: bool,
        readonly: bool,
        backend: str | None,
        source: object = None,
    ) -> None:
        super().__init__(nbytes, allocation.ptr, allocation.device)
        allocation.source = self._source = source
        self._held = allocation
        self._taken = memory
        self._backend = backend
        self._location = memory.location if memory else allocation.location
        self.readonly = bool(readonly)
        if cpu:
            self._cpu = self._map(0, nbytes, self.readonly)
        if self._ptr is not None:
            from gdrpy._regions import remember

            remember(self)

    @property
    def location(self) -> str:
        """Where the memory lies, in words."""
        return self._location

    @property
    def _allocation(self) -> Allocation | Memfd:
        """What keeps the memory. That of an adopted memory file is made when it is asked for."""
        if self._held is None:
            self._check("using a Region")
            assert self._cpu is not None
            self._held = Memfd.of_fd(self._cpu._fd, self._cpu.backend, self._location)
            self._held.source = self._source
        return self._held

    def _memory(self) -> Memory:
        """As a backend has taken it in; a region without CPU view does so when it is mapped."""
        if self._taken is None:
            allocation = self._allocation
            if isinstance(allocation, Memfd):
                self._taken = allocation
            else:
                self._taken = take_allocation(allocation, self._backend)
        return self._taken

    @classmethod
    def from_fd(
        cls,
        fd: int,
        nbytes: int | None = None,
        *,
        gpu: bool = True,
        cpu: bool = True,
        readonly: bool = False,
        backend: str | None = None,
        device: int | str | None = None,
    ) -> Self:
        """Open a region that :meth:`export` gave a descriptor of, in this or another process.

        ``fd`` stays the caller's. ``nbytes`` is what to show of it, by default the whole
        allocation. With ``gpu=False`` neither CUDA nor a context is needed. Host memory has no GPU
        view, whatever ``gpu`` says.

        ``readonly`` makes both views read-only, in the page tables of the CPU and of the GPU. That
        keeps this process from mistakes, and not from opening the descriptor again to write. CUDA's
        copies to such a GPU view fail; a kernel that stores to it ends its context.

        The GPU view is of the GPU that the memory lies on, or of another ``device``, named as for
        :func:`gdrpy.alloc`, that reaches it, as over NVLink: its copies and kernels use the memory
        there. Both GPUs may use the address.

        Raises InvalidHandle, SizeMismatch, ValueError, OutOfMemory, PermissionDenied, CudaError,
        NotFound (this process does not see the memory's GPU), BackendUnavailable (``device`` cannot
        reach it).
        """
        call = "Region.from_fd"
        fd = as_int(call, "fd", fd)
        wanted = None if nbytes is None else as_size(call, nbytes)
        _check_views(call, gpu, cpu)
        return cls._open(
            call,
            fd,
            wanted,
            gpu=gpu,
            cpu=cpu,
            readonly=readonly,
            backend=backend,
            viewer=as_viewer(call, device, gpu),
        )

    @classmethod
    def from_fabric(cls, handle: bytes, nbytes: int, device: int | str = 0) -> Self:
        """Open ``nbytes`` bytes of a region of which :meth:`export_fabric` gave the handle.

        It may be of another node of the NVLink network, or of another GPU of this one. It has a GPU
        view, of a ``device`` of this process, and no CPU view, nor a descriptor; :meth:`write` and
        :meth:`read` go by DMA. Its owner is to keep it until it has been opened.

        Raises BackendUnavailable, InvalidHandle, SizeMismatch, ValueError, TypeError, CudaError.
        """
        call = "Region.from_fabric"
        name = bytes(memoryview(handle))
        size = as_size(call, nbytes)
        from gdrpy import cuda, fabric, vmm

        if len(name) != fabric.NBYTES:
            raise ValueError(
                f"{call}: a handle has {fabric.NBYTES} bytes, and this one {len(name)}"
            )
        ordinal = cuda.ordinal(call, device)
        with Undo() as undo:
            allocation = undo.keep(vmm.import_fabric(call, name, size, ordinal))
            region = cls(allocation, None, size, cpu=False, readonly=False, backend=None)
            undo.pop_all()
            return region

    @classmethod
    def _open(
        cls,
        call: str,
        fd: int,
        wanted: int | None,
        *,
        gpu: bool,
        cpu: bool,
        readonly: bool,
        backend: str | None,
        source: object = None,
        viewer: int | None = None,
    ) -> Self:
        """What :meth:`from_fd` does, and that the memory in this process keeps ``source``."""
        with Undo() as undo:
            memory = undo.keep(take_export(fd, backend, call))
            size = memory.nbytes
            if wanted is not None and wanted > size:
                raise SizeMismatch(
                    f"{call}: {wanted} bytes were asked for, and the allocation has {size}"
                )
            allocation = _holder(call, memory, fd, gpu, readonly, viewer)
            if allocation is not memory:
                memory.source = undo.keep(allocation)
            region = cls(
                allocation,
                memory,
                wanted or size,
                cpu=cpu,
                readonly=readonly,
                backend=backend,
                source=source,
            )
            undo.pop_all()
            return region

    @classmethod
    def _adopt(
        cls,
        descriptor: Descriptor,
        nbytes: int,
        device: int | None,
        *,
        gpu: bool,
        cpu: bool,
        readonly: bool,
        backend: str | None = None,
        source: object = None,
        viewer: int | None = None,
    ) -> Self:
        """As :meth:`from_fd`, but quicker: somebody trusted, a broker, told what the memory is.

        ``descriptor`` is the region's from here on, also where this raises. ``device`` is where the
        memory lies, None for the host; it is not looked at what the descriptor is called, but a
        wrong size is noticed. ``source`` is kept as long as this process has anything of it.
        """
        if cpu and (device is None or not gpu):
            if device is None:
                name, location = host.NAME, host.LOCATION
            else:
                name, location = SIMULATED, simulated_location(device)
            try:
                mapping = Mapping._adopt_memfd(descriptor, nbytes, readonly, source, name)
            except BaseException as error:
                descriptor.close()
                if isinstance(error, OSError):
                    raise mapping_error(error, location, nbytes, 0) from None
                raise
            if mapping is not None:
                region = cls.__new__(cls)
                Transferable.__init__(region, nbytes, None, None)
                region._cpu = mapping
                region._source = source
                region._location = location
                region.readonly = readonly
                mapping._origin = region._origin(0)
                return region
        call = f"opening a {cls.__name__}"
        try:
            return cls._open(
                call,
                descriptor.fileno(),
                nbytes,
                gpu=gpu,
                cpu=cpu,
                readonly=readonly,
                backend=backend,
                source=source,
                viewer=viewer,
            )
        finally:
            descriptor.close()

    @property
    def ptr(self) -> int:
        """The GPU address of the first byte. Raises MissingView in a process without it."""
        self._check("Region.ptr")
        if self._ptr is None:
            if self._on_host:
                raise MissingView("Region.ptr: host memory has no GPU address: alloc on a device")
            raise MissingView("this region was opened without a GPU view: open it with gpu=True")
        return self._ptr

    @property
    def _has_gpu_view(self) -> bool:
        self._check("Region.ptr")
        return self._ptr is not None

    @property
    def _has_cpu_view(self) -> bool:
        self._check("Region.cpu")
        return self._cpu is not None

    @property
    def _on_host(self) -> bool:
        return self._location == host.LOCATION

    @property
    def cpu(self) -> Mapping:
        """The CPU view of the whole region. Raises MissingView if it was opened without."""
        self._check("Region.cpu")
        if self._cpu is None:
            _ = self._allocation.fd  # there is no way to it by a fabric handle, and this says so
            raise MissingView("this region was opened without a CPU view: open it with cpu=True")
        return self._cpu

    @property
    def allocation_size(self) -> int:
        """Bytes of GPU memory held: ``nbytes`` rounded up to the granularity."""
        return self._allocation.size

    def numpy(
        self,
        dtype: DTypeLike = "uint8",
        shape: int | tuple[int, ...] | None = None,
        offset: int = 0,
    ) -> np.ndarray[Any, Any]:
        """An array over the CPU view: see :meth:`Mapping.numpy`."""
        return self.cpu.numpy(dtype, shape, offset)

    def flag(self, offset: int = 0, width: int = 4) -> Flag:
        """One aligned word of ``width`` (4 or 8) bytes, for signalling."""
        return self.cpu.flag(offset, width)

    def array(self, shape: int | tuple[int, ...], dtype: Any, offset: int = 0) -> Array:
        """Elements in C order at byte ``offset``; ``dtype`` is numpy's or safetensors' ("BF16").

        Raises ValueError if they do not fit the region, TypeError.
        """
        self._check("Region.array")
        from gdrpy.array import Array

        return Array(self, shape, dtype, offset)

    def _as_array(self) -> Array:
        """The whole region as bytes."""
        return self.array(self.nbytes, "U8")

    def _buffer(self) -> memoryview:
        """The CPU view's bytes, for ``memoryview(region)``. Raises MissingView, Closed."""
        return memoryview(self.cpu)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """The CPU view as bytes (version 3): see :class:`gdrpy.Array`."""
        return self._as_array().__array_interface__

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The GPU view as bytes (version 3): see :class:`gdrpy.Array`."""
        return self._as_array().__cuda_array_interface__

    def __dlpack__(self, **wishes: Any) -> object:
        """The whole region as bytes: see :meth:`Array.__dlpack__`."""
        return self._as_array().__dlpack__(**wishes)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Where :meth:`__dlpack__` shows it: (2, device) on a GPU, (1, 0) in host memory."""
        return self._as_array().__dlpack_device__()

    def mirror(
        self,
        load: bool = False,
        dtype: DTypeLike = "uint8",
        shape: int | tuple[int, ...] | None = None,
    ) -> AbstractContextManager[np.ndarray[Any, Any]]:
        """A writable array in host memory, whose bytes go into the region at the block's end.

        ``load`` copies the region's bytes in first; else the array begins with any values: fill all
        of it. It begins at byte 0; ``shape`` None is the whole region. Its memory is page-locked if
        the region has a GPU view; when the last array of it is gone it serves the next mirror, or
        is freed beyond 256 MiB. Nothing is copied back when the block raises. Over a read-only
        region the array is read-only.
        """
        self._check("Region.mirror")
        from gdrpy.mirror import mirror

        return mirror(self, load, dtype, shape)

    def export(self) -> int:
        """A new file descriptor of the memory: hand it to another process, and close it.

        Whoever holds it can open the region, read and write, as long as it is open; it keeps the
        memory alive. It is not inherited over exec.

        Raises MissingView for a region that was opened by a fabric handle.
        """
        with self._lock:
            self._check("Region.export")
            return duplicate(self._allocation.fd)

    def export_fabric(self) -> bytes:
        """The 64 bytes by which another node opens it: :meth:`from_fabric`.

        Raises MissingView unless it was made by ``alloc(..., fabric=True)``, or opened by a handle.
        """
        self._check("Region.export_fabric")
        held = self._held
        if held is None or isinstance(held, Memfd) or held.fabric is None:
            raise MissingView(
                "Region.export_fabric: the region was made without a fabric handle: make it by "
                "gdrpy.alloc(nbytes, fabric=True)"
            )
        return held.fabric

    def _origin(self, start: int) -> Origin:
        if self._parcel is None:
            self._parcel = Parcel(self._allocation)
        return Origin(ref(self), self._parcel, start)

    def __reduce__(self) -> tuple[Any, ...]:
        self._check("sending a Region")
        views = self._ptr is not None, self._cpu is not None
        return open_region, (self._origin(0).parcel, self.nbytes, *views, self.readonly)

    def _refuse_if_busy(self) -> None:
        arena = sys.modules.get("gdrpy.arena")
        if arena is not None:
            arena.release_abandoned()
        super()._refuse_if_busy()

    def _copies(self) -> int:
        return self._running + (0 if self._held is None else self._held.users)

    def _give_back(self, undo: Undo) -> None:
        held, taken = self._held, self._taken
        if taken is not None and held is not None and taken is not held:
            undo.callback(taken.close_with, held)
        elif held is not None:
            undo.keep(held)

    def __repr__(self) -> str:
        if self.closed:
            return "<Region CLOSED>"
        views = " and ".join(
            name for name, there in (("GPU", self._ptr), ("CPU", self._cpu)) if there is not None
        )
        views = f"read-only {views}" if self.readonly else views
        backend = f", {self._cpu.backend}" if self._cpu else ""
        return f"<Region of {self.nbytes} bytes on {self.location}, {views} view{backend}>"


def _holder(
    call: str, memory: Memory, fd: int, gpu: bool, readonly: bool, viewer: int | None
) -> Allocation | Memfd:
    """What holds exported memory for a region: with a GPU view, an allocation of CUDA's."""
    if isinstance(memory, Memfd):
        if memory.on_host or not gpu:
            return memory
        if not is_writable(fd):
            raise PermissionDenied(
                EACCES,
                f"Region.from_fd: file descriptor {fd} is open for reading only, which CUDA does "
                f"not import: open it with gpu=False, readonly=True",
            )
    if gpu:
        from gdrpy import vmm

        return vmm.import_fd(call, fd, memory.nbytes, viewer, bool(readonly))
    from gdrpy.allocation import Allocation

    return Allocation.keep_fd(fd, memory.nbytes)


def _check_views(call: str, gpu: bool, cpu: bool) -> None:
    if not gpu and not cpu:
        raise ValueError(f"{call}: gpu=False and cpu=False together leave no view of the memory")
