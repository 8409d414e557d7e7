"""What a backend says of itself: whether it can serve here."""

from __future__ import annotations

from dataclasses import dataclass

from gdrpy._core.calls import cuda_functions, ffi, lib, text
from gdrpy.common.resource import Undo
from gdrpy.errors import Error
from gdrpy.memory.node import Node


@dataclass(frozen=True)
class Status:
    """Whether a backend can serve here; if not, why, and what would change it."""

    usable: bool
    reason: str
    remedy: str = ""


class Backend:
    """One way to CPU-map GPU memory, of the C core's."""

    def __init__(self, name: str) -> None:
        self._backend = lib.gdr_backend_named(name.encode())
        self.name = name

    def status(self, device: int | None = None) -> Status:
        """Whether it can serve here (on this device). Never raises, and makes no CUDA context."""
        status = ffi.new("struct gdr_status *")
        with Undo() as undo:
            try:
                functions = ffi.NULL if device is None else cuda_functions()
            except (Error, ValueError) as error:
                return Status(False, str(error))
            try:
                node = undo.keep(Node()).struct
            except Error:  # the backend says it
                node = ffi.NULL
            self._backend.status(functions, -1 if device is None else device, node, status)
        return Status(bool(status.usable), text(status.reason), text(status.remedy))
