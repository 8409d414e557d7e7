"""The simulated CUDA driver: a ``libcuda.so.1`` whose GPUs are made of memory files.

If it is loaded before anything else loads ``libcuda.so.1``, ``cuda.bindings`` (or any other
program, by ``LD_PRELOAD``) uses it as the driver. :func:`load` checks these variables of the
environment, ``cuInit`` reads them:

========================= ======================================================================
``GDRPY_SIM_DEVICES``     how many devices, 1 to 16; default 1
``GDRPY_SIM_MEMORY``      bytes of each, with an optional suffix K, M, G or T; default ``16G``
``GDRPY_SIM_FABRIC``      fabric handles: ``0`` (default) none, ``1`` valid on this machine,
                          ``no-channel`` as on a machine without a usable IMEX channel
``GDRPY_SIM_PEERS``       whether devices reach each other's memory: ``1`` (default), ``0``
``GDRPY_SIM_FAULT``       calls that fail, as in :func:`fault`
========================= ======================================================================
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ctypes

__all__ = ["BadEnvironment", "call_count", "fault", "library", "load", "loaded", "on_bar"]

SONAME = "libcuda.so.1"

_SHIFTS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}
_GRANULARITY = 2 << 20
_MAX_MEMORY = 1 << 46
_MAX_DEVICES = 16


class BadEnvironment(ValueError):
    """A ``GDRPY_SIM_...`` variable has a value that the simulated driver refuses."""


def driver_path() -> str:
    """The path of the simulated driver, whether or not it was built."""
    return os.path.join(os.path.dirname(__file__), SONAME)


def _present() -> ctypes.CDLL | None:
    """The ``libcuda.so.1`` of this process, simulated or real; None without one."""
    import ctypes

    try:
        return ctypes.CDLL(SONAME, mode=os.RTLD_NOLOAD)
    except OSError:
        return None


def loaded() -> bool:
    """Whether the ``libcuda.so.1`` of this process is the simulated driver."""
    return hasattr(_present(), "gdrsim_set_fault")


def load() -> None:
    """Make the simulated driver this process's ``libcuda.so.1``. May be called again.

    Raises:
        BadEnvironment: a variable of the table above is malformed.
        RuntimeError: a real driver is loaded already, or this one was not built.
    """
    import ctypes

    present = _present()
    if present is not None and not hasattr(present, "gdrsim_set_fault"):
        raise RuntimeError(
            f"another {SONAME} is loaded in this process already; load the simulated GPU "
            f"(GDRPY_SIM=1) before anything uses CUDA"
        )
    if present is not None:
        return
    if not os.path.exists(driver_path()):
        raise RuntimeError(
            f"the simulated GPU was not built: there is no {driver_path()}; "
            f"build gdrpy with a C compiler (pip install .)"
        )
    _check_values()
    # RTLD_GLOBAL, or cuda.bindings, which loads it by name, would not use this one.
    ctypes.CDLL(driver_path(), mode=ctypes.RTLD_GLOBAL)
    _check_faults()


def _check_values() -> None:
    memory = os.environ.get("GDRPY_SIM_MEMORY")
    if memory is not None:
        found = re.fullmatch("([0-9]+)([KMGT]?)", memory)
        nbytes = int(found[1]) << _SHIFTS[found[2]] if found else 0
        if not 0 < nbytes <= _MAX_MEMORY or nbytes % _GRANULARITY:
            raise BadEnvironment(
                f"GDRPY_SIM_MEMORY={memory!r} is not a multiple of 2M up to 64T: a number, then "
                f"K, M, G, T or nothing"
            )
    devices = os.environ.get("GDRPY_SIM_DEVICES")
    if devices is not None and not (
        re.fullmatch("[0-9]+", devices) and 1 <= int(devices) <= _MAX_DEVICES
    ):
        raise BadEnvironment(
            f"GDRPY_SIM_DEVICES={devices!r} is not a number from 1 to {_MAX_DEVICES}"
        )
    fabric = os.environ.get("GDRPY_SIM_FABRIC")
    if fabric not in (None, "0", "1", "no-channel"):
        raise BadEnvironment(f"GDRPY_SIM_FABRIC={fabric!r} is not 0, 1 or no-channel")
    peers = os.environ.get("GDRPY_SIM_PEERS")
    if peers not in (None, "0", "1"):
        raise BadEnvironment(f"GDRPY_SIM_PEERS={peers!r} is not 0 or 1")


def _check_faults() -> None:
    """Have the driver check the faults, since it knows its functions; cuInit sets them later."""
    spec = os.environ.get("GDRPY_SIM_FAULT")
    if spec is None:
        return
    if _functions().gdrsim_set_fault(os.fsencode(spec)) != 0:
        raise BadEnvironment(
            f"GDRPY_SIM_FAULT={spec!r} is not a list of FUNCTION:CALL or FUNCTION:CALL:CURESULT "
            f"of known functions"
        )
    _functions().gdrsim_set_fault(b"")


@functools.cache
def _functions() -> ctypes.CDLL:
    import ctypes

    present = _present()
    if present is None or not hasattr(present, "gdrsim_set_fault"):
        raise RuntimeError("the simulated GPU is not in use in this process")
    present.gdrsim_set_fault.argtypes = [ctypes.c_char_p]
    present.gdrsim_call_count.argtypes = [ctypes.c_char_p]
    present.gdrsim_call_count.restype = ctypes.c_uint64
    return present


@contextmanager
def fault(spec: str) -> Iterator[None]:
    """Make driver calls fail: ``"cuMemCreate:3"`` fails the third ``cuMemCreate`` from here on.

    ``"cuMemMap:1:719,cuMemUnmap:2"`` sets two faults, the first with a ``CUresult``; the default is
    2 (``CUDA_ERROR_OUT_OF_MEMORY``). Each fault happens once; the failing call has no effect.
    Leaving the context clears faults that have not happened. The whole process shares one set of
    faults, so this does not nest.

    Raises:
        ValueError: the text is malformed, or names a function that the simulation lacks.
        RuntimeError: this process does not use the simulated GPU.
    """
    if _functions().gdrsim_set_fault(spec.encode()) != 0:
        raise ValueError(f"{spec!r} is not a list of FUNCTION:CALL or FUNCTION:CALL:CURESULT")
    try:
        yield
    finally:
        _functions().gdrsim_set_fault(b"")


def on_bar() -> bool:
    """Whether the memory lies on a PCI BAR, so that a kernel module can pin it.

    Raises:
        RuntimeError: this process does not use the simulated GPU.
    """
    return bool(_functions().gdrsim_on_bar())


def call_count(function: str) -> int:
    """The number of calls of a driver function by this process, failed calls included.

    The function is named without a version suffix: ``cuMemAlloc``, not ``cuMemAlloc_v2``.

    Raises:
        ValueError: the simulation has no such function.
        RuntimeError: this process does not use the simulated GPU.
    """
    count: int = _functions().gdrsim_call_count(function.encode())
    if count == 2**64 - 1:
        raise ValueError(f"the simulated GPU has no function {function!r}")
    return count
