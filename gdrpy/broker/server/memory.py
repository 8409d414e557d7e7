"""The memory of regions, allocated without a CUDA context."""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
from collections.abc import Generator
from contextlib import closing
from mmap import mmap

from gdrpy.broker.protocol import CPU_DEVICE
from gdrpy.broker.server.throttle import Throttle
from gdrpy.errors import Error, OutOfMemory
from gdrpy.memory import file, vmm
from gdrpy.memory.choice import open_export
from gdrpy.memory.file import MemoryFile
from gdrpy.region import Region

log = logging.getLogger(__name__)
log.addFilter(Throttle())


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


def digest(fd: int, nbytes: int, buffer: bytearray | mmap) -> Generator[None, None, str]:
    """The SHA-256 of the first bytes, in hex, made in steps of the buffer's size.

    The copy engine reads GPU memory. After its first failure, the rest is read through mappings of
    the steps. Raises Error.
    """
    checksum = hashlib.sha256()
    memory = open_export("digest", fd, gpu=False)
    by_engine = not isinstance(memory, MemoryFile)
    with closing(Region._of(memory, nbytes, cpu=False, readonly=True)) as region:
        for start in range(0, nbytes, len(buffer)):
            with memoryview(buffer)[: nbytes - start] as step:
                by_engine = by_engine and _read_by_engine(region, start, step)
                if not by_engine:
                    with region.map(start, len(step), readonly=True) as mapping:
                        mapping.readinto(step)
                checksum.update(step)
            yield
    return checksum.hexdigest()


def _read_by_engine(region: Region, start: int, step: memoryview) -> bool:
    try:
        region.readinto(step, start, via="engine")
    except Error as error:
        log.info("a digest reads GPU memory through a mapping, which is slower: %s", error)
        return False
    return True
