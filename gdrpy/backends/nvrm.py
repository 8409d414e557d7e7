"""Backend ``nvrm``: the stock NVIDIA kernel driver, through its resource manager (RM).

No kernel module, no root, and for an exported allocation no CUDA either. The interface is not a
stable one: it is the same in every driver of TESTED_DRIVERS, and any other layout is refused by the
kernel, not misread. What the handle of a cuMemAlloc pointer holds is nowhere documented, so it is
checked once a process before it is trusted.
"""

from __future__ import annotations

import errno
import os
from _thread import allocate_lock

from gdrpy._fd import NVIDIA_NODE, describe
from gdrpy._pci import pci_name
from gdrpy._resource import Undo
from gdrpy.backends.base import Backend
from gdrpy.backends.fdmemory import address_of, ffi, lib
from gdrpy.backends.memory import HeldMemory, Memory, status_error
from gdrpy.errors import BackendUnavailable, DriverError, InvalidHandle, UntestedDriver
from gdrpy.mappingtype import MappingType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from gdrpy.backends.records import PinRequest, Status

CONTROL_NODE = NVIDIA_NODE
_VERSION_FILE = "/proc/driver/nvidia/version"

_NO_DRIVER_REMEDY = "install the driver, or pass the node into the container (--gpus, --device)"

#: Oldest and newest driver whose interface was compared with the one used here.
TESTED_DRIVERS = tuple(
    ffi.string(text).decode() for text in (lib.GDR_NVRM_TESTED_MIN, lib.GDR_NVRM_TESTED_MAX)
)


