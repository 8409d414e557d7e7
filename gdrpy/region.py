"""A region: memory of a GPU or of the host with a GPU view, a CPU view, or both."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, Self, TypeVar
from weakref import ref

from gdrpy import cuda
from gdrpy._core._mapping import Descriptor, Undo, alone
from gdrpy.arrays.shown import Shown
from gdrpy.common.arguments import as_device, as_int, as_size
from gdrpy.errors import Detached, MissingView
from gdrpy.memory import fabric as fabrics
from gdrpy.memory import reclaim, vmm
from gdrpy.memory.backends import forced
from gdrpy.memory.choice import attach_export, open_export, own_export
from gdrpy.memory.descriptors import fork_lock, private_duplicate
from gdrpy.memory.file import HOST_LOCATION, MemoryFile
from gdrpy.memory.gpu import GpuMemory
from gdrpy.memory.memory import ATTACH, DETACHED, Memory, settle_all
from gdrpy.memory.sending import CALL as RECEIVING
from gdrpy.memory.sending import received, travel
from gdrpy.memory.view import Mapping, Travel

R = TypeVar("R", bound="Region")

#: The regions of this process that have a GPU view, by id(), so that each can be removed when it is
#: gone. Dicts need no lock for that.
_known: dict[int, ref[Region]] = {}


def alloc(
    nbytes: int,
    device: Any = 0,
    *,
    gpu: bool = True,
    cpu: bool = True,
    backend: str | None = None,
    fabric: bool = False,
    address: int | None = None,
) -> Region:
    """Allocate a region of ``nbytes`` bytes on a device, or on the host: ``device="cpu"``.

    The allocation is ``nbytes`` rounded up to the granularity; its initial contents are undefined.

    Args:
        nbytes: The size in bytes.
        device: A GPU's CUDA ordinal, which may differ from process to process, its UUID
            ("GPU-..."), its PCI address ("0000:3b:00.0"), a torch.device or torch's name of it
            ("cuda:1", or "cuda" for the current device); or "cpu".
        gpu: Whether to make the GPU view. Without it no CUDA context is needed.
        cpu: Whether to make the CPU view. With neither view the copy engine makes all copies.
        backend: The backend of the CPU view; None takes the best one.
        fabric: Whether to make a handle for other nodes, :meth:`Region.export_fabric`.
        address: The GPU address of the first byte, a multiple of the granularity; None is any.

    Host memory has only the CPU view and ignores ``gpu`` and ``backend``, so that one program can
    use either kind; it is rounded up to whole pages.

    Raises ValueError, NotFound (no such device), OutOfMemory, BackendUnavailable, CudaError,
    AddressInUse (the bytes at ``address`` are not free; the message tells what is there).
    """
    size = as_size("alloc", nbytes)
    memory: Memory
    named = as_device("alloc", device, or_cpu=True)
    if named == "cpu":
        if fabric:
            raise ValueError("alloc: host memory has no fabric handle: alloc on a device")
        if address is not None:
            raise ValueError("alloc: host memory has no GPU view to place: leave address out")
        if not cpu:
            raise ValueError("alloc: host memory has only the CPU view, and cpu is False")
        memory = MemoryFile.create(size)
    else:
        ordinal = cuda.ordinal("alloc", named)
        memory = vmm.create(
            size,
            ordinal,
            gpu=gpu,
            fabric=bool(fabric),
            backend=forced(backend),
            address=vmm.as_address("alloc", address, gpu),
        )
    return Region._of(memory, size, cpu=cpu)


class Region(Shown):
    """Memory with a GPU view, a CPU view, or both. Made by :func:`alloc` and :meth:`from_fd`.

    The GPU sees its ``nbytes`` bytes at :attr:`ptr`, the CPU sees them through :attr:`cpu`.
    ``device`` is the CUDA ordinal of the GPU with the GPU view, None without a GPU view;
    ``location`` says in words where the memory lies. Threads may share a region.

    :meth:`close` raises BufferError while arrays of the region are alive. The end of a ``with``
    block closes it nevertheless, warns StillInUse, and releases the memory with the last array.

    Wait for GPU work that uses the region before closing it. Arrays and mappings made from it keep
    its memory alive when only the Region object is dropped. Dropped GPU memory stays until the work
    queued by then is done.
    """

    #: What brings the memory back while it is detached.
    _remedy = ATTACH

    def __init__(self, memory: Memory, nbytes: int, cpu: bool, readonly: bool) -> None:
        super().__init__(memory, nbytes, memory.ptr, bool(readonly))
        if cpu:
            self._cpu = self._map(0, nbytes, self.readonly)
        if self._ptr is not None:
            remember(self)

    @classmethod
    def _of(cls, memory: Memory, nbytes: int, *, cpu: bool, readonly: bool = False) -> Self:
        """A region of ``memory``, which is closed if this raises."""
        try:
            return cls(memory, nbytes, cpu, readonly)
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
        device: Any = None,
        address: int | None = None,
    ) -> Self:
        """Open a region by a descriptor from :meth:`export` in this or another process.

        Args:
            fd: The descriptor. The caller keeps it.
            nbytes: The region's size; None is that of the whole allocation.
            gpu: Whether to make the GPU view. Without it CUDA is not needed. Host memory has no
                GPU view and ignores this.
            cpu: Whether to make the CPU view. With neither view the copy engine makes all copies.
            readonly: Makes both views read-only, in the page tables of the CPU and of the GPU.
            backend: The backend of the CPU view; None takes the best one.
            device: The GPU of the GPU view, named as for :func:`gdrpy.alloc`. It must reach the
                memory, as over NVLink; both GPUs may use the address. None is the GPU that the
                memory lies on.
            address: The GPU address of the first byte, as for :func:`gdrpy.alloc`.

        ``readonly`` prevents mistakes, but the process can open the descriptor again to write. CUDA
        copies to such a GPU view fail; a kernel that stores to it ends its context.

        Raises InvalidHandle, SizeMismatch, ValueError, OutOfMemory, PermissionDenied, CudaError,
        NotFound (this process does not see the memory's GPU), BackendUnavailable (``device`` cannot
        reach the memory), AddressInUse, MissingView (host memory has no GPU view for ``address``).
        """
        call = "Region.from_fd"
        fd = as_int(call, "fd", fd)
        wanted = None if nbytes is None else as_size(call, nbytes)
        memory = open_export(
            call,
            fd,
            wanted,
            gpu=gpu,
            readonly=bool(readonly),
            backend=backend,
            viewer=cuda.viewer(call, device, gpu),
            address=vmm.as_address(call, address, gpu),
        )
        return cls._of(memory, wanted or memory.size, cpu=cpu, readonly=readonly)

    @classmethod
    def from_fabric(
        cls, handle: bytes, nbytes: int, device: Any = 0, *, readonly: bool = False
    ) -> Self:
        """Open ``nbytes`` bytes of a region by its handle from :meth:`export_fabric`.

        Args:
            handle: The 64 bytes of the handle.
            nbytes: The region's size.
            device: The GPU of the GPU view, named as for :func:`gdrpy.alloc`.
            readonly: Makes the GPU view read-only in the GPU's page tables, as for :meth:`from_fd`.

        The memory may lie on another node of the NVLink network, or on another GPU of this node.
        The region has a GPU view, but no CPU view and no descriptor;
        :meth:`write` and :meth:`read` use DMA. The owner must keep its region until this returns.

        Raises BackendUnavailable, InvalidHandle, SizeMismatch, ValueError, TypeError, CudaError.
        """
        call = "Region.from_fabric"
        name = bytes(memoryview(handle))
        size = as_size(call, nbytes)
        if len(name) != fabrics.NBYTES:
            raise ValueError(
                f"{call}: a handle has {fabrics.NBYTES} bytes, and this one {len(name)}"
            )
        ordinal = cuda.ordinal(call, device)
        memory = vmm.import_fabric(call, name, size, ordinal, bool(readonly))
        return cls._of(memory, size, cpu=False, readonly=readonly)

    @classmethod
    def _adopt(
        cls,
        call: str,
        descriptor: Descriptor,
        nbytes: int,
        device: int | None,
        *,
        gpu: bool,
        cpu: bool,
        readonly: bool,
        source: object = None,
        viewer: int | None = None,
        address: int | None = None,
    ) -> Self:
        """Like :meth:`from_fd`, for memory that a broker describes: see own_export().

        Memory of a GPU that this process does not see has the CPU view alone. The call takes
        ``descriptor`` over, even if it raises. The memory keeps ``source``.
        """
        memory = own_export(
            call,
            descriptor,
            nbytes,
            device,
            gpu=gpu,
            readonly=readonly,
            viewer=viewer,
            address=address,
            unseen=cpu,
        )
        memory.source = source
        return cls._of(memory, nbytes, cpu=cpu, readonly=readonly)

    @property
    def ptr(self) -> int:
        """The GPU address of the first byte.

        CUDA's driver API uses it in a current context: ``with gdrpy.cuda.context(region.device)``;
        torch and cupy make one current. Raises MissingView without the GPU view.
        """
        self._check("Region.ptr")
        if self._ptr is None:
            if self.location == HOST_LOCATION:
                raise MissingView("Region.ptr: host memory has no GPU address: alloc on a device")
            if self._memory.unseen is not None:
                raise MissingView(f"Region.ptr: {self._memory.unseen}")
            raise MissingView("Region.ptr: it was opened without a GPU view: open it with gpu=True")
        return self._ptr

    @property
    def cpu(self) -> Mapping:
        """The CPU view of the whole region. Raises MissingView if it was opened without one."""
        self._check("Region.cpu")
        if self._cpu is None:
            _ = self._memory.fd  # raises if the memory came by a fabric handle
            raise MissingView("Region.cpu: it was opened without a CPU view: open it with cpu=True")
        return self._cpu

    @property
    def allocation_size(self) -> int:
        """The bytes of memory held: ``nbytes`` rounded up to the granularity."""
        return self._memory.size

    def export(self) -> int:
        """A new file descriptor of the memory: pass it to another process, and close it.

        A process with the descriptor can open the region to read and write. The descriptor keeps
        the memory alive until it is closed. It is closed on exec.

        Raises MissingView for a region that was opened by a fabric handle.
        """
        self._check("Region.export")
        return self._memory.export()

    def export_fabric(self) -> bytes:
        """The 64-byte handle by which another node opens the region: :meth:`from_fabric`.

        Raises MissingView unless it was made by ``alloc(..., fabric=True)``, or opened by a handle.
        """
        self._check("Region.export_fabric")
        if self._memory.fabric is None:
            raise MissingView(
                "Region.export_fabric: the region was made without a fabric handle: make it by "
                "gdrpy.alloc(nbytes, fabric=True)"
            )
        return self._memory.fabric

    @property
    def detached(self) -> bool:
        """Whether :meth:`detach` gave the memory back, and nothing has been attached since."""
        return not self.closed and self._memory.detached

    def detach(self) -> None:
        """Give back the memory, and keep its GPU addresses for :meth:`attach`.

        The region holds no memory then; that of :func:`gdrpy.alloc` is lost unless a descriptor of
        :meth:`export` keeps it. Any use raises Detached, but :meth:`close`, which frees the
        addresses. Arrays of the region, arenas, and consumers of DLPack that have its GPU view may
        stay: they are valid again after :meth:`attach`. Meanwhile they are invalid, and no work
        that uses them may be queued. Mappings are closed.

        The call waits for the work queued by now in the primary contexts of the region's GPUs.
        It does nothing for a region that is detached. Raises BufferError while arrays of the CPU
        view are alive, copies run, or a CUDA graph is captured, MissingView without a GPU view or
        with a fabric handle, Closed, Forked.
        """
        _detach_all(f"{type(self).__name__}.detach", [self])

    def attach(self, fd: int) -> None:
        """Bring memory back to the GPU addresses of a detached region.

        Args:
            fd: A descriptor of memory of the same size on the same GPU: that of the region itself
                or another one. The caller keeps it.

        The CPU view is made again if there was one; other mappings are not.

        Raises ValueError if the region is not detached, SizeMismatch, InvalidHandle, OutOfMemory,
        CudaError, Closed; the region stays detached then.
        """
        call = f"{type(self).__name__}.attach"
        number = as_int(call, "fd", fd)
        if not self._can_attach(call):
            raise ValueError(f"{call}: the region is attached: detach() it first")
        self._attach(call, number, self.readonly, None, None)

    def _can_attach(self, call: str) -> bool:
        """Whether it is detached. Raises Closed, Forked."""
        super()._check(call)
        return self._memory.detached

    def _attach(self, call: str, *memory: Any) -> bool:
        """Attach memory: see :meth:`_attach_once`. False if another thread has attached some."""
        attached: bool = alone(fork_lock, alone, self._lock, self._attach_once, call, *memory)
        return attached

    def _attach_once(
        self, call: str, fd: int, readonly: bool, size: int | None, source: Any
    ) -> bool:
        """Attach the memory of ``fd``, which keeps ``source``; ``size`` is a broker's word."""
        if not self._can_attach(call):
            return False
        assert isinstance(self._memory, GpuMemory)
        attach_export(call, self._memory, fd, readonly, size)
        self._memory.created = False
        before, self.readonly = self.readonly, readonly
        self._memory.source = source
        try:
            self._map_again()
        except BaseException:
            self.readonly, self._memory.source = before, None
            self._memory.detach()
            raise
        return True

    def _map_again(self) -> None:
        """Make the CPU view again if it was closed."""
        if self._cpu is not None and self._cpu.closed:
            self._cpu = self._map(0, self.nbytes, self.readonly)

    def _check_detachable(self, call: str) -> None:
        """Raise as detach()."""
        if not self._can_attach(call):
            settle_all()
        alone(self._lock, self._detachable, call)

    def _detachable(self, call: str) -> list[Mapping]:
        """The mappings to close, none if it is detached; with the lock held. Raises as detach()."""
        if not self._can_attach(call):
            if not (isinstance(self._memory, GpuMemory) and self._memory.can_detach):
                raise MissingView(
                    f"{call}: only memory with a GPU view and without a fabric handle can be "
                    f"detached: close the region, and open it again"
                )
            return self._idle_mappings("detach", lasting=True)
        return []

    def _detach(
        self, call: str, kept: Undo, restore: Undo, sources: list[tuple[Region, Any]]
    ) -> None:
        """Unmap it, with the lock held. ``kept`` releases the memory, ``restore`` maps it again.

        The object that the memory kept alive is appended to ``sources``, with the region.
        """
        mappings = self._detachable(call)
        if self._memory.detached:
            return
        assert isinstance(self._memory, GpuMemory)
        fd = kept.keep(private_duplicate(self._memory.fd))
        source, readonly = self._memory.source, self.readonly
        self._disarm()
        try:
            for mapping in mappings:
                mapping.close()
        except BaseException:  # a view was made meanwhile
            self._map_again()
            raise
        size = self._memory.size
        restore.callback(self._attach, call, fd.fileno(), readonly, size, source)
        sources.append((self, source))
        self._memory.source = None
        self._memory.detach()

    def _give_back(self, source: Any, told: Undo) -> None:
        """Close the object that the memory kept alive before it was detached.

        What is done once for several regions is added to ``told``.
        """
        if source is not None:
            told.callback(source.close)

    def _check(self, call: str, /) -> None:
        super()._check(call)
        if self._memory.detached:
            raise Detached(f"{call}: {DETACHED}: {self._remedy}")

    def _release_with_users(self) -> bool:
        if not self._memory.detached:
            return super()._release_with_users()
        self._memory.close()
        return self._memory.users > 0

    def _travel(self, start: int) -> Travel:
        return travel(ref(self), self._memory.source or self._memory, start)

    def __reduce__(self) -> tuple[Any, ...]:
        self._check("sending a Region")
        views = self._ptr is not None, self._cpu is not None
        return _receive, (self._memory, self.nbytes, *views, self.readonly)

    def __repr__(self) -> str:
        if self.closed:
            return "<Region CLOSED>"
        if self._memory.detached:
            return f"<Region of {self.nbytes} bytes for {self.location}, DETACHED>"
        views = " and ".join(
            name for name, there in (("GPU", self._ptr), ("CPU", self._cpu)) if there is not None
        )
        views = views or "no"
        views = f"read-only {views}" if self.readonly else views
        backend = f", {self._cpu.backend}" if self._cpu else ""
        return f"<Region of {self.nbytes} bytes on {self.location}, {views} view{backend}>"


