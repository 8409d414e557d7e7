"""Memory that is a sealed memory file: of the simulated GPU, or of the host."""

from __future__ import annotations

import errno

from gdrpy._core._mapping import take_memfd
from gdrpy.backends import host
from gdrpy.backends.memory import Memory
from gdrpy.errors import Error, InvalidHandle, PermissionDenied
from gdrpy.mapping import Mapping

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gdrpy._core._mapping import Descriptor

#: What the backend of a simulated GPU's memory is called.
SIMULATED = "sim"


def simulated_location(device: int) -> str:
    """On which GPU simulated memory lies, in words."""
    return f"simulated GPU {device}"


class Memfd(Memory):
    """A memory file that nobody can resize, and its descriptor, which it owns.

    It is an allocation without GPU view, and the memory to be mapped, in one. Its mappings need it
    no more: the kernel keeps the pages. They keep ``source`` alive.
    """

    ptr: int | None = None
    device: int | None = None
    devices: tuple[int, ...] = ()

    def __init__(self, fd: Descriptor, size: int, backend: str, location: str) -> None:
        """As take_memfd() gives them; ``fd`` is its own from here on."""
        super().__init__(None, size, backend, location)
        self._fd = fd
        self.size = size

    @classmethod
    def of_fd(cls, fd: int, backend: str, location: str) -> Memfd:
        """Take in a descriptor, which stays the caller's. Raises InvalidHandle."""
        taken = take_memfd(fd)
        if taken is None:
            raise InvalidHandle(
                f"file descriptor {fd} bears the name of {location} but is empty, can be "
                f"resized or is of huge pages: pass one that Region.export() gave"
            )
        return cls(*taken, backend, location)

    @property
    def fd(self) -> int:
        """Its descriptor, closed with it: duplicate it to keep it."""
        self._check("Memfd.fd")
        return self._fd.fileno()

    @property
    def on_host(self) -> bool:
        """Whether it lies on no GPU."""
        return self.backend == host.NAME

    def map(
        self, offset: int, nbytes: int, readonly: bool, ptr: int | None, device: int | None
    ) -> Mapping:
        """As :meth:`Memory.map`. Raises PermissionDenied where it may only be read."""
        try:
            return Mapping._of_memfd(
                self._fd.fileno(), offset, nbytes, readonly, self.source, self.backend, ptr, device
            )
        except OSError as error:
            raise mapping_error(error, self.location, nbytes, offset) from None

    def _give_back(self) -> None:
        self._fd.close()


def mapping_error(error: OSError, location: str, nbytes: int, offset: int) -> Error:
    """What it means that a range of a memory file cannot be mapped."""
    if error.errno in (errno.EACCES, errno.EPERM):
        return PermissionDenied(
            error.errno,
            f"the descriptor of {location} is open for reading only: open it with gpu=False, "
            f"readonly=True",
        )
    from gdrpy.backends.core import call_failure

    return call_failure(error.errno or 0, f"mapping {nbytes} bytes at offset {offset}: mmap")
