"""The memory of regions, allocated without a CUDA context."""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Generator

from gdrpy.broker.protocol import CPU_DEVICE
from gdrpy.errors import OutOfMemory
from gdrpy.memory import file, vmm
from gdrpy.memory.choice import open_export


def host_bytes() -> int:
    """Bytes of the host's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def rounded(nbytes: int, device: int) -> int:
    """The bytes allocated for a region of ``nbytes`` on a device."""
    if device == CPU_DEVICE:
        return file.rounded_size(nbytes)
    return vmm.rounded(nbytes, device)


def make(size: int, device: int) -> int:
    """A descriptor of new memory of a rounded size; the caller closes it.

    Raises OutOfMemory, CudaError, OSError.
    """
    if device == CPU_DEVICE:
        return file.create_export(size)
    return vmm.create_export(size, device)


def readonly(fd: int) -> int | None:
    """A read-only descriptor of the same memory; None if the memory cannot have one.

    Only memory files have one: every descriptor of a real GPU's memory is writable. Raises
    OutOfMemory if the descriptors are used up.
    """
    try:
        fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError:  # not a memory file
        return None
    try:
        return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise OutOfMemory(
            f"the broker cannot open its memory for reading ({error.strerror})"
        ) from error


def digest(fd: int, nbytes: int, buffer: bytearray) -> Generator[None, None, str]:
    """The SHA-256 of the first bytes, in hex, made in steps of the buffer's size.

    Raises Error.
    """
    checksum = hashlib.sha256()
    memory = open_export("digest", fd, gpu=False)
    try:
        for start in range(0, nbytes, len(buffer)):
            size = min(len(buffer), nbytes - start)
            with memory.map(start, size, True) as mapping, memoryview(buffer) as view:
                mapping.readinto(view[:size], 0)
                checksum.update(view[:size])
            yield
    finally:
        memory.close()
    return checksum.hexdigest()
