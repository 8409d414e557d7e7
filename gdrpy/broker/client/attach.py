"""Regions that travelled by pickle: attached through one connection of the process per broker."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gdrpy.broker.client.broker import Broker
    from gdrpy.broker.client.region import BrokerRegion

_brokers: dict[str, Broker] = {}


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


def attach(
    socket: str, life: str, region: int, gpu: bool, cpu: bool, readonly: bool
) -> BrokerRegion:
    """The region of this identity. Raises Gone when it is no more, and what ``get`` raises."""
    broker = shared_broker(socket)
    return broker._attach(life, region, gpu=gpu, cpu=cpu, readonly=readonly)
