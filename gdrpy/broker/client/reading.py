"""Reading a region on its machine, to send its bytes to another machine."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from gdrpy.broker.client.broker import BrokerRegion, attach, shared_broker
from gdrpy.errors import CudaError, Error

if TYPE_CHECKING:
    import numpy as np

#: Bytes of a piece.
PIECE_BYTES = 16 << 20
#: Seconds without a piece after which a copy fails.
PATIENCE = 60.0


class Source(NamedTuple):
    """The region to read, its broker, and its views; ``host`` names the machine."""

    socket: str
    life: str
    region: int
    gpu: bool
    cpu: bool
    host: str

    def __str__(self) -> str:
        return f"region {self.region} of the broker at {self.socket} on {self.host}"


class Description(NamedTuple):
    """The properties of a region that a copy gets; ``device`` is a CUDA ordinal or "cpu"."""

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
    """The region's description."""
    with _opened(source) as region:
        return _described(region)


def piece(source: Source, offset: int) -> np.ndarray[Any, Any]:
    """Bytes of the region from ``offset`` on."""
    with _opened(source) as region:
        return _piece(region, offset)


def read(source: Source) -> Generator[Any, None, None]:
    """The region's description, then all of its bytes in pieces."""
    with _opened(source) as region:
        yield _described(region)
        for offset in range(0, region.nbytes, PIECE_BYTES):
            yield _piece(region, offset)


def _opened(source: Source) -> BrokerRegion:
    """The region, for reading by the copy engine, else by CUDA if it had a GPU view."""
    socket, life, region, gpu, cpu, _ = source
    if gpu:
        found = attach(socket, life, region, False, cpu, True)
        with suppress(Error):
            found._prepare_engine("reading a region")
            return found
        found.close()
        with suppress(CudaError):  # a process without a GPU
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
