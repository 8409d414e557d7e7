"""Channels, inboxes and links by name: their two ends are different processes.

A named ring is two regions of a broker, NAME in GPU memory and NAME/host in host memory. Each end
holds a region of its own, NAME/kernel or NAME/cpu, which the broker deletes when the process ends:
by these the ends know of each other. docs/channel-protocol.md describes the protocol.
"""

from __future__ import annotations

import os
import secrets
import select
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from errno import EACCES
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol, Self

from gdrpy._core import _mapping
from gdrpy._core._mapping import Descriptor, Undo
from gdrpy.broker.client.arguments import as_name
from gdrpy.broker.client.lookup import calling
from gdrpy.broker.protocol import NAME_LIMIT
from gdrpy.broker.rings import FORMAT, ring_of
from gdrpy.common.arguments import as_int
from gdrpy.errors import (
    Closed,
    Error,
    Forked,
    InvalidRequest,
    MissingView,
    NotFound,
    OutOfMemory,
    PermissionDenied,
    SizeMismatch,
    Timeout,
)

if TYPE_CHECKING:
    from gdrpy.broker.client.broker import Broker, BrokerRegion
    from gdrpy.broker.client.watch import Watch

#: What _set_state() of the CPU's end is given: see enum core_ring_state.
OPEN, GONE, LOST, UNHEARD = range(4)
#: Which end of a ring an object of the C core is: see enum core_ring_end.
CPU_END, KERNEL_END = 1, 2

#: Random bytes in the name of a producer's end.
_DIGITS = 8
#: The mode of the regions that stand for ends: all users may see them.
_SEEN = 0o644
#: Seconds between looks at the ends when the broker tells of none, and before it is tried again.
_LOOK, _PAUSE = 1.0, 0.1
#: Events between looks at the most: others may make them without an end.
_EVENTS = 1000
#: Of names, in bytes: the longest name of an end is that of a producer.
_NAME_LIMIT = NAME_LIMIT - len("/cpu.") - 2 * _DIGITS
#: What new memory is written by, in bytes.
_CHUNK = 1 << 20


class Hearer(Protocol):
    """An end whose methods the watching thread calls."""

    def _look(self, ready: set[str]) -> None:
        """Look at the other ends. ``ready`` names those that became ready since the last call."""

    def _fail(self, error: Exception) -> None:
        """Note the error that ended the thread."""


def _no_ring(call: str, name: str | None) -> InvalidRequest:
    return InvalidRequest(
        f"{call}: region {name!r} holds no channel, inbox or link: take another name, or delete it"
    )


class Layout(NamedTuple):
    """What a ring is, and how many bytes it takes."""

    kind: str
    record_nbytes: int
    capacity: int
    #: Of a link.
    answer_nbytes: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes of GPU memory."""
        if self.kind == "Channel":
            return _mapping.CHANNEL_NBYTES + self.capacity * self.record_nbytes
        if self.kind == "Inbox":
            return _mapping.INBOX_NBYTES
        return _mapping.LINK_NBYTES + self.capacity * self.record_nbytes * _mapping.SLOT_FACTOR

    @property
    def host_nbytes(self) -> int:
        """Bytes of host memory."""
        slots = self.capacity * _mapping.SLOT_FACTOR
        if self.kind == "Channel":
            return _mapping.CHANNEL_HOST_NBYTES
        if self.kind == "Inbox":
            return _mapping.INBOX_HOST_NBYTES + slots * self.record_nbytes
        return _mapping.LINK_HOST_NBYTES + slots * self.answer_nbytes

    @property
    def sizes(self) -> tuple[int, ...]:
        """The arguments of the C core's types after the memory."""
        sizes = self.record_nbytes, self.capacity
        return (*sizes, self.answer_nbytes) if self.kind == "Link" else (*sizes, 0)

    @property
    def metadata(self) -> dict[str, Any]:
        """What the broker keeps of it."""
        return {"format": FORMAT, **self._asdict()}

    @classmethod
    def of(cls, call: str, region: BrokerRegion, host: BrokerRegion) -> Self:
        """That of the regions of a name. Raises InvalidRequest if they are not those of a ring."""
        told = region.metadata
        try:
            if told.get("format") != FORMAT or told["kind"] not in ("Channel", "Inbox", "Link"):
                raise ValueError
            numbers = (told["record_nbytes"], told["capacity"], told["answer_nbytes"])
            found = cls(told["kind"], *(as_int(call, "size", number) for number in numbers))
            if (found.nbytes, found.host_nbytes) != (region.nbytes, host.nbytes):
                raise ValueError
        except (KeyError, TypeError, ValueError):
            raise _no_ring(call, region.name) from None
        return found

    def __str__(self) -> str:
        words = f"{self.capacity} records of {self.record_nbytes} bytes"
        if self.kind == "Link":
            words += f", answers of {self.answer_nbytes}"
        return f"{self.kind} of {words}"


