"""All calls to CUDA: ``cuda.bindings`` on the real driver or on the simulated one.

``GDRPY_SIM=1`` selects the simulated driver, ``GDRPY_SIM=0`` the real one. By default the real one
is used if the NVIDIA kernel driver and its ``libcuda.so.1`` are found.
"""

import errno
import functools
import operator
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from gdrpy import sim
from gdrpy._core._mapping import Undo, fork_generation
from gdrpy.common.arguments import as_device, pci_name
from gdrpy.errors import BackendUnavailable, CudaError, Forked, NotFound, OutOfMemory

#: The kernel side of a driver: the NVIDIA module's node, or the one of WSL.
_KERNEL_NODES = ("/dev/nvidiactl", "/dev/dxg")


def simulated() -> bool:
    """Whether CUDA calls of this process go to the simulated GPU."""
    driver()
    return _simulated()


#: Asking the loader takes longer than all else that an export of an array does.
_simulated = functools.cache(sim.loaded)


@functools.cache
def location(ordinal: int) -> str:
    """A GPU in words: its PCI address, or the simulated GPU's number."""
    return f"simulated GPU {ordinal}" if simulated() else pci_name(*pci_address(ordinal))


def _is_served(node: str) -> bool:
    """Whether a driver is behind a node, which may outlive the driver that made it."""
    try:
        os.close(os.open(node, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return error.errno not in (errno.ENOENT, errno.ENXIO)
    return True


def _want_simulated() -> bool:
    import ctypes

    choice = os.environ.get("GDRPY_SIM", "")
    if choice not in ("", "0", "1"):
        raise ValueError(f"GDRPY_SIM must be 0 or 1, not {choice!r}")
    if choice:
        return choice == "1"
    if sim.loaded():
        return True
    if not any(map(_is_served, _KERNEL_NODES)):
        return True
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        warnings.warn(
            f"an NVIDIA kernel driver runs here, but its libcuda.so.1 does not load ({error}); "
            f"using the simulated GPU. Put libcuda's folder on LD_LIBRARY_PATH to use the real one",
            RuntimeWarning,
            stacklevel=2,
        )
        return True
    return False


#: Advice for errors of cuInit, whose own text ("unknown error") does not help.
_ADVICE = {
    "CUDA_ERROR_UNKNOWN": "the driver is loaded but starts no GPU: check nvidia-smi, the lines "
    "with NVRM in dmesg, and whether /dev/nvidia-uvm exists (sudo nvidia-modprobe -u)",
    "CUDA_ERROR_NO_DEVICE": "check CUDA_VISIBLE_DEVICES, and whether nvidia-smi lists a GPU; host "
    'memory needs none: device="cpu"',
    "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH": "libcuda.so.1 and the NVIDIA kernel driver belong to "
    "different releases: reboot after an upgrade; in a container, use the host's libcuda",
    "CUDA_ERROR_SYSTEM_NOT_READY": "check whether nvidia-fabricmanager is running",
}


def _advice(name: str) -> str:
    return f"; {_ADVICE[name]}" if name in _ADVICE else ""


def _load() -> Any:
    """``cuda.bindings.driver``, initialized."""
    if _want_simulated():
        sim.load()
    from cuda.bindings import driver

    try:
        (result,) = driver.cuInit(0)
    except RuntimeError:  # cuda.pathfinder found no libcuda
        raise BackendUnavailable(
            "CUDA cannot be loaded: there is no libcuda.so.1. Install the NVIDIA driver, put its "
            "libraries on LD_LIBRARY_PATH, or unset GDRPY_SIM to run on the simulated GPU; host "
            'memory needs no GPU: device="cpu"',
        ) from None
    if result != driver.CUresult.CUDA_SUCCESS:
        raise CudaError("cuInit", result.name, _explain(driver, result) + _advice(result.name))
    return driver


_lock = threading.Lock()
_driver: Any = None
#: The fork generation of the process that initialized CUDA; None before.
_generation: int | None = None


def _renew_lock() -> None:
    """Renew the lock in a forked child: the thread that held it may be gone."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


def driver() -> Any:
    """The initialized module ``cuda.bindings.driver``.

    Raises BackendUnavailable, CudaError, and Forked in a child of the process that initialized
    CUDA.
    """
    if _driver is None or _generation != fork_generation():
        _initialize()
    return _driver


def _initialize() -> None:
    global _driver, _generation
    if _generation is not None and _generation != fork_generation():
        raise Forked(
            "CUDA was initialized before this process was forked and cannot be used in it; start "
            "processes that use the GPU by multiprocessing's 'spawn' or 'forkserver' method"
        )
    with _lock:
        if _driver is None:
            _generation = fork_generation()
            try:
                _driver = _load()
            except BaseException:
                _generation = None
                raise


def _explain(driver: Any, result: Any) -> str:
    _, text = driver.cuGetErrorString(result)
    return text.decode() if text else "unknown error"


def call(name: str, *args: Any) -> Any:
    """Call a driver function and return its outputs: None, one, or a tuple.

    Raises OutOfMemory or CudaError.
    """
    result, *outputs = getattr(driver(), name)(*args)
    if result:
        check(name, result)
    if len(outputs) > 1:
        return tuple(outputs)
    return outputs[0] if outputs else None


def made(undo: Undo, name: str, *args: Any, by: str, also: tuple[Any, ...] = ()) -> Any:
    """Like :func:`call`; ``undo`` later calls ``by`` with the output and then ``also``.

    No signal handler runs between the call and its registration.
    """
    return _made(undo.made, name, args, by, also)


def done(undo: Undo, name: str, *args: Any, by: str, also: tuple[Any, ...]) -> None:
    """Like :func:`made`, for a function without output.

    cuda.bindings runs Python code after such a call, where a signal handler may raise.
    """
    _made(undo.done, name, args, by, also)


def _made(make: Any, name: str, args: tuple[Any, ...], by: str, also: tuple[Any, ...]) -> Any:
    functions = driver()
    answer = make(getattr(functions, name), args, getattr(functions, by), also, _checks(by))
    if answer[0]:
        check(name, answer[0])
    return answer[1] if len(answer) > 1 else None


@functools.cache
def _checks(name: str) -> Callable[[tuple[Any, ...]], None]:
    """A function that raises unless the answer of driver function ``name`` is success."""
    return functools.partial(_check_answer, name)


def _check_answer(name: str, answer: tuple[Any, ...]) -> None:
    if answer[0]:
        check(name, answer[0])


def check(name: str, result: int) -> None:
    """Raise OutOfMemory or CudaError unless the result of a driver function is success."""
    module = driver()
    answer = module.CUresult(result)
    if answer == module.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
        if name == "cuMemHostAlloc":
            raise OutOfMemory(f"{name}: the host has no more memory to page-lock: free some of it")
        raise OutOfMemory(f"{name}: the GPU is out of memory")
    if answer == module.CUresult.CUDA_ERROR_INVALID_CONTEXT:
        why = "no CUDA context is current in this thread: call it in `with gdrpy.cuda.context(0):`"
        raise CudaError(name, answer.name, why)
    if answer != module.CUresult.CUDA_SUCCESS:
        raise CudaError(name, answer.name, _explain(module, answer))


def device_count() -> int:
    """The number of CUDA devices."""
    return int(call("cuDeviceGetCount"))


def device(name: Any) -> Any:
    """The CUdevice of a GPU, named as for :func:`gdrpy.alloc`. Raises NotFound."""
    return call("cuDeviceGet", ordinal("device", name))


@functools.cache
def _require(call: str, ordinal: int) -> None:
    """Raise NotFound if no device has the ordinal. Success is cached."""
    count = device_count()
    if not 0 <= ordinal < count:
        raise NotFound(
            f"{call}: there is no CUDA device {ordinal}: this process sees {count}, numbered from "
            f"0: name one of them, or check CUDA_VISIBLE_DEVICES and the GPUs given to the "
            f"container"
        )


def ordinal(call: str, device: Any) -> int:
    """The ordinal of a GPU that the caller names as as_device() says; "cuda" is the current one.

    Raises TypeError, ValueError, NotFound.
    """
    named = as_device(call, device)
    if named == "cuda":
        named = _current()
    elif isinstance(named, str) and named.startswith("cuda:"):
        named = int(named.removeprefix("cuda:"))
    if isinstance(named, int):
        _require(call, named)
        return named
    seen = [(uuid(number), pci_name(*pci_address(number))) for number in range(device_count())]
    for number, names in enumerate(seen):
        if named in names:
            return number
    known = "; ".join(f"{number}: {' at '.join(names)}" for number, names in enumerate(seen))
    raise NotFound(
        f"{call}: there is no GPU {named} among those that this process sees ({known}): check "
        f"CUDA_VISIBLE_DEVICES and the GPUs given to the container"
    )


def _current() -> int:
    """The ordinal of this thread's current device; 0 before one is chosen, as in torch."""
    return int(call("cuCtxGetDevice")) if int(call("cuCtxGetCurrent")) else 0


def viewer(call: str, device: Any, gpu: bool) -> int | None:
    """The ordinal of the GPU for a GPU view; None for the GPU that the memory lies on.

    Raises TypeError, ValueError, NotFound.
    """
    if device is None:
        return None
    if not gpu:
        raise ValueError(
            f"{call}: device={device!r} chooses the GPU of the GPU view, which gpu=False leaves out"
        )
    return ordinal(call, device)


def uuid(ordinal: int) -> str:
    """A device's UUID, as nvidia-smi writes it."""
    digits = bytes(call("cuDeviceGetUuid", device(ordinal)).bytes).hex()
    return "GPU-" + "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def attribute(ordinal: int, name: str) -> int:
    """A device attribute by its name without the common prefix; 0 where the driver lacks it."""
    key = getattr(driver().CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}", None)
    if key is None:
        return 0
    try:
        return int(call("cuDeviceGetAttribute", key, device(ordinal)))
    except CudaError:
        return 0


class DeviceInfo(NamedTuple):
    """A device. ``memory`` and ``bar1`` are in bytes; ``bar1`` is None where it is unknown."""

    ordinal: int
    name: str
    simulated: bool
    uuid: str
    pci: str
    memory: int
    bar1: int | None
    compute_capability: tuple[int, int]


def pci_address(ordinal: int) -> tuple[int, int, int]:
    """PCI domain, bus and slot of a device."""
    return (
        attribute(ordinal, "PCI_DOMAIN_ID"),
        attribute(ordinal, "PCI_BUS_ID"),
        attribute(ordinal, "PCI_DEVICE_ID"),
    )


def bar1_size(pci: str) -> int | None:
    """Bytes of the BAR that maps GPU memory, from sysfs; None if sysfs does not show it.

    It is the device's second region, but not always on the second line: a 64-bit BAR before it
    takes two lines.
    """
    try:
        with open(f"/sys/bus/pci/devices/{pci}/resource") as file:
            lines = file.read().splitlines()
    except OSError:
        return None
    ends = [[int(word, 16) for word in line.split()[:2]] for line in lines]
    sizes = [last - first + 1 for first, last in ends if last]
    return sizes[1] if len(sizes) > 1 else None


def device_info(device: Any) -> DeviceInfo:
    """Describe a GPU, named as for :func:`gdrpy.alloc`. Raises NotFound."""
    number = ordinal("device_info", device)
    handle = call("cuDeviceGet", number)
    pci = pci_name(*pci_address(number))
    name = call("cuDeviceGetName", 128, handle)
    return DeviceInfo(
        ordinal=number,
        name=name.split(b"\0")[0].decode(),
        simulated=simulated(),
        uuid=uuid(number),
        pci=pci,
        memory=int(call("cuDeviceTotalMem", handle)),
        bar1=None if simulated() else bar1_size(pci),
        compute_capability=(
            attribute(number, "COMPUTE_CAPABILITY_MAJOR"),
            attribute(number, "COMPUTE_CAPABILITY_MINOR"),
        ),
    )


@functools.cache
def primary_context(ordinal: int) -> Any:
    """The device's primary context, shared with other libraries; retained until exit."""
    return call("cuDevicePrimaryCtxRetain", device(ordinal))


def has_context(ordinal: int) -> bool:
    """Whether the device's primary context exists, whichever library made it."""
    _, active = call("cuDevicePrimaryCtxGetState", device(ordinal))
    return bool(active)


@contextmanager
def context(device: Any) -> Iterator[None]:
    """Run CUDA calls in a GPU's primary context, and leave the caller's as it was.

    The GPU is named as for :func:`gdrpy.alloc`. Raises NotFound.
    """
    wanted = primary_context(device if type(device) is int else ordinal("context", device))
    if int(call("cuCtxGetCurrent")) == int(wanted):
        yield
        return
    call("cuCtxPushCurrent", wanted)
    try:
        yield
    finally:
        call("cuCtxPopCurrent")


@contextmanager
def relaxed() -> Iterator[None]:
    """Let this thread do what CUDA takes for unsafe while another stream is captured.

    Outside of the block a question about an event or a stream, and the making or freeing of
    page-locked memory, are refused during a capture in mode "global", and invalidate it.
    """
    wanted = driver().CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    before = call("cuThreadExchangeStreamCaptureMode", wanted)
    try:
        yield
    finally:
        call("cuThreadExchangeStreamCaptureMode", before)


def stream_handle(stream: Any) -> Any:
    """The CUstream behind an integer, a CUstream, or a stream of torch, cupy, numba, cuda.core.

    Raises TypeError.
    """
    handle = stream
    if stream is None:
        handle = 0
    elif hasattr(stream, "__cuda_stream__"):
        _, handle = stream.__cuda_stream__()
    else:
        for name in ("cuda_stream", "ptr", "handle"):
            handle = getattr(handle, name, handle)
    handle = getattr(handle, "value", handle)  # of a ctypes pointer
    if isinstance(handle, driver().CUstream):
        return handle
    try:
        return driver().CUstream(operator.index(handle))
    except TypeError:
        raise TypeError(f"{stream!r} is not a CUDA stream: pass its handle as an int") from None