def detach_many(regions: Iterable[Region]) -> None:
    """Detach regions, all or none: see :meth:`Region.detach`.

    Args:
        regions: The regions. Those that are detached are left as they are.

    It waits once for the work on their GPUs. If one cannot be detached, its error is raised. The
    others then have their memory, or have got it back.
    """
    call = "detach_many"
    _detach_all(call, as_regions(call, regions, Region, "regions", "detach()"))


def as_regions(call: str, regions: Any, kind: type[R], kinds: str, single: str) -> list[R]:
    """Regions of a kind, as a list. Raises TypeError, for one alone with the call for that."""
    if isinstance(regions, kind):
        raise TypeError(f"{call}: regions must be several regions, not {regions!r}: use {single}")
    those: list[Any] = [regions] if isinstance(regions, str) else list(regions)  # not its letters
    for one in those:
        if not isinstance(one, kind):
            raise TypeError(f"{call}: regions must be {kinds}, not {one!r}")
    return those


def _detach_all(call: str, regions: list[Region]) -> None:
    for region in regions:
        region._check_detachable(call)
    wait_for_work(call, regions)
    sources: list[tuple[Region, Any]] = []
    with Undo() as kept, Undo() as restore:
        for region in regions:
            alone(region._lock, region._detach, call, kept, restore, sources)
        restore.forget()
    with Undo() as told:
        for region, source in sources:
            region._give_back(source, told)


