"""References to regions, which Ray and Dask carry to the processes that open them."""

from __future__ import annotations

import os

from gdrpy.broker.client.broker import Broker, BrokerRegion, attach, shared_broker
from gdrpy.broker.client.engines import dask, ray
from gdrpy.broker.client.reading import Description, Source
from gdrpy.broker.client.region import LeasedRegion
from gdrpy.broker.place import connect_path
from gdrpy.errors import BrokerUnavailable, Gone, NotFound, SizeMismatch

#: The engines that move Python objects between machines. ``place()`` is this process's place in the
#: engine, None if it takes no part. ``pieces(place, source)`` fetches a region from a place: its
#: Description, then its bytes in order.
_ENGINES = {"ray": ray, "dask": dask}


class Reference:
    """A reference to a region of a broker. It pickles, and any process that receives it opens it.

    It holds no lease: keep the region, or its name, until the receiver has opened the reference.
    """

    def __init__(self, region: LeasedRegion) -> None:
        if not isinstance(region, LeasedRegion):
            raise TypeError(f"Reference: region must be a region of a broker, not {region!r}")
        region._check("Reference")
        lease = region._lease
        self._source = Source(
            lease.socket,
            lease.life,
            lease.region,
            region._ptr is not None,
            region._cpu is not None,
            os.uname().nodename,
        )
        self._readonly = region.readonly
        self._places = _places()

    def open(self) -> BrokerRegion:
        """The region, with its views and permissions; on another machine a copy of it.

        The copy is an anonymous region of this machine's broker. All of the user's processes on the
        machine share one copy of a sealed region, while one of them holds it.

        Raises Gone if the region no longer exists, and as ``get``; for a copy also Timeout,
        OutOfMemory, QuotaExceeded, and BrokerUnavailable on a machine without a broker.
        """
        source = self._source
        try:
            return self._attach(source.socket, source.life, source.region)
        except (BrokerUnavailable, Gone) as error:
            if isinstance(error, Gone) and shared_broker(source.socket).life == source.life:
                raise
            return self._copy(error)

    def _attach(self, socket: str, life: str, region: int) -> BrokerRegion:
        return attach(socket, life, region, self._source.gpu, self._source.cpu, self._readonly)

    def _copy(self, reason: Exception) -> BrokerRegion:
        """A copy of the region. Raises ``reason`` if no engine can fetch it."""
        here, source = _places(), self._source
        # Engines that this process takes part in, at another place.
        ways = [name for name in self._places.keys() & here if self._places[name] != here[name]]
        if not ways:
            raise reason
        pieces = _ENGINES[ways[0]].pieces(self._places[ways[0]], source)
        try:
            description: Description = next(pieces)
            with _room(source, description) as copy:
                offset = 0
                for piece in pieces:
                    copy.write(piece, offset)
                    offset += piece.nbytes
                if offset != description.nbytes:
                    raise SizeMismatch(
                        f"copying {source}: {offset} of {description.nbytes} bytes came"
                    )
                if description.sealed:
                    copy._seal_copy(source.life, source.region)
                return self._attach(copy._broker.socket, copy._lease.life, copy.id)
        finally:
            pieces.close()

    def __repr__(self) -> str:
        return f"<Reference to {self._source}>"


def _places() -> dict[str, str]:
    """The place of this process in each engine that it takes part in."""
    places = {name: engine.place() for name, engine in _ENGINES.items()}
    return {name: place for name, place in places.items() if place is not None}


def _room(source: Source, description: Description) -> BrokerRegion:
    """An anonymous region for the copy. Its broker is this machine's at the original's path, else
    the one that ``connect()`` finds.
    """
    for path in dict.fromkeys((source.socket, connect_path())):
        try:
            return _allocated(shared_broker(path), source.gpu, description)
        except BrokerUnavailable as error:
            reason = error
    raise BrokerUnavailable(
        f"{source} is another machine's, and a copy needs a broker on this one: {reason}"
    ) from None


def _allocated(broker: Broker, gpu: bool, description: Description) -> BrokerRegion:
    """A region on the device of the same number, else on the first."""
    size, device, metadata, _ = description
    try:
        return broker.allocate(None, size, device, metadata=metadata, gpu=gpu)
    except NotFound:
        return broker.allocate(None, size, 0, metadata=metadata, gpu=gpu)
