"""The blocking client: connect(), the broker, and its regions, which pickle."""

from __future__ import annotations

import copyreg
from collections.abc import Iterable, Sequence
from typing import Any

from gdrpy._core._mapping import alone, run
from gdrpy.broker.client import (
    arrays,
    calls,
    checkpoints,
    lookup,
    region_calls,
    sleeping,
    snapshots,
)
from gdrpy.broker.client.base import BrokerBase, reach
from gdrpy.broker.client.connection import Lease, Parcels, R
from gdrpy.broker.client.region import LeasedRegion
from gdrpy.broker.client.transport import BlockingTransport, blocking
from gdrpy.broker.client.watch import Watch
from gdrpy.broker.replies import Grant
from gdrpy.broker.requests import Request, call_of
from gdrpy.errors import BrokerUnavailable, NotFound, PermissionDenied


def connect(socket: str | None = None, timeout: float = 10.0, reconnect: float = 5.0) -> Broker:
    """Connect to the running broker.

    Args:
        socket: The path of its socket. None is $GDRPY_SOCKET, else this user's broker, else the
            machine's (/run/gdrpy/broker.sock).
        timeout: How many seconds to wait for a reply, and in a region's close() until a busy broker
            has room for it.
        reconnect: How many seconds to look for a broker that went away.

    Raises BrokerUnavailable, PermissionDenied, Timeout, ProtocolError (another version).
    """
    return Broker(run(reach, BlockingTransport, socket, timeout, reconnect), BlockingTransport)


class BrokerRegion(LeasedRegion):
    """A region of the broker: a :class:`gdrpy.Region` with a name, a version and permissions.

    A lease holds it until it is closed, or until this process has no array of it any more. Arrays
    made from it outlive the broker and its restarts. A pickled region attaches to the same memory
    where another process of the machine unpickles it. An anonymous region, or an old version of a
    name, exists only while a process holds it. Ray and Dask carry a
    :class:`gdrpy.broker.Reference`.
    """

    attach = blocking(region_calls.attach)  # type: ignore[arg-type]
    publish = blocking(region_calls.publish)
    seal = blocking(region_calls.seal)
    _seal_copy = blocking(region_calls.seal_copy)
    set_metadata = blocking(region_calls.set_metadata)
    digest = blocking(region_calls.digest)
    delete = blocking(region_calls.delete)
    info = blocking(region_calls.info)
    stale = property(blocking(region_calls.stale))


