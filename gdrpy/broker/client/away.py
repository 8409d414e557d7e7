"""Regions that came by Ray or Dask and are not attached yet."""

from __future__ import annotations

from _thread import RLock
from _weakref import ref

from gdrpy._core._mapping import alone, fork_generation
from gdrpy.broker.client.region import BrokerRegion
from gdrpy.errors import BrokerUnavailable, Gone
from gdrpy.memory.sending import travel
from gdrpy.region import remember

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gdrpy.broker.client.attach import Identity


class AwayRegion(BrokerRegion):
    """A region that becomes a BrokerRegion when something of it is first used.

    On the machine of its broker it is attached then; on another one it is a copy. Raises then what
    keeps it from that, at each attempt. What Python and the engines ask of any object (its class,
    repr, pickle) is no use. Threads may share it.
    """

    def __init__(self, identity: Identity) -> None:
        vars(self).update(_identity=identity, _arriving={})

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("__"):
            _arrive(self)
        return object.__getattribute__(self, name)

    def __reduce__(self) -> tuple[Any, ...]:
        from gdrpy.broker.client.attach import attach

        fields = vars(self)
        if "_identity" not in fields:  # it has arrived meanwhile
            return BrokerRegion.__reduce__(self)
        return attach, fields["_identity"].fields()

    def __repr__(self) -> str:
        return f"<BrokerRegion not attached yet: {vars(self).get('_identity')}>"


def _arrive(region: AwayRegion) -> None:
    fields = vars(region)
    locks = fields.get("_arriving")
    if locks is None:  # another thread was quicker
        return
    # A forked child has one of its own: the thread that held its parent's may not be there.
    alone(locks.setdefault(fork_generation(), RLock()), _become, region, fields)


def _become(region: AwayRegion, fields: dict[str, Any]) -> None:
    """Be the region itself. Its class is the last to change: until then it is done anew."""
    if "_identity" not in fields:
        return
    found = arrived(fields["_identity"])
    fields.update(vars(found))
    cpu = fields.get("_cpu")
    if cpu is not None:
        cpu._travel = travel(ref(region), found._lease, 0)
    if fields["_ptr"] is not None:
        remember(region)
    object.__setattr__(region, "__class__", BrokerRegion)
    del fields["_identity"], fields["_arriving"]


def arrived(identity: Identity) -> BrokerRegion:
    """The region itself, or where its broker is another machine's, a copy of it."""
    from gdrpy.broker.client.attach import shared_broker

    try:
        return identity.attach()
    except (BrokerUnavailable, Gone) as error:
        if isinstance(error, Gone) and shared_broker(identity.socket).life == identity.life:
            raise
        from gdrpy.broker.client.copies import bring

        return bring(identity, error)
