"""The C core's calls for GPU memory, with their errors as exceptions."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from gdrpy._core import _ffi
from gdrpy._core._mapping import Undo
from gdrpy.errors import (
    BackendUnavailable,
    CudaError,
    DriverError,
    Error,
    InvalidHandle,
    OutOfMemory,
    PermissionDenied,
    Revoked,
    SizeMismatch,
)

ffi = _ffi.ffi
lib = _ffi.lib


def text(characters: Any) -> str:
    """The text of a C string."""
    return str(ffi.string(characters).decode(errors="replace"))


def call(function: Any, *args: Any) -> int:
    """Call a function whose last argument is an error to fill in; raises if it returns -1."""
    error = ffi.new("struct core_error *")
    answer: int = function(*args, error)
    if answer < 0:
        raise failure(error)
    return answer


def made(undo: Undo, function: Any, *args: Any) -> Any:
    """Call a function for a ``struct core_memory *`` that ``undo`` will release.

    Its first argument is the place for the pointer, its last one the error to fill in. Raises if it
    returns false. ``undo`` knows the place before the call, so the pointer is never lost.
    """
    place, error = ffi.new("struct core_memory **"), ffi.new("struct core_error *")
    undone = lib.core_release_from, (place, error), checker(error)
    if not undo.done(function, (place, *args, error), *undone):
        raise failure(error)
    return place[0]


def checker(error: Any) -> Callable[[int], None]:
    """A check that raises if a call that fills in ``error`` returns -1."""
    return functools.partial(_check, error)


def _check(error: Any, answer: int) -> None:
    if answer < 0:
        raise failure(error)


def call_failure(number: int, message: str) -> Error:
    """The exception for a call that failed with an errno, with the errno's meaning."""
    error = ffi.new("struct core_error *")
    lib.core_fail_call(error, number, 0, b"%s", ffi.new("char[]", message.encode()))
    return failure(error)


def failure_at(address: int) -> Error:
    """The exception for the ``struct core_error`` at an address."""
    return failure(ffi.cast("struct core_error *", address))


_KINDS: dict[int, type[Error]] = {
    lib.CORE_FAILED_MEMORY: OutOfMemory,
    lib.CORE_FAILED_UNAVAILABLE: BackendUnavailable,
    lib.CORE_FAILED_SIZE: SizeMismatch,
    lib.CORE_FAILED_REVOKED: Revoked,
}


def failure(error: Any) -> Error:
    """The exception for a ``struct core_error``."""
    message = text(error.message)
    if error.failure in _KINDS:
        return _KINDS[error.failure](message)
    if error.failure == lib.CORE_FAILED_HANDLE:
        return InvalidHandle(message, text(error.result) if error.result else "")
    if error.failure == lib.CORE_FAILED_PERMISSION:
        return PermissionDenied(error.number, message)
    if error.failure == lib.CORE_FAILED_CUDA:
        return CudaError(text(error.call), text(error.result), text(error.purpose))
    return DriverError(error.number, message, error.status)
