"""The blocking client: connect, and the broker."""

from __future__ import annotations

from gdrpy._core._mapping import alone, run
from gdrpy.broker.client import arrays, calls
from gdrpy.broker.client.base import BrokerBase, reach
from gdrpy.broker.client.channel import BlockingChannel, blocking
from gdrpy.broker.client.region import BrokerRegion
from gdrpy.broker.client.watch import Watch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gdrpy.broker.client.channel import Descriptors
    from gdrpy.broker.client.connection import Lease, Message, Reply


def connect(socket: str | None = None, timeout: float = 10.0, reconnect: float = 5.0) -> Broker:
    """Connect to the running broker.

    ``socket`` is the path of its socket, by default $GDRPY_SOCKET, else this user's broker, else
    the machine's (/run/gdrpy/broker.sock). ``timeout`` is for how many seconds to wait for an
    answer, ``reconnect`` for how many to look for a broker that went away.

    Raises BrokerUnavailable, PermissionDenied, Timeout, ProtocolError (another version).
    """
    return Broker(run(reach, BlockingChannel, socket, timeout, reconnect), BlockingChannel)


class Broker(BrokerBase):
    """A running broker: named regions for every process of the machine. Made by :func:`connect`.

    Threads may share it: one call is made at a time. When the broker is restarted, a call waits for
    it to come back, and the regions held here are held on. Closing ends the leases of this
    connection's regions; the regions stay usable.
    """

    allocate = blocking(calls.allocate)
    create = blocking(calls.create)
    get_many = blocking(calls.get_many)
    put = blocking(arrays.put)
    put_tensors = blocking(arrays.put_tensors)
    load = blocking(arrays.load)
    list = blocking(calls.list_regions)
    stat = blocking(calls.stat)
    delete = blocking(calls.delete)
    seal = blocking(calls.seal)
    chmod = blocking(calls.chmod)
    rounded_size = blocking(calls.rounded_size)
    status = blocking(calls.status)
    _attach = blocking(calls.attach)

    def watch(self, prefix: str = "", timeout: float | None = None) -> Watch:
        """Events about regions whose names begin with ``prefix``, from now on."""
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
        device: int | str | None = None,
    ) -> BrokerRegion:
        if wait is None and device is None:
            reply = self._shortcut(calls.request_to_get(name, gpu, cpu, readonly))
            if reply is not None:
                return BrokerRegion._granted(self, *reply, gpu, cpu)
        return run(
            calls.get, self, name, gpu=gpu, cpu=cpu, readonly=readonly, wait=wait, device=device
        )

    get.__doc__ = calls.get.__doc__

    def _shortcut(self, request: Message) -> Reply | None:
        """The reply to a request for one region without a coroutine; None where that cannot be."""
        connection = self._connection
        channel = connection.channel
        assert isinstance(channel, BlockingChannel)
        if not channel.connected:  # as in a forked child, where the lock may never be free
            return None
        reply = alone(channel.lock, connection.ask_now, request, channel)
        if connection.returned:
            connection.flush()
        return reply

    async def _ask(self, request: Message, lease: Lease | None = None) -> Reply:
        if "gpu" in request and "names" not in request:
            reply = self._shortcut(request)
            if reply is not None:
                return reply
        return await super()._ask(request, lease)

    def _region(
        self,
        grant: Message,
        fds: Descriptors,
        gpu: bool,
        cpu: bool,
        viewer: int | None = None,
    ) -> BrokerRegion:
        return BrokerRegion._granted(self, grant, fds, gpu, cpu, viewer)

    def _release(self) -> None:
        run(self._connection.channel.alone, self._disconnect)

    async def _disconnect(self) -> None:
        self._connection.close()
