"""The backends, which map GPU memory for the CPU: their names, and whether each works here.

``GDRPY_BACKEND``, or ``backend=`` where a function takes it, forces one.
"""

import functools
import os
from typing import Any, NamedTuple

from gdrpy import cuda
from gdrpy._core._mapping import Undo
from gdrpy._core.calls import ffi, lib, text
from gdrpy.errors import BackendUnavailable, Error
from gdrpy.memory.node import Node


class Status(NamedTuple):
    """Whether a backend works here; if not, the reason and the remedy."""

    usable: bool
    reason: str
    remedy: str = ""


class Backend:
    """A backend of the C core."""

    def __init__(self, name: str) -> None:
        self._backend = lib.core_backend_named(name.encode())
        self.name = name

    def status(self, device: int | None = None) -> Status:
        """Whether it works here (on this device). Never raises, and makes no CUDA context."""
        status = ffi.new("struct core_status *")
        with Undo() as undo:
            try:
                functions = ffi.NULL if device is None else cuda_functions()
            except (Error, ValueError) as error:
                return Status(False, str(error))
            try:
                node = undo.keep(Node()).struct
            except Error:  # the backend reports it
                node = ffi.NULL
            self._backend.status(functions, -1 if device is None else device, node, status)
        return Status(bool(status.usable), text(status.reason), text(status.remedy))


#: Every backend by name, in the order of choice on a real GPU.
ALL = {name: Backend(name) for name in ("gdrdrv", "dmabuf", "nvrm", "sim")}


def forced(backend: str | None) -> str | None:
    """The backend that an argument or the environment forces. Raises ValueError."""
    name = backend or os.environ.get("GDRPY_BACKEND") or None
    if name is not None and name not in ALL:
        raise ValueError(f"there is no backend {name!r}: choose one of {', '.join(ALL)}")
    return name


def candidates() -> list[str]:
    """The backends that may be tried for this process's GPU memory, in the order of choice."""
    name = forced(None)
    if name:
        return [name]
    found = lib.core_candidates(cuda_functions())
    names = []
    while found[0]:
        names.append(text(found[0].name))
        found += 1
    return names


def cuda_functions() -> Any:
    """The CUDA driver's functions, for the C core. Raises the errors of cuda.driver()."""
    cuda.driver()
    return _found_functions()


@functools.cache
def _found_functions() -> Any:
    found = ffi.new("struct core_cuda *")
    if not lib.core_cuda_find(found):
        raise BackendUnavailable(
            "the CUDA driver lacks functions that gdrpy needs: install a newer one"
        )
    return found