def wait_for_work(call: str, regions: list[Region]) -> None:
    """Wait for the work queued by now on the GPUs of regions. Raises BufferError."""
    for each in {region._memory.devices for region in regions}:
        if not reclaim.wait(each):
            raise BufferError(
                f"{call}: CUDA cannot tell now whether the GPU is done with the memory, as while a "
                f"graph is captured: detach after that"
            )


def remember(region: Region) -> None:
    """Have :func:`region_of` find a region until it is gone."""
    number = id(region)
    _known[number] = ref(region, partial(_known.pop, number))  # the ref is its default


def region_of(address: int, nbytes: int) -> tuple[Region, int] | None:
    """The open region whose GPU view contains a range, and the range's offset in it."""
    for one in list(_known.values()):
        region = one()
        if region is None or region.closed or region._forked() or region._ptr is None:
            continue
        offset = address - region._ptr
        if 0 <= offset <= region.nbytes - nbytes:
            return region, offset
    return None


def _tenant(address: int, nbytes: int) -> str | None:
    """The open region that overlaps a range of GPU addresses, in words."""
    for one in list(_known.values()):
        region = one()
        if region is None or region.closed or region._forked() or region._ptr is None:
            continue
        end = region._ptr + region._memory.size
        if region._ptr < address + nbytes and address < end:
            return f"{region!r} has {region._ptr:#x} to {end:#x}"
    return None


vmm.tenants.append(_tenant)


def _receive(arrived: Any, nbytes: int, gpu: bool, cpu: bool, readonly: bool) -> Region:
    """Open a region that was sent, with the views that the sender had."""
    memory = open_export(RECEIVING, received(arrived).fd, gpu=gpu, readonly=readonly)
    return Region._of(memory, nbytes, cpu=cpu, readonly=readonly)