def _an(layout: Layout) -> str:
    """A layout in words, with its article."""
    return f"{'an' if layout.kind == 'Inbox' else 'a'} {layout}"


class Listed(NamedTuple):
    """The numbers of the ends of a ring that are ready, and of all its regions."""

    kernel: int | None
    cpu: set[int]
    numbers: set[int]


def as_broker(call: str, broker: Broker) -> Broker:
    """A broker of the blocking client. Raises TypeError."""
    if not hasattr(broker, "_ask_now"):
        raise TypeError(
            f"{call}: broker must be a gdrpy.Broker, of gdrpy.connect(), not a "
            f"{type(broker).__module__}.{type(broker).__qualname__}"
        )
    return broker


def as_seconds(call: str, name: str, value: Any) -> float | None:
    """Seconds to wait, at most as many as a thread can, or None. Raises ValueError."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise ValueError(f"{call}: {name} must be seconds >= 0 or None, not {value!r}")
    return float(min(value, threading.TIMEOUT_MAX))


class Named:
    """An end of a named ring: its regions, and a thread that hears of the other ends.

    ``number`` is that of the region that stands for it: the broker gives no number twice.
    """

    _thread: threading.Thread | None = None

    def __init__(self, call: str, broker: Any, name: str, wait: Any) -> None:
        self.call = call
        if len(as_name(call, name).encode()) > _NAME_LIMIT:
            raise ValueError(
                f"{call}: the name of a ring has {_NAME_LIMIT} bytes at most, not "
                f"{len(name.encode())}: {name!r:.40}"
            )
        self.name, self.prefix = name, f"{name}/"
        self.host_name = f"{name}/host"
        self.kernel_name = f"{name}/kernel"
        self.cpu_name = f"{name}/cpu"  # which those of producers begin with
        self._pid = os.getpid()
        self._wait = as_seconds(call, "wait", wait)
        self._until = time.monotonic() + (self._wait or 0.0)
        #: Of the one thread that closes it; never released.
        self._closing = threading.Lock()
        shared = as_broker(call, broker)
        self.broker = type(shared)(shared._separate(), shared._make_transport)
        self.undo = Undo()
        self.undo.callback(self.broker.close)
        self._closed = False

    @contextmanager
    def naming(self) -> Iterator[None]:
        """Have errors of the broker's calls tell what they were made for."""
        try:
            yield
        except Error as error:
            if isinstance(error, PermissionDenied) and error.missing:
                raise PermissionDenied(
                    EACCES,
                    f"{self.call}: this user may not {error.missing} region {error.region!r}; both "
                    f"ends read and write {self.name!r} and {self.host_name!r}; ask its owner, who "
                    f"may call broker.chmod() with 0o666 for each of the two (0o660 for their "
                    f"group alone)",
                    missing=error.missing,
                    region=error.region,
                ) from error
            if not str(error).startswith(self.call):
                error.add_note(f"{self.call}: this was for the name {self.name!r}")
            raise

    def require_ring(self, wait: float | None = None) -> None:
        """Raise NotFound, InvalidRequest or PermissionDenied unless there is a ring to be used.

        It waits for the name for ``wait`` seconds.
        """
        with self.broker.get(self.name, gpu=False, cpu=False, wait=wait) as memory:
            if memory.metadata.get("format") != FORMAT:
                raise _no_ring(self.call, self.name)
            self._require_write(memory)

    def _require_write(self, region: BrokerRegion) -> None:
        """Raise PermissionDenied if this user may only read a region."""
        if region.readonly:
            raise PermissionDenied(
                EACCES,
                f"{self.call}: this user may only read region {region.name!r}",
                missing="write",
                region=region.name,
            )

    def enter(self, name: str, what: str) -> None:
        """Take the place of an end, once it is free. Raises InvalidRequest, Timeout."""
        while True:
            try:
                place = self.broker.allocate(name, 1, "cpu", mode=_SEEN, grace=0)
                break
            except (InvalidRequest, PermissionDenied) as error:
                holder = self._holder(name)
                if holder is None:
                    raise
                reason = f"{self.name!r} has {what}, {holder}, and only one is allowed"
                if self._wait is None:
                    raise InvalidRequest(
                        f"{self.call}: {reason}: close that one, or wait for its end by wait="
                    ) from error
                if time.monotonic() >= self._until:
                    raise Timeout(f"{self.call}: waited {self._wait:g} s, and {reason}") from error
            self._await_change()
        self.undo.callback(_leave, self.broker, place)
        self.place, self.number = place, place.id

    def _holder(self, name: str) -> str | None:
        """Who holds an end, in words; None if it is free, or none that an end holds."""
        try:
            told = self.broker.stat(name)
        except NotFound:
            return "which ended just now"
        except PermissionDenied:
            return "a region of another user"
        if told.grace is None:
            return None
        return f"of process {told.holders[0].pid}" if told.holders else "whose process ends"

    def _await_change(self) -> None:
        """Wait until something happens to the ends, or time is over."""
        left = max(0.0, min(self._until - time.monotonic(), _PAUSE))
        with self.broker.watch(self.prefix, left) as watch, suppress(Timeout):
            next(watch)

    def watch(self, hearer: Hearer) -> None:
        """Tell the other ends that this one is ready; then have ``hearer`` look now, and whenever
        an end may have come or gone, by a thread.
        """
        self.place.seal()
        with Undo() as undo:
            # Begun here: the thread, which may run late, then hears of all ends from now on.
            watch = undo.keep(self.broker.watch(self.prefix, 0.0))
            hearer._look(set())
            # The thread tries again by itself.
            self.broker._connection.reconnect = watch._connection.reconnect = 0
            self._waker = Descriptor.opened(os.eventfd, 0)
            arguments = (self.broker, self.prefix, watch, self._waker, weakref.ref(hearer))
            thread = threading.Thread(target=_hear, args=arguments, name="gdrpy-ring", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                raise OutOfMemory(
                    f"{self.call}: {error}, and one must hear of the other end: raise the limit "
                    f"(ulimit -u), or end other threads"
                ) from error
            undo.forget()
        self._thread = thread

    def _wake(self) -> None:
        """Have the thread end."""
        os.eventfd_write(self._waker.fileno(), 1)

    def listed(self) -> Listed | None:
        """The ends that there are; None if the ring or this end is lost."""
        regions = {str(info.name): info for info in self.broker.list(self.prefix)}
        numbers = {name: info.region for name, info in regions.items()}
        try:
            memory = self.broker.stat(self.name).region
        except (NotFound, PermissionDenied):
            return None
        if (memory, numbers.get(self.host_name), self.broker.life) != self._held:
            return None
        if not self._closed and self.number not in numbers.values():
            return None
        ends = {  # but for other regions that have taken their names
            name: info.region
            for name, info in regions.items()
            if info.sealed and info.grace == 0 and ring_of(name) == self.name
        }
        cpu = {number for name, number in ends.items() if name.startswith(self.cpu_name)}
        return Listed(ends.get(self.kernel_name), cpu, set(numbers.values()))

    def opened(self) -> tuple[BrokerRegion, BrokerRegion]:
        """The memory of a ring that is there. Raises InvalidRequest if a part is missing."""
        try:
            memory, host = self.broker.get_many([self.name, self.host_name])
        except NotFound as error:
            if repr(self.host_name) not in str(error):
                raise
            raise InvalidRequest(
                f"{self.call}: region {self.name!r} exists without the other memory of a ring: "
                f"delete it by gdrpy.channel.delete()"
            ) from error
        return memory, host

    def hold(self, memory: BrokerRegion, host: BrokerRegion) -> None:
        """Note the memory, of this life of the broker. Raises PermissionDenied."""
        self._require_write(memory)
        self._require_write(host)
        self.memory, self.host = memory, host
        self._held = memory.id, host.id, self.broker.life

    @property
    def closed(self) -> bool:
        """Whether it is closed, or of the parent process."""
        return self._closed or self._pid != os.getpid()

    def close(self) -> None:
        """Give the place up, and end the thread. Threads may call it at once, and again."""
        if self.closed or not self._closing.acquire(blocking=False):
            return
        self._closed = True
        if self._thread is None:
            self.undo.close()
        elif self._thread is threading.current_thread():
            self._wake()  # by a finalizer, perhaps amid a broker's call: the rest goes with this
        elif self._is_awaited():
            _leave(self.broker, self.place)  # the thread goes on until this is gone
        else:
            self._wake()
            self._thread.join()
            self._waker.close()
            self._thread = None
            self.undo.close()

    def _is_awaited(self) -> bool:
        """Whether a call may wait for the other end after close()."""
        return False

    def __del__(self) -> None:
        if self._thread is not None and self._pid == os.getpid():
            self._wake()


def _leave(broker: Broker, place: BrokerRegion) -> None:
    """Have the name of a place free on return; without a broker, once there is one."""
    with suppress(*broker._unreached):
        place.delete()
    place.close()


def _hear(
    broker: Broker,
    prefix: str,
    watch: Watch | None,
    wake: Descriptor,
    end: weakref.ref[Hearer],
) -> None:
    """Have an end look after each event of a watch of a prefix, and every second; until it is told
    to stop, or the end is gone. When the watch ends, another one follows.
    """
    ready: set[str] = set()
    while True:
        try:
            with watch or broker.watch(prefix, 0.0) as watch:
                while _has_looked(end, ready):
                    ready.clear()
                    if _is_woken(wake, watch.fileno(), _LOOK):
                        return
                    with suppress(Timeout):
                        ready.update(
                            str(event.name)
                            for event in islice(watch, _EVENTS)
                            if event.kind == "sealed"
                        )
                return
        except broker._unreached:
            watch = None
            if _is_woken(wake, -1, _PAUSE):
                return
        except Exception as error:
            hearer = end()
            if hearer is not None:
                hearer._fail(error)
            del hearer  # the traceback keeps what is here
            raise


def _has_looked(end: weakref.ref[Hearer], ready: set[str]) -> bool:
    """Have an end look, if it is still there; whether it is."""
    hearer = end()
    if hearer is not None:
        hearer._look(ready)
    return hearer is not None


def _is_woken(wake: Descriptor, events: int, seconds: float) -> bool:
    """Wait for events, of a descriptor or -1; whether the thread is to end."""
    poll = select.poll()
    poll.register(wake, select.POLLIN)
    if events >= 0:
        poll.register(events, select.POLLIN)
    return any(fd != events for fd, _ in poll.poll(seconds * 1000))


class CpuEnd(Named):
    """The CPU's end of a named ring, whose memory it makes if the name is free."""

    def __init__(
        self,
        layout: Layout,
        broker: Any,
        name: Any,
        device: Any,
        mode: int,
        wait: Any,
    ) -> None:
        call = layout.kind
        if not isinstance(name, str) or broker is None:
            raise TypeError(
                f"{call}: a ring between processes needs broker=, of gdrpy.connect(), and name=, "
                f"a str, not {name!r:.80}"
            )
        super().__init__(call, broker, name, wait)
        self.layout = layout
        #: The number of the kernel's end that is there; None before the first, or after its end.
        self._kernel: int | None = None
        self._had_kernel = False
        #: Why no kernel's end will be heard of any more, if so, and the error that it comes from.
        self._lost = ""
        self._failure: Exception | None = None
        #: Of these, and of the state of the ring.
        self._changed = threading.Condition()
        with Undo() as undo, self.naming():
            undo.callback(self.close)
            with suppress(NotFound):  # before it takes a place, which is refused in other words
                self.require_ring()
            if call == "Channel":
                self.enter(f"{self.cpu_name}.{secrets.token_hex(_DIGITS)}", "a producer")
            else:
                self.enter(self.cpu_name, "a CPU's end")
            self.hold(*self._regions(device, mode))
            undo.forget()

    def _regions(self, device: Any, mode: int) -> tuple[BrokerRegion, BrokerRegion]:
        """The memory, made if it is missing, all of it zeros."""
        while True:
            try:
                return self._found()
            except NotFound:
                made = self._made(device, mode)
                if made is not None:
                    return made

    def _found(self) -> tuple[BrokerRegion, BrokerRegion]:
        memory, host = self.broker.get_many([self.name, self.host_name], gpu=False)
        found = Layout.of(self.call, memory, host)
        if found != self.layout:
            raise SizeMismatch(
                f"{self.call}: {self.name!r} exists as {_an(found)}, and {_an(self.layout)} was "
                f"asked for: ask for what exists, or take another name"
            )
        return memory, host

    def _made(self, device: Any, mode: int) -> tuple[BrokerRegion, BrokerRegion] | None:
        """Make the memory; None if another process did meanwhile."""
        layout, names = self.layout, [self.name, self.host_name]
        with Undo() as undo:
            options: dict[str, Any] = {"mode": mode, "metadata": layout.metadata, "gpu": False}
            memory = undo.keep(self.broker.create(names[0], layout.nbytes, device, **options))
            host = undo.keep(self.broker.create(names[1], layout.host_nbytes, "cpu", **options))
            zeros = bytes(min(_CHUNK, layout.nbytes))
            for offset in range(0, layout.nbytes, _CHUNK):
                memory.cpu.write(zeros[: layout.nbytes - offset], offset)
            versions = self.broker.publish_many([memory, host], missing=True)
            if all(versions):
                undo.forget()
                return memory, host
        if any(versions):
            there = versions.index(0)
            self.broker.delete(names[1 - there])
            raise InvalidRequest(
                f"{self.call}: region {names[there]!r} exists without the other memory of a ring: "
                f"delete it, or take another name"
            )
        return None

    @property
    def arguments(self) -> tuple[Any, ...]:
        """Those of the C core's type."""
        return (self.memory.cpu, self.host.cpu, *self.layout.sizes, CPU_END, self.number)

    def refuse(self, what: str) -> NoReturn:
        """Refuse what only the kernel's end has."""
        raise MissingView(
            f"{self.call}.{what}: this is the CPU's end of {self.name!r}: the other end, a "
            f"gdrpy.channel.KernelEnd, has it"
        )

    def begin(self, ring: Any) -> None:
        """Look after ``ring``, which has been made by the arguments, until it is gone."""
        self._ring = weakref.ref(ring)
        self.watch(self)

    def _look(self, ready: set[str]) -> None:
        """Tell the ring of what is at the other end, or was since the last look."""
        ring = self._ring()
        if ring is None:
            return
        # Before the list: what was taken by a kernel's end that is in no later list is settled, and
        # a producer that has a turn is in every later list unless it is gone.
        reserved = ring._reserved if self.call == "Inbox" else 0
        holder = ring._holder if self.call == "Channel" else 0
        found = self.listed()
        if found is not None and holder and holder not in found.numbers:
            ring._end_turn(holder)
        with self._changed:
            if found is None:
                ring._set_state(LOST, 0, None)
                self._lost = "its name was deleted, or the broker lost its state"
            else:
                self._had_kernel |= found.kernel is not None or self.kernel_name in ready
                if found.kernel is None:
                    ring._set_state(GONE if self._had_kernel else OPEN, reserved, None)
                elif found.kernel != self._kernel:
                    ring._set_state(OPEN, 0, None)
                self._kernel = found.kernel
            self._changed.notify_all()

    def _fail(self, error: Exception) -> None:
        """Have calls raise Closed because of an error."""
        ring = self._ring()
        if ring is not None:
            with self._changed:
                ring._set_state(UNHEARD, 0, error)
                self._lost = "the thread that hears of the kernel's end has failed"
                self._failure = error
                self._changed.notify_all()

    def wait_for_kernel(self, timeout: Any) -> None:
        """Wait until there is a kernel's end: see Ring.wait_for_kernel()."""
        call = f"{self.call}.wait_for_kernel"
        seconds = as_seconds(call, "timeout", timeout)
        if self._pid != os.getpid():  # where a lock may stay locked
            raise Forked(f"{call}: this {self.call} belongs to the parent process")

        def is_there() -> bool:
            if self._closed:
                raise Closed(f"{call}: this end is closed: open another")
            if self._lost:
                raise Closed(f"{call}: {self._lost}: open this end again") from self._failure
            return self._kernel is not None

        with self._changed:
            if not self._changed.wait_for(is_there, seconds):
                raise Timeout(
                    f"{call}: {self.name!r} has no kernel's end, and none came within {timeout} s"
                )

    def close(self) -> None:
        super().close()
        if self._pid == os.getpid():
            with self._changed:
                self._changed.notify_all()

    def _is_awaited(self) -> bool:
        ring = self._ring()
        return self.call != "Inbox" and ring is not None and ring._awaited

    def __repr__(self) -> str:
        return f"{self.name!r} of the broker at {self.broker.socket}"


def delete(broker: Broker, name: str) -> None:
    """Delete a named channel, inbox or link: the name is free, and its ends raise Closed.

    The memory is freed when both ends are closed. It also deletes the one region of a ring that has
    lost the other. Raises NotFound, InvalidRequest (it is another region's name), PermissionDenied,
    BrokerUnavailable.
    """
    client, there = as_broker("delete", broker), []
    for each in (f"{name}/host", name):
        with suppress(NotFound), calling("delete", "stat"):
            there.append(client.stat(each))
    for told in there:
        if (told.metadata or {}).get("format") != FORMAT:
            raise _no_ring("delete", told.name)
    for each in [str(told.name) for told in there] or [name]:
        client.delete(each)
