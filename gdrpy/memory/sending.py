"""Sending memory to another process by multiprocessing, which sends its file descriptor.

Only multiprocessing's pickler can send descriptors.
"""

from __future__ import annotations

import os
from errno import EACCES, EMFILE
from multiprocessing import AuthenticationError
from multiprocessing.context import get_spawning_popen
from multiprocessing.reduction import DupFd, ForkingPickler
from typing import Any
from weakref import ref

from gdrpy._core._mapping import Descriptor, Undo, lend_private, take_back_private
from gdrpy.common.resource import Owner
from gdrpy.errors import BackendUnavailable, Gone, MissingView, PermissionDenied
from gdrpy.memory.choice import open_export
from gdrpy.memory.file import MemoryFile
from gdrpy.memory.gpu import GpuMemory
from gdrpy.memory.memory import Memory
from gdrpy.memory.view import Mapping, Travel

#: The call that errors of a receiver name.
CALL = "receiving a Region"


class Received(Owner):
    """A received descriptor, closed when its memory has been opened or could not be.

    ``gpu`` says whether the memory had a GPU view in the sender.
    """

    def __init__(self, fd: int, gpu: bool) -> None:
        undo = Undo()
        self._fd = undo.keep(Descriptor(fd))
        super().__init__()
        self._undo = undo
        self.gpu = gpu

    @property
    def fd(self) -> int:
        """The descriptor's number; this object keeps owning it."""
        return self._fd.fileno()

    def map(self, offset: int, nbytes: int, *, readonly: bool) -> Mapping:
        """A mapping of the memory; only the mapping keeps the memory alive."""
        memory = open_export(CALL, self.fd, gpu=self.gpu, readonly=readonly)
        mapping = memory.map(offset, nbytes, readonly)
        mapping._travel = travel(None, memory, offset)
        return mapping


def travel(view: ref[Any] | None, memory: object, offset: int) -> Travel:
    """How to pickle a mapping that begins at byte ``offset``: as a part of its region.

    ``view`` refers to the region. If it is None or the region is gone, the mapping is pickled as a
    part of ``memory``: a Memory, a Received or a lease.
    """
    return _reduce_mapping, view, memory, offset


def _reduce_mapping(
    view: ref[Any] | None, memory: object, offset: int, mapping: Mapping
) -> tuple[Any, ...]:
    region = None if view is None else view()
    if region is not None and region._cpu is mapping:
        return getattr, (region, "cpu")
    whole = memory if region is None else region
    return map_part, (whole, offset, mapping.nbytes, mapping.readonly)


def map_part(whole: Any, offset: int, nbytes: int, readonly: bool) -> Mapping:
    """A mapping of a region or of received memory."""
    mapping: Mapping = received(whole).map(offset, nbytes, readonly=readonly)
    return mapping


def received(whole: Any) -> Any:
    """``whole`` itself. Raises TypeError if copy.copy() passed a Memory without pickling it."""
    if isinstance(whole, Memory):
        whole.__reduce__()
    return whole


def _send(memory: Memory) -> tuple[Any, ...]:
    try:
        fd = memory.fd
    except (BackendUnavailable, MissingView) as error:
        raise TypeError(f"multiprocessing cannot send this memory: {error}") from error
    if get_spawning_popen() is not None:  # the child inherits it, maybe by a fork
        lend_private(fd)
    try:
        return _receive, (DupFd(fd), memory.has_gpu_view)
    except OSError as error:
        if error.errno != EMFILE:
            raise
        raise OSError(
            EMFILE,
            "sending memory: this process may open no more files, and each message that was not "
            "received takes some: have them received, or raise the limit (ulimit -n)",
        ) from error


def _receive(sent: Any, gpu: bool) -> Received:
    try:
        return Received(sent.detach(), gpu)
    except AuthenticationError:
        raise PermissionDenied(
            EACCES,
            f"{CALL}: the sender has another authkey: give both processes the same one, by "
            f"multiprocessing.current_process().authkey = b'...', before the first is sent",
        ) from None
    except PermissionError:
        raise PermissionDenied(
            EACCES,
            f"{CALL}: the sender runs as another user: share a region of a broker with that user, "
            f"by its name and mode",
        ) from None
    except (OSError, EOFError) as error:
        raise Gone(
            f"{CALL}: the sender has ended, or another process has received it already "
            f"({error!r}): keep the sender until the region has arrived, and send it to each "
            f"receiver separately"
        ) from error


# Python calls this before os.fork(), but not before a fork that starts a program.
os.register_at_fork(before=take_back_private)

for _kind in (MemoryFile, GpuMemory):
    ForkingPickler.register(_kind, _send)
