"""Copies of another machine's regions, brought by the engine that brought their identity."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from gdrpy.broker.client import engines
from gdrpy.broker.client.attach import Identity, shared_broker
from gdrpy.broker.place import connect_path
from gdrpy.errors import BrokerUnavailable, CudaError, Error, NotFound, SizeMismatch

if TYPE_CHECKING:
    from collections.abc import Generator

    import numpy as np

    from gdrpy.broker.client.broker import Broker
    from gdrpy.broker.client.region import BrokerRegion

#: Bytes that travel at a time.
PIECE_BYTES = 16 << 20


class Description(NamedTuple):
    """What a copy has in common with its original; ``device`` is a CUDA ordinal or "cpu"."""

    nbytes: int
    device: int | str
    metadata: dict[str, Any]
    sealed: bool


def bring(identity: Identity, reason: Exception) -> BrokerRegion:
    """A copy of a region, as an anonymous one of this machine's broker.

    ``reason`` is why the region itself cannot be had; it is raised where no engine can help. The
    copy of a sealed region is what its identity means from then on to this user's processes on this
    machine, while one of them holds it.

    Raises Gone, Timeout, BrokerUnavailable, OutOfMemory, QuotaExceeded.
    """
    here = engines.places()
    way = next((place for place in identity.places if _elsewhere(place, here)), None)
    if way is None:
        raise reason
    engine = engines.using(way[0])
    assert engine is not None
    pieces = engine.pieces(way[1], identity)
    try:
        description: Description = next(pieces)
        with _room(identity, description) as copy:
            offset = 0
            for piece in pieces:
                copy.write(piece, offset)
                offset += piece.nbytes
            if offset != description.nbytes:
                raise SizeMismatch(
                    f"copying {identity}: {offset} of {description.nbytes} bytes came"
                )
            if description.sealed:
                copy._seal_copy(identity.life, identity.region)
            return _opened_as(identity, copy)
    finally:
        pieces.close()


def _elsewhere(place: engines.Place, here: tuple[engines.Place, ...]) -> bool:
    """Whether it is another place of an engine that this process takes part in."""
    return place not in here and any(place[0] == name for name, _ in here)


def _opened_as(identity: Identity, copy: BrokerRegion) -> BrokerRegion:
    """A region of this machine with the views and rights of an identity."""
    where = copy._broker.socket, copy._lease.life, copy.id
    return Identity(*where, identity.gpu, identity.cpu, identity.readonly).attach()


def _room(identity: Identity, description: Description) -> BrokerRegion:
    """An anonymous region for the copy, of this machine's broker: the one at the same path as
    there, else where ``connect()`` finds one.
    """
    for path in dict.fromkeys((identity.socket, connect_path())):
        try:
            return _allocated(shared_broker(path), identity.gpu, description)
        except BrokerUnavailable as error:
            reason = error
    raise BrokerUnavailable(
        f"{identity} is another machine's, and there is no broker on this one to hold a copy: "
        f"{reason}"
    ) from None


def _allocated(broker: Broker, gpu: bool, description: Description) -> BrokerRegion:
    """On the device of the same number, else on the first."""
    size, device, metadata, _ = description
    try:
        return broker.allocate(None, size, device, metadata=metadata, gpu=gpu)
    except NotFound:
        return broker.allocate(None, size, 0, metadata=metadata, gpu=gpu)


def _source(identity: Identity) -> BrokerRegion:
    """The region, to read it: by the GPU's copy engine if it was open with the GPU's view."""
    identity.readonly = True
    if identity.gpu:
        try:
            return identity.attach()
        except CudaError:  # as in a process that was given no GPU
            identity.gpu = False
    identity.cpu = True
    return identity.attach()


def _described(region: BrokerRegion) -> Description:
    info = region.info()
    return Description(region.nbytes, info.device, region.metadata, region.sealed)


def _piece(region: BrokerRegion, offset: int) -> np.ndarray[Any, Any]:
    import numpy as np

    data = np.empty(min(PIECE_BYTES, region.nbytes - offset), np.uint8)
    region.readinto(data, offset)
    return data


def reaches(*fields: Any) -> bool:
    """Whether this process reaches the broker of an identity."""
    identity = Identity(*fields)
    try:
        return shared_broker(identity.socket).life == identity.life
    except (Error, OSError):
        return False


def describe(*fields: Any) -> Description:
    """What the region of an identity is. For a process on its machine."""
    with _source(Identity(*fields)) as region:
        return _described(region)


def piece(*fields: Any) -> np.ndarray[Any, Any]:
    """Bytes of the region of an identity; the last of ``fields`` is the first byte's offset."""
    *identity, offset = fields
    with _source(Identity(*identity)) as region:
        return _piece(region, offset)


def read(*fields: Any) -> Generator[Any, None, None]:
    """What the region of an identity is, then all of its bytes in pieces."""
    with _source(Identity(*fields)) as region:
        yield _described(region)
        for offset in range(0, region.nbytes, PIECE_BYTES):
            yield _piece(region, offset)
