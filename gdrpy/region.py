"""A region: memory of a GPU or of the host with a GPU view, a CPU view, or both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self
from weakref import ref

from gdrpy import cuda
from gdrpy._core._mapping import Descriptor, Undo
from gdrpy.arrays.viewed import Viewed
from gdrpy.common.arguments import as_int, as_size
from gdrpy.errors import MissingView
from gdrpy.memory import fabric as fabrics
from gdrpy.memory import vmm
from gdrpy.memory.backends import forced
from gdrpy.memory.choice import open_export, own_export
from gdrpy.memory.file import HOST_LOCATION, MemoryFile
from gdrpy.memory.memory import Memory
from gdrpy.memory.sending import CALL as RECEIVING
from gdrpy.memory.sending import received, travel
from gdrpy.memory.view import Mapping

#: The regions of this process that have a GPU view, by number, so that each can be taken out when
#: it is gone. Dicts need no lock for that.
_known: dict[int, ref[Region]] = {}


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
    memory: Memory
    if device == "cpu":
        if fabric:
            raise ValueError("alloc: host memory has no fabric handle: alloc on a device")
        if not cpu:
            raise ValueError(
                "alloc: host memory has no other view than the CPU's, and cpu is False"
            )
        memory = MemoryFile.create(size)
    else:
        _check_views("alloc", gpu, cpu)
        ordinal = cuda.ordinal("alloc", device, or_cpu=True)
        memory = vmm.create(size, ordinal, gpu=gpu, fabric=bool(fabric), backend=forced(backend))
    return Region._of(memory, size, cpu=cpu)


class Region(Viewed):
    """GPU memory as a user holds it. Made by :func:`alloc` and :meth:`from_fd`.

    ``nbytes`` bytes, addressed by byte offsets, are seen by the GPU at :attr:`ptr` and by the CPU
    through :attr:`cpu`. ``device`` is the CUDA ordinal of the GPU that views it, None in a process
    without the GPU view and for host memory; ``location`` says in words where the memory lies.
    Threads may share a region.

    Wait for GPU work that uses the region before closing it. Arrays and mappings made from it keep
    its memory alive when only the Region object is dropped, and dropped GPU memory stays until the
    work that was queued by then is done.
    """

    def __init__(self, memory: Memory, nbytes: int, *, cpu: bool, readonly: bool) -> None:
        super().__init__(memory, nbytes, memory.ptr, bool(readonly))
        if cpu:
            self._cpu = self._map(0, nbytes, self.readonly)
        if self._ptr is not None:
            remember(self)

    @classmethod
    def _of(cls, memory: Memory, nbytes: int, *, cpu: bool, readonly: bool = False) -> Self:
        """A region of memory, which is closed where the region cannot be made."""
        try:
            return cls(memory, nbytes, cpu=cpu, readonly=readonly)
        except BaseException:
            with Undo() as undo:
                undo.keep(memory)
                raise

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
        memory = open_export(
            call,
            fd,
            wanted,
            gpu=gpu,
            readonly=bool(readonly),
            backend=backend,
            viewer=cuda.viewer(call, device, gpu),
        )
        return cls._of(memory, wanted or memory.size, cpu=cpu, readonly=readonly)

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
        if len(name) != fabrics.NBYTES:
            raise ValueError(
                f"{call}: a handle has {fabrics.NBYTES} bytes, and this one {len(name)}"
            )
        memory = vmm.import_fabric(call, name, size, cuda.ordinal(call, device))
        return cls._of(memory, size, cpu=False)

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
        source: object = None,
        viewer: int | None = None,
    ) -> Self:
        """As :meth:`from_fd`, where a broker told what the memory is: see own_export().

        ``descriptor`` is the region's from here on, also where this raises. The memory keeps
        ``source``.
        """
        call = f"opening a {cls.__name__}"
        memory = own_export(
            call, descriptor, nbytes, device, gpu=gpu, readonly=bool(readonly), viewer=viewer
        )
        memory.source = source
        return cls._of(memory, nbytes, cpu=cpu, readonly=readonly)

    @property
    def ptr(self) -> int:
        """The GPU address of the first byte. Raises MissingView in a process without it."""
        self._check("Region.ptr")
        if self._ptr is None:
            if self.location == HOST_LOCATION:
                raise MissingView("Region.ptr: host memory has no GPU address: alloc on a device")
            raise MissingView("this region was opened without a GPU view: open it with gpu=True")
        return self._ptr

    @property
    def cpu(self) -> Mapping:
        """The CPU view of the whole region. Raises MissingView if it was opened without."""
        self._check("Region.cpu")
        if self._cpu is None:
            _ = self._memory.fd  # there is no way to it by a fabric handle, and this says so
            raise MissingView("this region was opened without a CPU view: open it with cpu=True")
        return self._cpu

    @property
    def allocation_size(self) -> int:
        """Bytes of GPU memory held: ``nbytes`` rounded up to the granularity."""
        return self._memory.size

    def export(self) -> int:
        """A new file descriptor of the memory: hand it to another process, and close it.

        Whoever holds it can open the region, read and write, as long as it is open; it keeps the
        memory alive. It is not inherited over exec.

        Raises MissingView for a region that was opened by a fabric handle.
        """
        self._check("Region.export")
        return self._memory.export()

    def export_fabric(self) -> bytes:
        """The 64 bytes by which another node opens it: :meth:`from_fabric`.

        Raises MissingView unless it was made by ``alloc(..., fabric=True)``, or opened by a handle.
        """
        self._check("Region.export_fabric")
        if self._memory.fabric is None:
            raise MissingView(
                "Region.export_fabric: the region was made without a fabric handle: make it by "
                "gdrpy.alloc(nbytes, fabric=True)"
            )
        return self._memory.fabric

    def _travel(self, start: int) -> Callable[[Mapping], tuple[Any, ...]]:
        return travel(ref(self), self._memory.source or self._memory, start)

    def __reduce__(self) -> tuple[Any, ...]:
        self._check("sending a Region")
        views = self._ptr is not None, self._cpu is not None
        return _receive, (self._memory, self.nbytes, *views, self.readonly)

    def __repr__(self) -> str:
        if self.closed:
            return "<Region CLOSED>"
        views = " and ".join(
            name for name, there in (("GPU", self._ptr), ("CPU", self._cpu)) if there is not None
        )
        views = f"read-only {views}" if self.readonly else views
        backend = f", {self._cpu.backend}" if self._cpu else ""
        return f"<Region of {self.nbytes} bytes on {self.location}, {views} view{backend}>"


def remember(region: Region) -> None:
    """Have a region found by the addresses of its GPU view, as long as it is there."""
    number = id(region)
    _known[number] = ref(region, lambda _: _known.pop(number, None))


def region_of(address: int, nbytes: int) -> tuple[Region, int] | None:
    """The open region whose GPU view holds all of a range, and the range's offset in it."""
    for one in list(_known.values()):
        region = one()
        if region is None or region.closed or region._forked() or region._ptr is None:
            continue
        offset = address - region._ptr
        if 0 <= offset <= region.nbytes - nbytes:
            return region, offset
    return None


def _receive(arrived: Any, nbytes: int, gpu: bool, cpu: bool, readonly: bool) -> Region:
    """A region that was sent, with the views that it had."""
    memory = open_export(RECEIVING, received(arrived).fd, gpu=gpu, readonly=readonly)
    return Region._of(memory, nbytes, cpu=cpu, readonly=readonly)


def _check_views(call: str, gpu: bool, cpu: bool) -> None:
    if not gpu and not cpu:
        raise ValueError(f"{call}: gpu=False and cpu=False together leave no view of the memory")
