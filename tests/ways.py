"""Every way in which an array library takes gdrpy's memory, and what is to be expected of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from libraries import Cupy, Jax, Library, Numba, Numpy, Torch, TorchOnGpu

#: What a library's array is: either view of the memory, or a copy.
GPU, CPU, COPY = "the GPU view", "the CPU view", "a copy"
#: A view of host memory: a simulated GPU's own, on a real one the CPU's.
HOST = "host memory"
#: What becomes of "this is read-only".
KEPT, LOST, MOOT = "read-only", "not told: do not write", "not told, but immutable"
#: Who keeps the memory for the library's array.
COUNTED, HELD = "`close()` refuses", "held, but `close()` does not know"
UNHELD = "not held: keep the region"


class Refused(NamedTuple):
    """It cannot be done, and says so."""

    error: type[Exception]
    match: str
    why: str

    def __str__(self) -> str:
        return f"refused: {self.why}"


class Way(NamedTuple):
    """A library's function ``take`` that makes an array of what gdrpy shows by a protocol.

    ``shown`` is an ``array`` or a ``mapping``.
    """

    taker: type[Library]
    name: str
    shown: str
    by: str
    take: Callable[[Any, Any], Any]
    memory: str | Refused
    readonly: str | Refused
    lifetime: str = COUNTED

    def __str__(self) -> str:
        return f"{self.name}<-{self.shown}-by-{self.by}"


class Only:
    """An object that speaks one protocol alone."""

    def __init__(self, shown: Any, protocol: str) -> None:
        self.shown = shown
        setattr(self, protocol, getattr(shown, protocol))


CAI = "cuda-array-interface"

_UNVERSIONED = Refused(BufferError, r"max_version=\(1, 0\)", "its request cannot be told so")
_SIMULATED = Refused(AttributeError, "use from_dlpack", "CUDA finds no simulated memory")
_TORCH_CAI = Refused(TypeError, "read only flag", "torch has no read-only tensors")
_NO_DLPACK = Refused(AttributeError, "from_dlpack", "numba has no from_dlpack")


def _interface(module: Any, shown: Any) -> Any:
    """What a CUDA library would take: the library itself does not run without a CUDA device."""
    return shown.__cuda_array_interface__


ON_THE_HOST = [
    Way(
        Numpy, "numpy", "array", "dlpack", lambda np, a: np.from_dlpack(a, device="cpu"), HOST, KEPT
    ),
    Way(Numpy, "numpy", "array", "buffer", lambda np, a: np.asarray(a), CPU, KEPT),
    Way(
        Numpy,
        "numpy",
        "array",
        "array-interface",
        lambda np, a: np.asarray(Only(a, "__array_interface__")),
        CPU,
        KEPT,
    ),
    Way(Numpy, "numpy", "mapping", "dlpack", lambda np, m: np.from_dlpack(m), CPU, KEPT),
    Way(
        Torch,
        "torch",
        "array",
        "buffer",
        lambda torch, a: torch.frombuffer(a, dtype=torch.uint8),
        CPU,
        LOST,
    ),
    Way(Torch, "torch", "mapping", "dlpack", lambda torch, m: torch.from_dlpack(m), CPU, LOST),
    Way(
        Jax,
        "jax",
        "array",
        "buffer",
        lambda jax, a: jax.numpy.asarray(memoryview(a)),
        COPY,
        COPY,
    ),
    Way(
        Jax, "jax", "mapping", "dlpack", lambda jax, m: jax.dlpack.from_dlpack(m), CPU, _UNVERSIONED
    ),
]

SIMULATED = [
    *ON_THE_HOST,
    Way(Torch, "torch", "array", "dlpack", lambda torch, a: torch.from_dlpack(a), GPU, LOST),
    Way(Jax, "jax", "array", "dlpack", lambda jax, a: jax.dlpack.from_dlpack(a), GPU, _UNVERSIONED),
    Way(Torch, "torch", "array", CAI, _interface, _SIMULATED, _SIMULATED),
    Way(Numpy, "cupy", "array", CAI, _interface, _SIMULATED, _SIMULATED),
    Way(Numpy, "numba", "array", CAI, _interface, _SIMULATED, _SIMULATED),
]

ON_A_GPU = [
    *ON_THE_HOST,
    Way(TorchOnGpu, "torch", "array", "dlpack", lambda torch, a: torch.from_dlpack(a), GPU, LOST),
    Way(
        TorchOnGpu,
        "torch",
        "array",
        CAI,
        lambda torch, a: torch.as_tensor(Only(a, "__cuda_array_interface__"), device="cuda"),
        GPU,
        _TORCH_CAI,
        lifetime=HELD,
    ),
    Way(Cupy, "cupy", "array", "dlpack", lambda cupy, a: cupy.from_dlpack(a), GPU, LOST),
    Way(
        Cupy,
        "cupy",
        "array",
        CAI,
        lambda cupy, a: cupy.asarray(Only(a, "__cuda_array_interface__")),
        GPU,
        LOST,
        lifetime=HELD,
    ),
    Way(
        Numba,
        "numba",
        "array",
        CAI,
        lambda numba, a: numba.as_cuda_array(a),
        GPU,
        LOST,
        lifetime=HELD,
    ),
    Way(
        Numba,
        "numba",
        "array",
        "dlpack",
        lambda numba, a: numba.from_dlpack(a),
        _NO_DLPACK,
        _NO_DLPACK,
    ),
    Way(Jax, "jax", "array", "dlpack", lambda jax, a: jax.dlpack.from_dlpack(a), GPU, _UNVERSIONED),
    Way(Jax, "jax", "array", CAI, lambda jax, a: jax.numpy.asarray(a), GPU, MOOT, lifetime=UNHELD),
]

#: Libraries whose arrays are written into one of gdrpy's, by name.
SOURCES_ON_THE_HOST: dict[str, type[Library]] = {"numpy": Numpy, "torch": Torch, "jax": Jax}
SOURCES_ON_A_GPU: dict[str, type[Library]] = {
    "numpy": Numpy,
    "torch-cpu": Torch,
    "torch": TorchOnGpu,
    "cupy": Cupy,
    "numba": Numba,
    "jax": Jax,
}