class Broker(BrokerBase[BrokerRegion]):
    """A running broker: named regions for every process of the machine. Made by :func:`connect`.

    Threads may share it; calls run one at a time. When the broker is restarted, a call waits for
    the new one, which takes over the leases. Closing ends the leases of this connection's regions;
    the regions stay usable.
    """

    allocate = blocking(calls.allocate)
    create = blocking(calls.create)
    publish_many = blocking(calls.publish_many)
    get_many = blocking(calls.get_many)
    attach_many = blocking(calls.attach_many)
    put = blocking(arrays.put)
    put_tensors = blocking(arrays.put_tensors)
    load = blocking(arrays.load)
    load_checkpoint = blocking(checkpoints.load_checkpoint)
    tensors = blocking(checkpoints.tensors)
    save = blocking(snapshots.save)
    restore = blocking(snapshots.restore)
    keep_many = blocking(sleeping.keep_many)
    sleep_many = blocking(sleeping.sleep_many)
    wake_many = blocking(sleeping.wake_many)
    wake = blocking(sleeping.wake)
    list = blocking(lookup.list_regions)
    stat = blocking(lookup.stat)
    delete = blocking(calls.delete)
    seal = blocking(calls.seal)
    chmod = blocking(calls.chmod)
    rounded_size = blocking(calls.rounded_size)
    status = blocking(calls.status)
    _attach = blocking(calls.attach)
    _region_type = BrokerRegion

    def watch(self, prefix: str = "", timeout: float | None = None) -> Watch:
        """Events from now on about regions whose names begin with ``prefix``."""
        self._check("Broker.watch")
        watch = Watch(self._separate(), prefix, timeout)
        try:
            run(watch.begin)
        except BaseException:
            watch.close()
            raise
        return watch

    def get(
        self,
        name: str,
        *,
        gpu: bool = True,
        cpu: bool = True,
        readonly: bool = False,
        wait: float | None = None,
        device: Any = None,
        address: int | None = None,
    ) -> BrokerRegion:
        if wait is None and device is None and address is None:
            try:
                answer = self._ask_now(calls.request_to_get(name, gpu, readonly), Grant)
            except NotFound as error:
                raise run(lookup.missing, self, name, error) from None
            return BrokerRegion._granted(self, *answer, gpu, cpu)
        return run(
            calls.get,
            self,
            name,
            gpu=gpu,
            cpu=cpu,
            readonly=readonly,
            wait=wait,
            device=device,
            address=address,
        )

    get.__doc__ = calls.get.__doc__

    def _ask_now(
        self, request: Request, kind: type[R], leases: Sequence[Lease] = ()
    ) -> tuple[R, Parcels]:
        """The reply to a request: see :meth:`Connection.ask`."""
        connection = self._connection
        transport = connection.transport
        assert isinstance(transport, BlockingTransport)
        if not transport.connected:  # never after close(), or in a forked child
            self._check(call_of(request))
        try:
            return alone(transport.lock, connection.ask_now, request, kind, leases, transport)
        finally:
            if connection.returned:
                connection.flush()

    async def _ask(
        self, request: Request, kind: type[R], leases: Sequence[Lease] = ()
    ) -> tuple[R, Parcels]:
        return self._ask_now(request, kind, leases)

    def _release(self) -> None:
        run(self._connection.transport.alone, self._disconnect)

    async def _disconnect(self) -> None:
        self._connection.close()


_shared: dict[str, Broker] = {}


def shared_broker(socket: str) -> Broker:
    """This process's connection for unpickled regions, made when it is first needed."""
    found = _shared.get(socket)
    if found is not None and not found.closed and not found._forked():
        return found
    # No lock: a fork could leave it locked for ever. A second thread closes its connection.
    made = connect(socket)
    if found is not None:
        _shared.pop(socket, None)
    kept = _shared.setdefault(socket, made)
    if kept is not made:
        made.close()
    return kept


def socket_of(life: str, paths: Iterable[str]) -> tuple[str | None, str]:
    """The first of some paths where the broker with this identity answers, and why not at others.

    Raises Timeout.
    """
    reasons = []
    for path in dict.fromkeys(paths):
        try:
            if shared_broker(path).life == life:
                return path, ""
            reasons.append(f"another broker answers at {path}")
        except (BrokerUnavailable, PermissionDenied) as error:
            reasons.append(str(error.strerror))
    return None, "; ".join(reasons)


def attach(
    socket: str, life: str, region: int, gpu: bool, cpu: bool, readonly: bool
) -> BrokerRegion:
    """The region of this number and life. Raises Gone when it no longer exists, and as ``get``."""
    return shared_broker(socket)._attach(life, region, gpu=gpu, cpu=cpu, readonly=readonly)


def reduce_region(region: LeasedRegion) -> tuple[Any, ...]:
    """Pickle a region, so that unpickling attaches it."""
    region._check("pickling a BrokerRegion")
    lease, views = region._lease, (region._ptr is not None, region._cpu is not None)
    return attach, (lease.socket, lease.life, lease.region, *views, region.readonly)


def _reduce_lease(lease: Lease) -> tuple[Any, ...]:
    """Pickle the memory of a closed region by its lease; unpickling attaches a region."""
    gpu = lease._entry is not None and lease._entry[2]
    return attach, (lease.socket, lease.life, lease.region, gpu, True, not lease.writable)


copyreg.pickle(BrokerRegion, reduce_region)
copyreg.pickle(Lease, _reduce_lease)