def driver_version() -> str | None:
    """The version of the NVIDIA kernel driver, None where none is loaded."""
    try:
        fd = os.open(_VERSION_FILE, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        words = os.read(fd, 4096).decode(errors="replace").split()
    finally:
        os.close(fd)
    return next(filter(_is_version, words), None)


def _is_version(word: str) -> bool:
    """Whether a word is like 580.159.04."""
    parts = word.split(".")
    return len(parts) in (2, 3) and len(parts[0]) >= 3 and all(map(str.isdigit, parts))


def is_tested(version: str) -> bool:
    """Whether a driver version lies in the tested range."""
    oldest, newest = (_numbers(end) for end in TESTED_DRIVERS)
    return oldest <= _numbers(version) <= newest


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


class _Client:
    """This process's RM client, opened on first use and kept: its devices are costly to make."""

    def __init__(self) -> None:
        self._lock = allocate_lock()
        self._handle: Any = None

    def get(self) -> Any:
        with self._lock:
            if self._handle is None:
                self._handle = self._open()
            return self._handle

    def _open(self) -> Any:
        version = driver_version()
        if version is not None and not is_tested(version):
            import warnings

            warnings.warn(
                f"NVIDIA driver {version} is outside the range that the nvrm backend was compared "
                f"with ({TESTED_DRIVERS[0]} to {TESTED_DRIVERS[1]}); going on, since a changed "
                f"interface is refused, not misread",
                UntestedDriver,
                stacklevel=2,
            )
        handle = ffi.new("struct gdr_nvrm **")
        try:
            _call("cannot use the NVIDIA driver", lib.gdr_nvrm_open, handle)
        except DriverError as error:
            if error.errno != errno.ENOENT:
                raise
            raise BackendUnavailable(f"{error}: {_NO_DRIVER_REMEDY}") from error
        return handle[0]

    def after_fork(self) -> None:
        """In a child: forget the parent's client, whose lock may be held by a thread now gone."""
        if self._handle is not None:
            lib.gdr_nvrm_abandon(self._handle)
        self._handle = None
        self._lock = allocate_lock()


_client = _Client()
os.register_at_fork(after_in_child=_client.after_fork)


def _call(purpose: str, function: Any, *args: Any) -> None:
    """Run a call of the C core that fills in an error, and raise it."""
    error = ffi.new("struct gdr_nvrm_error *")
    if function(*args, error):
        name = ffi.string(error.call).decode()
        raise status_error(error.error, f"{purpose}: {name}", error.status)


class NvrmMemory(HeldMemory):
    """A physical block of GPU memory in this process's RM client, of which a part was asked for."""

    def __init__(
        self, undo: Undo, client: Any, block: Any, offset: int, nbytes: int, location: str
    ) -> None:
        super().__init__(undo, nbytes, NvrmBackend.name, location)
        self._client = client
        self._block = block
        self._offset = offset

    def _map(
        self, offset: int, nbytes: int, readonly: bool
    ) -> tuple[int, MappingType, Callable[[], object]]:
        mapping = ffi.new("struct gdr_nvrm_mapping *")
        _call(
            f"mapping {nbytes} bytes at offset {offset}",
            lib.gdr_nvrm_map,
            self._client,
            self._block,
            self._offset + offset,
            nbytes,
            readonly,
            ffi.NULL,
            mapping,
        )

        def unmap() -> None:
            _call("unmapping", lib.gdr_nvrm_unmap, self._client, mapping)

        return address_of(mapping.map), MappingType.WRITE_COMBINED, unmap


def _adopt(undo: Undo, client: Any, block: Any, offset: int, nbytes: int) -> NvrmMemory:
    """The memory of a block that RM has just put into the client."""
    undo.callback(_call, "releasing GPU memory", lib.gdr_nvrm_release, client, block)
    gpu = block.gpu
    location = pci_name(gpu.pci_domain, gpu.pci_bus, gpu.pci_slot)
    return NvrmMemory(undo.pop_all(), client, block, offset, nbytes, location)


def _import(fd: int, offset: int, nbytes: int | None) -> NvrmMemory:
    """Take in an exported allocation, or [offset, offset + nbytes) of it."""
    client = _client.get()
    block = ffi.new("struct gdr_nvrm_memory *")
    try:
        _call("importing the allocation", lib.gdr_nvrm_import, client, fd, block)
    except DriverError as error:
        if error.errno != errno.EINVAL:
            raise
        raise InvalidHandle(
            f"file descriptor {fd} is {describe(fd)}, which the NVIDIA driver does not take "
            f"for an exported allocation ({error}): pass one that Region.export() gave"
        ) from error
    with Undo() as undo:
        return _adopt(undo, client, block, offset, block.nbytes if nbytes is None else nbytes)


def _parse_ipc(handle: bytes) -> Any:
    info = ffi.new("struct gdr_ipc_info *")
    lib.gdr_ipc_parse(ffi.new("struct gdr_cuda_ipc *", {"bytes": handle}), info)
    return info


def _duplicate(info: Any, device: int, offset: int, nbytes: int) -> NvrmMemory:
    """Take in [offset, offset + nbytes) of the allocation that an IPC handle names."""
    from gdrpy import cuda

    client = _client.get()
    gpu = ffi.new("struct gdr_nvrm_gpu *")
    gpu.pci_domain, gpu.pci_bus, gpu.pci_slot = cuda.pci_address(device)
    block = ffi.new("struct gdr_nvrm_memory *")
    _call("pinning a device pointer", lib.gdr_nvrm_duplicate, client, gpu, info, block)
    with Undo() as undo:
        return _adopt(undo, client, block, info.block_offset + offset, nbytes)


class NvrmBackend(Backend):
    """Maps VMM allocations by their descriptor, and cuMemAlloc pointers by their IPC handle."""

    name = "nvrm"

    def __init__(self) -> None:
        self._checked: dict[int, str] = {}
        self._lock = allocate_lock()

    def _status(self, device: int | None) -> Status:
        del device
        from gdrpy.backends.records import Status

        try:
            os.close(os.open(CONTROL_NODE, os.O_RDWR | os.O_CLOEXEC))
        except FileNotFoundError:
            return Status(
                False,
                f"no NVIDIA kernel driver: {CONTROL_NODE} is missing",
                _NO_DRIVER_REMEDY,
            )
        except PermissionError:
            return Status(
                False,
                f"no permission to open {CONTROL_NODE} for reading and writing",
                f"ask for access to {CONTROL_NODE} and /dev/nvidia<N> (mode 0666 is the default)",
            )
        except OSError as error:
            return Status(False, f"opening {CONTROL_NODE}: {error.strerror}", "see dmesg")
        version = driver_version()
        if version is not None and not is_tested(version):
            return Status(True, f"driver {version}, untested: compared with {TESTED_DRIVERS}")
        return Status(True, f"driver {version or 'of unknown version'}")

    def from_export(self, fd: int) -> Memory:
        return _import(fd, 0, None)

    def from_pointer(self, ptr: int, nbytes: int, device: int, request: PinRequest) -> Memory:
        del request
        from gdrpy.backends import pointer

        found = pointer.allocation_range(ptr, nbytes)
        with Undo() as undo:
            fd = pointer.export_of(undo, ptr)
            if fd is not None:
                return _import(fd, ptr - found.base, nbytes)
        self._check_ipc(device)
        info = _parse_ipc(pointer.ipc_handle(ptr, device))
        problem = _implausible(info, found.nbytes)
        if problem:
            raise BackendUnavailable(f"nvrm cannot pin {ptr:#x}: {problem}")
        return _duplicate(info, device, ptr - found.base, nbytes)

    def _check_ipc(self, device: int) -> None:
        """Raise BackendUnavailable unless this driver's IPC handles are laid out as expected."""
        with self._lock:
            if device not in self._checked:
                self._checked[device] = _ipc_problem(device)
            problem = self._checked[device]
        if problem:
            raise BackendUnavailable(
                f"nvrm cannot pin cuMemAlloc pointers with NVIDIA driver {driver_version()}: "
                f"{problem}. Allocate by gdrpy.alloc() instead"
            )


def _implausible(info: Any, nbytes: int) -> str:
    """What in a parsed IPC handle cannot be right, or an empty string."""
    if info.pid != os.getpid():
        return f"its IPC handle names process {info.pid}, not this one ({os.getpid()})"
    if info.nbytes != nbytes:
        return f"its IPC handle says {info.nbytes} bytes, and CUDA {nbytes}"
    if info.block_offset + nbytes > info.block_nbytes:
        return (
            f"its IPC handle puts {nbytes} bytes at {info.block_offset} of a block of "
            f"{info.block_nbytes}"
        )
    return ""


#: Two scratch allocations, of sizes that share a block, each with its own pattern.
_SCRATCH = ((4096, 0x67647201), (8192, 0x67647202))


def _ipc_problem(device: int) -> str:
    """Fill scratch memory by CUDA and find it again through the handles; nothing is written."""
    from gdrpy import cuda
    from gdrpy.backends import pointer

    with Undo() as undo:
        for size, pattern in _SCRATCH:
            with cuda.context(device):
                ptr = cuda.call("cuMemAlloc", size)
                undo.callback(_free, device, ptr)
                cuda.call("cuMemsetD32", ptr, pattern, size // 4)
                cuda.call("cuCtxSynchronize")
            try:
                info = _parse_ipc(pointer.ipc_handle(int(ptr), device))
                problem = _implausible(info, size)
                if problem:
                    return f"in the self-check {problem}"
                memory = undo.keep(_duplicate(info, device, 0, size))
                with memory.map(0, size, True, None, None) as mapping:
                    seen = mapping.read()
            except DriverError as error:
                if not error.status:  # no verdict of the driver's on the handle
                    raise
                return f"the self-check failed: {error}"
            if seen != pattern.to_bytes(4, "little") * (size // 4):
                return "the self-check found other bytes behind the handle than CUDA put there"
    return ""


def _free(device: int, ptr: Any) -> None:
    from gdrpy import cuda

    with cuda.context(device):
        cuda.call("cuMemFree", ptr)
