"""What can go wrong, one class for each thing that a caller can act on.

Every class is a :class:`Error` and also the builtin exception that fits, so that code which already
catches ``OSError``, ``MemoryError`` or ``ValueError`` keeps working. Wrong arguments raise plain
``ValueError`` or ``TypeError`` before anything is touched.
"""

from __future__ import annotations

from errno import ECONNREFUSED, ENODEV, ENXIO, EPERM, EPROTO
from typing import ClassVar


class Error(Exception):
    """Base of every error that gdrpy raises on its own account."""


class _OneErrno(Error, OSError):
    """An OSError that always has the same errno."""

    _errno: ClassVar[int]

    def __init__(self, message: str) -> None:
        super().__init__(self._errno, message)

    def __str__(self) -> str:
        return str(self.strerror)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.strerror,)


class BackendUnavailable(_OneErrno):
    """No backend can do what was asked; the message gives each one's reason and the remedy."""

    _errno = ENODEV


class BrokerUnavailable(_OneErrno, ConnectionError):
    """No broker answers at the socket."""

    _errno = ECONNREFUSED


class Closed(Error, ValueError):
    """The object was closed."""


class Forked(Error, RuntimeError):
    """The object belongs to the parent process and cannot be used in a forked child."""


class CudaError(Error, RuntimeError):
    """A CUDA driver call failed. ``name`` is the CUresult's, ``call`` the function's."""

    def __init__(self, call: str, name: str, explanation: str) -> None:
        super().__init__(f"{call}: {name}: {explanation}")
        self.call = call
        self.name = name
        self.explanation = explanation

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.call, self.name, self.explanation)


class DriverError(Error, OSError):
    """The kernel driver refused a call. ``status`` is its own code, 0 if it gave none."""

    def __init__(self, errno: int, message: str, status: int = 0) -> None:
        super().__init__(errno, message)
        self.status = status

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.errno, self.strerror, self.status)


class InvalidHandle(Error, ValueError):
    """The file descriptor or pointer is not GPU memory that can be taken in.

    ``result`` names what CUDA answered, "" where it was not asked.
    """

    def __init__(self, message: str, result: str = "") -> None:
        super().__init__(message)
        self.result = result

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (*self.args, self.result)


class InvalidRequest(Error, ValueError):
    """The broker does not understand the request, or its values contradict each other."""


class MissingView(Error, ValueError):
    """The region was opened without the view that the call needs."""


class NotFound(Error, KeyError):
    """There is no such device, this process does not see it, or no region has this name."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class Gone(NotFound):
    """What a pickle stands for is no more: the region, its broker's state, or the sender."""


class OutOfMemory(Error, MemoryError):
    """GPU memory, or the BAR that maps it, is used up."""


class QuotaExceeded(OutOfMemory):
    """A limit that the broker sets for a user or a device leaves no room."""


class PermissionDenied(Error, PermissionError):
    """The process may not open the device, or its user not use the region so."""


class ProtocolError(_OneErrno, ConnectionError):
    """The other end of the connection does not speak the broker's protocol, or another version."""

    _errno = EPROTO


class ReadOnly(Error, TypeError):
    """A store to a mapping or a region that was opened read-only."""


class Revoked(_OneErrno):
    """The GPU memory behind a pin was freed by its owner."""

    _errno = ENXIO


class Sealed(_OneErrno, PermissionError):
    """The region was sealed: nothing writes it any more."""

    _errno = EPERM


class SizeMismatch(Error, ValueError):
    """The size given and the size of the memory disagree."""


class Timeout(Error, TimeoutError):
    """What was waited for did not happen in time."""


class UntestedDriver(UserWarning):
    """The NVIDIA driver's version lies outside the range that gdrpy was compared with."""
