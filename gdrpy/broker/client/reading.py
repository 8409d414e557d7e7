"""What a process on a region's machine does to send its bytes to another machine."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from gdrpy.broker.client.broker import BrokerRegion, attach, shared_broker
from gdrpy.errors import CudaError, Error

if TYPE_CHECKING:
    import numpy as np

#: Bytes that travel at a time.
PIECE_BYTES = 16 << 20
#: Seconds without a piece after which a copy is given up.
PATIENCE = 60.0


class Source(NamedTuple):
    """Which region of which broker to read, and by which views; ``host`` names its machine."""

    socket: str
    life: str
    region: int
    gpu: bool
    cpu: bool
    host: str

    def __str__(self) -> str:
        return f"region {self.region} of the broker at {self.socket} on {self.host}"


class Description(NamedTuple):
    """What a copy has in common with its original; ``device`` is a CUDA ordinal or "cpu"."""

    nbytes: int
    device: int | str
    metadata: dict[str, Any]
    sealed: bool


def reaches(source: Source) -> bool:
    """Whether this process reaches the region's broker."""
    try:
        return shared_broker(source.socket).life == source.life
    except (Error, OSError):
        return False


def describe(source: Source) -> Description:
    """What the region is."""
    with _opened(source) as region:
        return _described(region)


def piece(source: Source, offset: int) -> np.ndarray[Any, Any]:
    """Bytes of the region from ``offset`` on."""
    with _opened(source) as region:
        return _piece(region, offset)


def read(source: Source) -> Generator[Any, None, None]:
    """What the region is, then all of its bytes in pieces."""
    with _opened(source) as region:
        yield _described(region)
        for offset in range(0, region.nbytes, PIECE_BYTES):
            yield _piece(region, offset)


def _opened(source: Source) -> BrokerRegion:
    """The region, to read it: by the copy engine, else by CUDA if it was open with its GPU view."""
    socket, life, region, gpu, cpu, _ = source
    if gpu:
        found = attach(socket, life, region, False, cpu, True)
        with suppress(Error):
            found._prepare_engine("reading a region")
            return found
        found.close()
        with suppress(CudaError):  # as in a process that was given no GPU
            return attach(socket, life, region, True, cpu, True)
    return attach(socket, life, region, False, True, True)


def _described(region: BrokerRegion) -> Description:
    info = region.info()
    return Description(region.nbytes, info.device, region.metadata, region.sealed)


def _piece(region: BrokerRegion, offset: int) -> np.ndarray[Any, Any]:
    import numpy as np

    data = np.empty(min(PIECE_BYTES, region.nbytes - offset), np.uint8)
    region.readinto(data, offset)
    return data
