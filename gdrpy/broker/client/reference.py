"""References to regions: what Ray and Dask carry to the processes that open them."""

from __future__ import annotations

import os

from gdrpy.broker.client.broker import Broker, BrokerRegion, attach, shared_broker
from gdrpy.broker.client.engines import dask, ray
from gdrpy.broker.client.reading import Description, Source
from gdrpy.broker.client.region import LeasedRegion
from gdrpy.broker.place import connect_path
from gdrpy.errors import BrokerUnavailable, Gone, NotFound, SizeMismatch

#: What moves Python objects between machines. A ``place()`` is where this process is in the engine,
#: None if it takes no part; ``pieces(place, source)`` brings a region from there: a Description,
#: then its bytes in order.
_ENGINES = {"ray": ray, "dask": dask}


class Reference:
    """A reference to a region of a broker, which pickles and is opened wherever it arrives.

    It holds no lease: keep the region, or its name, until the receiver has opened the reference.
    """

    def __init__(self, region: LeasedRegion) -> None:
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
        """The region, with the views and rights that it had; on another machine a copy of it.

        The copy is an anonymous region of this machine's broker. While a process of this user holds
        the copy of a sealed region, this gives all of the user's processes on the machine that one.

        Raises Gone when the region no longer exists, what ``get`` raises, and for a copy Timeout,
        OutOfMemory, QuotaExceeded; BrokerUnavailable on a machine without a broker.
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
        """A copy of the region; raises ``reason`` where no engine can bring one."""
        here, source = _places(), self._source
        # Another place of an engine that this process takes part in.
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
    """Where this process is in each engine that it takes part in."""
    places = {name: engine.place() for name, engine in _ENGINES.items()}
    return {name: place for name, place in places.items() if place is not None}


def _room(source: Source, description: Description) -> BrokerRegion:
    """An anonymous region for the copy, of this machine's broker: the one at the same path as
    there, else where ``connect()`` finds one.
    """
    for path in dict.fromkeys((source.socket, connect_path())):
        try:
            return _allocated(shared_broker(path), source.gpu, description)
        except BrokerUnavailable as error:
            reason = error
    raise BrokerUnavailable(
        f"{source} is another machine's, and there is no broker on this one to hold a copy: "
        f"{reason}"
    ) from None


def _allocated(broker: Broker, gpu: bool, description: Description) -> BrokerRegion:
    """On the device of the same number, else on the first."""
    size, device, metadata, _ = description
    try:
        return broker.allocate(None, size, device, metadata=metadata, gpu=gpu)
    except NotFound:
        return broker.allocate(None, size, 0, metadata=metadata, gpu=gpu)
