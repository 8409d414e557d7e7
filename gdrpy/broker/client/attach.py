"""Regions that travelled by pickle: attached through one connection of the process per broker."""

from __future__ import annotations

import os

from gdrpy.broker.client import engines
from gdrpy.errors import Error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gdrpy.broker.client.broker import Broker
    from gdrpy.broker.client.connection import Lease
    from gdrpy.broker.client.region import BrokerRegion

_brokers: dict[str, Broker] = {}


class Identity:
    """Which region of which broker it is, how it was open where it was pickled, and where that was.

    ``host`` is the machine's name, to be read by people; ``places`` are where that process was in
    each engine (Ray, Dask) that it took part in.
    """

    def __init__(
        self,
        socket: str,
        life: str,
        region: int,
        gpu: bool,
        cpu: bool,
        readonly: bool,
        host: str = "",
        places: tuple[engines.Place, ...] = (),
    ) -> None:
        self.socket = socket
        self.life = life
        self.region = region
        self.gpu = gpu
        self.cpu = cpu
        self.readonly = readonly
        self.host = host
        self.places = places

    @classmethod
    def of(cls, lease: Lease, gpu: bool, cpu: bool, readonly: bool) -> Identity:
        """That of a region that this process has open by a lease."""
        where = os.uname().nodename, engines.places()
        return cls(lease.socket, lease.life, lease.region, gpu, cpu, readonly, *where)

    def fields(self) -> tuple[Any, ...]:
        """What it is made of again."""
        return tuple(self.__dict__.values())

    def attach(self) -> BrokerRegion:
        """The region itself. Raises Gone when it is no more, and what ``get`` raises."""
        return shared_broker(self.socket)._attach(
            self.life, self.region, gpu=self.gpu, cpu=self.cpu, readonly=self.readonly
        )

    def __str__(self) -> str:
        return f"region {self.region} of the broker at {self.socket} on {self.host}"


def shared_broker(socket: str) -> Broker:
    """This process's connection for regions that were unpickled; made when it is first needed."""
    found = _brokers.get(socket)
    if found is not None and not found.closed and not found._forked():
        return found
    from gdrpy.broker.client.broker import connect

    # No lock, which a fork could leave locked for ever: who comes second closes what it made.
    made = connect(socket)
    if found is not None:
        _brokers.pop(socket, None)
    kept = _brokers.setdefault(socket, made)
    if kept is not made:
        made.close()
    return kept


def attach(*fields: Any) -> BrokerRegion:
    """The region of the identity with these fields.

    Raises Gone when it is no more, and what ``get`` raises; one that came by Ray or Dask raises
    that when it is first used. In a process that only passes it on, Dask's scheduler, it is not
    attached before.
    """
    identity = Identity(*fields)
    if not identity.places:
        return identity.attach()
    # Dask would end a worker that cannot unpickle what it is sent, and Ray hides what was raised.
    if engines.places():
        try:
            return identity.attach()
        except (Error, OSError):
            pass
    from gdrpy.broker.client.away import AwayRegion

    return AwayRegion(identity)
