"""The header of a run: the machine and the software behind a figure or a verdict."""

from __future__ import annotations

import importlib.metadata
import platform
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from gdrpy import cuda
from gdrpy._core.driver import driver_version
from gdrpy.cli.output import Output
from gdrpy.copies.tuning import cpu_model


@dataclass(frozen=True)
class Header:
    """Where, when and by what a command ran. Unknown values are None."""

    command: str
    date: str
    gdrpy: str
    python: str
    cpu: str
    kernel: str
    nvidia_driver: str | None
    cuda_driver: str | None = None
    gpu: str | None = None
    device: int | None = None
    uuid: str | None = None
    pci: str | None = None
    simulated: bool | None = None
    backend: str | None = None

    def json(self) -> dict[str, Any]:
        """As plain values for JSON."""
        return asdict(self)

    def announce(self, output: Output) -> None:
        """Print the GPU, the backend and the CPU of the figures."""
        gpu = gpu_words(self.gpu, self.simulated)
        output.prose(f"{gpu}, device {self.device}, backend {self.backend}, {self.cpu}")
        if self.simulated:
            output.line("simulated GPU: these are speeds of host memory")


def host_header(command: str, **known: Any) -> Header:
    """A header of the host, without CUDA; ``known`` are further fields."""
    return Header(
        command=command,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        gdrpy=gdrpy_version(),
        python=platform.python_version(),
        cpu=cpu_model(),
        kernel=platform.release(),
        nvidia_driver=driver_version(),
        **known,
    )


def gpu_header(command: str, device: int, backend: str) -> Header:
    """A header of a run on a device of this process. Raises NotFound, CudaError."""
    return host_header(command, backend=backend, **gpu_fields(device))


def gpu_fields(device: int) -> dict[str, Any]:
    """The fields of a header about a device of this process. Raises NotFound, CudaError."""
    info = cuda.device_info(device)
    return {
        "cuda_driver": cuda_version(),
        "gpu": info.name,
        "device": device,
        "uuid": info.uuid,
        "pci": info.pci,
        "simulated": info.simulated,
    }


def gpu_words(name: str | None, simulated: bool | None) -> str:
    """A GPU's name, which says whether it is simulated."""
    if not simulated or (name and "simulated gpu" in name.lower()):
        return name or "unknown GPU"
    return f"simulated GPU ({name})" if name else "simulated GPU"


def cuda_version() -> str:
    """The CUDA version of the driver: ``13.0``."""
    version = int(cuda.call("cuDriverGetVersion"))
    return f"{version // 1000}.{version % 1000 // 10}"


def gdrpy_version() -> str:
    """The installed version, or a note that the package runs from a checkout."""
    try:
        return importlib.metadata.version("gdrpy")
    except importlib.metadata.PackageNotFoundError:
        return "checkout, not installed"
