"""gdrpy's exceptions: one class for each failure that a caller can act on.

Every class is an :class:`Error` and also the builtin exception that fits, so that code that catches
``OSError``, ``MemoryError`` or ``ValueError`` keeps working. Wrong arguments raise plain
``ValueError`` or ``TypeError`` before the call has any effect.
"""

from __future__ import annotations

from errno import EADDRINUSE, ECONNREFUSED, ENODEV, ENXIO, EPERM, EPROTO
from typing import ClassVar


class Error(Exception):
    """The base class of gdrpy's errors."""


class _OneErrno(Error, OSError):
    """An OSError that always has the same errno."""

    _errno: ClassVar[int]

    def __init__(self, message: str) -> None:
        super().__init__(self._errno, message)

    def __str__(self) -> str:
        return str(self.strerror)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.strerror,)


class AddressInUse(_OneErrno):
    """CUDA does not give the GPU address that was asked for; the message tells what is there."""

    _errno = EADDRINUSE


class BackendUnavailable(_OneErrno):
    """No backend can serve the call; the message gives each backend's reason and remedy."""

    _errno = ENODEV


class BrokerUnavailable(_OneErrno, ConnectionError):
    """No broker answers at the socket."""

    _errno = ECONNREFUSED


class Closed(Error, ValueError):
    """The object was closed."""


class Forked(Error, RuntimeError):
    """The object belongs to the parent process and cannot be used in a forked child."""


class CudaError(Error, RuntimeError):
    """A CUDA driver call failed. ``name`` is the CUresult's name, ``call`` the function's."""

    def __init__(self, call: str, name: str, explanation: str) -> None:
        super().__init__(f"{call}: {name}: {explanation}")
        self.call = call
        self.name = name
        self.explanation = explanation

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.call, self.name, self.explanation)


class Detached(Error, ValueError):
    """The region is detached: it has its GPU addresses, but no memory until it is attached."""


class DriverError(Error, OSError):
    """The kernel driver refused a call. ``status`` is the driver's status code, 0 without one."""

    def __init__(self, errno: int, message: str, status: int = 0) -> None:
        super().__init__(errno, message)
        self.status = status

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.errno, self.strerror, self.status)


class InvalidHandle(Error, ValueError):
    """The file descriptor or pointer is not GPU memory that gdrpy can use.

    ``result`` is the name of CUDA's result, "" if CUDA was not called.
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
    """The device does not exist, this process does not see it, or no region has this name."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class Gone(NotFound):
    """The pickled region, its broker's state or its sender no longer exists."""


class OutOfMemory(Error, MemoryError):
    """GPU memory, the BAR that maps it, or host memory is used up."""


class QuotaExceeded(OutOfMemory):
    """The broker's limit for a user or a device leaves no room."""


class TooLarge(QuotaExceeded):
    """The region alone is larger than the broker's limit: there will be no room for it."""


class PermissionDenied(Error, PermissionError):
    """The process may not open the device, or its user may not use the region this way.

    ``missing`` is the right to a broker's region that the user lacks: "read", "write", "read and
    write" or "own"; "" in other refusals. ``region`` is the region's name, None without one.
    """

    def __init__(self, *args: object, missing: str = "", region: str | None = None) -> None:
        super().__init__(*args)
        self.missing = missing
        self.region = region


class ProtocolError(_OneErrno, ConnectionError):
    """The peer does not speak the broker's protocol, or speaks another version of it."""

    _errno = EPROTO


class ReadOnly(Error, TypeError):
    """A store to a mapping or a region that was opened read-only."""


class Revoked(_OneErrno):
    """The owner freed the GPU memory behind a pin."""

    _errno = ENXIO


class Sealed(_OneErrno, PermissionError):
    """The region is sealed: it can no longer be written."""

    _errno = EPERM


class SizeMismatch(Error, ValueError):
    """The size or the layout given and that of the memory disagree."""


class Timeout(Error, TimeoutError):
    """The call did not finish in time."""


class StillInUse(RuntimeWarning):
    """A ``with`` block ended while views of its object are in use: the object is closed, and its
    memory is released with the last view.
    """


class UntestedDriver(UserWarning):
    """The NVIDIA driver's version is outside the range that gdrpy was checked against."""
