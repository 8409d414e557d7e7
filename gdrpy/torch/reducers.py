"""Tensors in gdrpy's memory, through torch's queues and pipes, without CUDA IPC."""

from __future__ import annotations

import functools
import os
import secrets
import sys
import threading
from collections.abc import Callable, Iterator
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple, NoReturn
from weakref import WeakKeyDictionary, WeakValueDictionary

import torch
from torch.multiprocessing import reductions

from gdrpy import cuda
from gdrpy._core._mapping import Descriptor, Undo
from gdrpy.broker.client.broker import BrokerRegion, attach, shared_broker, socket_of
from gdrpy.broker.client.connection import Lease
from gdrpy.broker.place import connect_path
from gdrpy.common import dlpack
from gdrpy.common.arguments import as_path
from gdrpy.common.dlpack import CUDA, HOST, Device, View
from gdrpy.common.dtypes import DTYPES
from gdrpy.common.resource import Closing, Hold, Parts
from gdrpy.errors import BrokerUnavailable, Closed, Gone
from gdrpy.memory import reclaim
from gdrpy.memory.choice import open_export
from gdrpy.memory.gpu import GpuMemory, memories_of, memory_at
from gdrpy.memory.memory import Memory
from gdrpy.memory.sending import received
from gdrpy.region import Region, alloc
from gdrpy.torch.holds import CALL, NBYTES, Inbox, Outbox, Outboxes, Watcher

#: The call that errors of a sender name.
_SENDING = "sending a tensor"

Reducer = Callable[[Any], tuple[Any, ...]]
#: A broker's region by its life and number, or other memory by a name that its sender made up.
Identity = tuple[str, int] | bytes


def install_reducers(socket: str | os.PathLike[str] | None = None) -> Reducers:
    """Have torch.multiprocessing carry tensors in gdrpy's memory by reference, not by CUDA IPC.

    Args:
        socket: The path of the broker's socket in this process. It is needed by receivers that have
            the broker at another path than the sender, and not at the one of
            :func:`gdrpy.connect`.

    Tensors, parameters and storages in regions, and in pools of regions, arrive as tensors of the
    same memory. Other tensors are left to torch. Call it in every process that sends; a receiver
    needs no call. :meth:`Reducers.uninstall`, or the end of a ``with`` block, restores torch's own
    reducers.

    The sender keeps a tensor until it was received and its last receiver has dropped it or has
    ended. It waits for the work that is queued on its current stream of the tensor's device.

    Raises BrokerUnavailable and PermissionDenied for a socket.
    """
    path = None if socket is None else as_path("install_reducers", "socket", socket)
    if path is not None:
        shared_broker(path)
    return Reducers(path)


class Reducers(Closing):
    """Installed reducers, until :meth:`uninstall`. Made by :func:`install_reducers`."""

    def __init__(self, socket: str | None) -> None:
        self.socket = socket
        _installed.append(self)
        if len(_installed) == 1:
            _register()

    def uninstall(self) -> None:
        """Leave tensors to the reducers from before, unless they are installed once more.

        What was sent stays valid. May be called again.
        """
        if self in _installed:
            _installed.remove(self)
            if not _installed:
                _unregister()
                _outboxes.close()

    def discard(self) -> int:
        """Drop the tensors that this process has sent and nobody has received, and count them.

        Call it when their receivers are dead. A receiver that is not gets Gone.
        """
        return sum(box.collect(received=False) for box in _outboxes.own())

    def _close_or_retire(self) -> None:
        self.uninstall()

    def __repr__(self) -> str:
        return f"<Reducers {'installed' if self in _installed else 'UNINSTALLED'}>"


#: The calls of install_reducers() that hold.
_installed: list[Reducers] = []
#: Our reducers, each with the one that it replaced.
_ours: dict[Reducer, Reducer] = {}
#: What this process has sent.
_outboxes = Outboxes()
#: Names of memory that no broker knows, each with its descriptor: a detached region gets others.
_names: WeakKeyDictionary[Memory, tuple[Descriptor | None, bytes]] = WeakKeyDictionary()
#: Memory that was sent or received, by the process, identity, and whether it is read-only.
_memories: WeakValueDictionary[tuple[int, Identity, bool], GpuMemory] = WeakValueDictionary()
#: Senders that this process has storages of, by the process and the identity of their slots.
_inboxes: WeakValueDictionary[tuple[int, Identity], Inbox] = WeakValueDictionary()
#: What keeps each received storage in its sender, by the storage's key.
_uses: WeakValueDictionary[tuple[Any, ...], _Use] = WeakValueDictionary()
#: The process and GPU of each received storage, until the GPU is done with it.
_in_use: dict[object, tuple[int, int]] = {}
#: Of threads that receive.
_turn = threading.RLock()


def _after_fork() -> None:
    global _turn
    _turn = threading.RLock()  # a thread of the parent may have it


os.register_at_fork(after_in_child=_after_fork)


class _Slot(NamedTuple):
    """Where a sender keeps a storage: the slots' memory file as in a _Sent, the slot, its token."""

    identity: Identity
    whole: Any
    number: int
    token: bytes


class _Sent(NamedTuple):
    """A storage on its way.

    ``whole`` is the path of the broker's socket, or memory that no broker knows. ``offset`` is
    where the storage begins in it. ``owner`` is the slot of the process that made the storage, if
    ``sender`` received it itself.
    """

    identity: Identity
    whole: Any
    readonly: bool
    offset: int
    nbytes: int
    sender: _Slot
    owner: _Slot | None


class _How(NamedTuple):
    """A tensor of a storage."""

    kind: type
    dtype: torch.dtype
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    requires_grad: bool
    conj: bool
    neg: bool


def _register() -> None:
    registered = _registered()
    for kind in (*torch._tensor_classes, torch.Tensor, torch.nn.Parameter):
        before = registered.get(kind, reductions.reduce_tensor)
        registered[kind] = _wrapped(_reduce_tensor, before)
    before = registered.get(torch.UntypedStorage, reductions.reduce_storage)
    registered[torch.UntypedStorage] = _wrapped(_reduce_storage, before)
    # For tensors that consist of others, and for frameworks that pickle by themselves.
    reductions.reduce_tensor = _wrapped(_reduce_tensor, reductions.reduce_tensor)
    reductions.reduce_storage = _wrapped(_reduce_storage, reductions.reduce_storage)


def _unregister() -> None:
    registered = _registered()
    for kind, reducer in list(registered.items()):
        registered[kind] = _ours.get(reducer, reducer)
    current: Any = reductions
    current.reduce_tensor = _ours.get(current.reduce_tensor, current.reduce_tensor)
    current.reduce_storage = _ours.get(current.reduce_storage, current.reduce_storage)
    _ours.clear()


def _registered() -> dict[type, Reducer]:
    found: dict[type, Reducer] = ForkingPickler._extra_reducers  # type: ignore[attr-defined]
    return found


def _wrapped(reduce: Callable[[Any], tuple[Any, ...] | None], before: Reducer) -> Reducer:
    """A reducer that leaves to ``before`` what ``reduce`` returns None for."""

    @functools.wraps(before)
    def reducer(thing: Any) -> tuple[Any, ...]:
        found = reduce(thing) if _installed else None
        return before(thing) if found is None else found

    _ours[reducer] = before
    return reducer


def _reduce_tensor(tensor: torch.Tensor) -> tuple[Any, ...] | None:
    if (
        tensor.layout is not torch.strided
        or tensor.is_nested
        or tensor.is_quantized
        or tensor.is_meta
        or torch.nn.parameter.is_lazy(tensor)
        or type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
        # What torch refuses; older releases have names.
        or any(name is not None for name in getattr(tensor, "names", ()))
        or (tensor.requires_grad and not tensor.is_leaf)
    ):
        return None
    sent = _sent(tensor.untyped_storage())
    if sent is None:
        return None
    torch.utils.hooks.warn_if_has_hooks(tensor)
    how = _How(
        type(tensor),
        tensor.dtype,
        tensor.storage_offset(),
        tuple(tensor.shape),
        tensor.stride(),
        tensor.requires_grad,
        tensor.is_conj(),
        tensor.is_neg(),
    )
    return rebuild_tensor, (sent, how)


def _reduce_storage(storage: torch.UntypedStorage) -> tuple[Any, ...] | None:
    sent = None if storage.device.type == "meta" else _sent(storage)
    return None if sent is None else (rebuild_storage, (sent,))


def rebuild_tensor(sent: _Sent, how: _How) -> torch.Tensor:
    """The tensor in a receiver. Raises as :func:`rebuild_storage`."""
    storage = rebuild_storage(sent)
    tensor = torch.empty(0, dtype=how.dtype, device=storage.device)
    tensor.set_(storage, how.offset, how.shape, how.stride)
    if how.conj:
        tensor = tensor.conj()
    if how.neg:
        tensor = torch._neg_view(tensor)
    if how.kind is torch.nn.Parameter:
        return torch.nn.Parameter(tensor, how.requires_grad)
    return tensor.requires_grad_(how.requires_grad)


def _sent(storage: torch.UntypedStorage) -> _Sent | None:
    """A storage on its way, which this process keeps from now on; None if it lies elsewhere."""
    nbytes = storage.nbytes()
    found = memory_at(storage.data_ptr(), nbytes) if nbytes else None
    if found is None:
        return None
    memory, offset = found
    try:
        memory._check(_SENDING)
    except Closed:
        raise Closed(
            f"{_SENDING}: the region that it lies in was closed: keep the region open, or drop it "
            f"without close(), until the tensor was sent"
        ) from None
    if storage.is_cuda:
        torch.cuda.current_stream(storage.device).synchronize()
    identity, whole = _named(memory)
    before, use = _cached(_key(identity, memory.guarded, offset, nbytes))
    _memories[os.getpid(), identity, memory.guarded] = memory
    socket = whole if isinstance(whole, str) else None
    box, index, token = _outboxes.keep(socket, functools.partial(_room, socket), storage, memory)
    _watcher.wake()
    sender = _Slot(*_named(box.region._memory), index, token)
    owner = use.slot if use is not None and before._cdata == storage._cdata else None
    return _Sent(identity, whole, memory.guarded, offset, nbytes, sender, owner)


def _named(memory: Memory) -> tuple[Identity, Any]:
    """Memory's identity, and what opens it elsewhere: its broker's socket, or the memory itself."""
    lease = memory.source
    if isinstance(lease, Lease) and not lease.lost:
        return (lease.life, lease.region), lease.socket
    _ = memory.fd  # raises for memory that has none
    made = memory._fd, secrets.token_bytes(16)
    known = _names.setdefault(memory, made)
    if known[0] is not memory._fd:
        known = _names[memory] = made
    return known[1], memory


def _key(identity: Identity, readonly: bool, offset: int, nbytes: int) -> tuple[Any, ...]:
    """A storage's key in torch's cache of what other processes share."""
    return "gdrpy", os.getpid(), identity, readonly, offset, nbytes


def _cached(key: tuple[Any, ...]) -> tuple[Any, _Use | None]:
    """The storage that was received last with a key, and what keeps it, if it is still there."""
    storage = reductions.storage_from_cache(torch.UntypedStorage, key)
    return storage, None if storage is None else _uses.get(key)


def _room(socket: str | None) -> Region:
    """A region for slots: of the broker, or of this process if there is none."""
    if socket is None:
        return alloc(NBYTES, "cpu")
    return shared_broker(socket).allocate(None, NBYTES, "cpu", gpu=False)


def rebuild_storage(sent: _Sent) -> torch.UntypedStorage:
    """The storage in a receiver, which has one of each. Raises Gone, NotFound, PermissionDenied,
    BrokerUnavailable, OutOfMemory.
    """
    owner = sent.owner or sent.sender
    with _turn:
        if _own(owner) is None:
            storage = _shared(sent)
        else:
            storage = _came(owner)
            if not _lies_in(storage, sent):
                if sent.owner is None:
                    raise Gone(f"{CALL}: its region was detached since it was sent: send it again")
                return _shared(sent._replace(owner=None))
        if sent.owner is not None:
            _came(sent.sender)
    return storage


def _shared(sent: _Sent) -> torch.UntypedStorage:
    """Another process's storage, of which this process has one."""
    slot = sent.owner or sent.sender
    key = _key(sent.identity, sent.readonly, sent.offset, sent.nbytes)
    storage, use = _cached(key)
    if use is not None and _lies_in(storage, sent):
        use.take(slot)
        return storage
    storage = _made(sent, slot, key)
    reductions.shared_cache[key] = reductions.StorageWeakRef(storage)
    return storage


def _came(slot: _Slot) -> Any:
    """Tell a sender that its storage was received; the storage if that is this process."""
    return (_own(slot) or _inbox(slot)).came(slot.number, slot.token)


def _lies_in(storage: Any, sent: _Sent) -> bool:
    """Whether a storage lies in the memory that was sent, which its region may have replaced."""
    found = memory_at(storage.data_ptr(), sent.nbytes)
    return found is not None and not found[0].detached and _named(found[0])[0] == sent.identity


def _made(sent: _Sent, slot: _Slot, key: tuple[Any, ...]) -> torch.UntypedStorage:
    """A new storage, which the process of a slot keeps as long as this one has it."""
    inbox = _inbox(slot)
    with Undo() as undo:
        inbox.take(slot.number, slot.token)
        undo.callback(inbox.end, slot.number)
        memory = _memory(sent)
        use = _Use(Hold(memory, Parts), memory, inbox, slot)
        undo.forget()
    _uses[key] = use
    _watcher.wake()
    made = torch.from_dlpack(_Bytes(memory, sent, use))
    return made.untyped_storage()


def _memory(sent: _Sent) -> GpuMemory:
    """The memory of a storage, opened once."""
    key = os.getpid(), sent.identity, sent.readonly
    memory = _memories.get(key)
    if (
        memory is None
        or memory.closed
        or memory.detached
        or _named(memory)[0] != sent.identity  # it was replaced in its region
        or memory.guarded != sent.readonly
    ):
        memory = _opened(sent)
        _memories[key] = memory
    return memory


def _opened(sent: _Sent) -> GpuMemory:
    identity = sent.identity
    if isinstance(identity, bytes):
        found = open_export(CALL, received(sent.whole).fd, gpu=True, readonly=sent.readonly)
        assert isinstance(found, GpuMemory)
        _names[found] = found._fd, identity
        return found

    def mine(source: object) -> bool:
        return (
            isinstance(source, Lease)
            and not source.lost
            and (source.life, source.region) == identity
        )

    for memory in memories_of(mine):
        usual = memory.guarded == sent.readonly and memory.device == memory.home
        if usual and not memory.detached:
            return memory
    region = _attached(identity, sent.whole, gpu=True, cpu=False, readonly=sent.readonly)
    assert isinstance(region._memory, GpuMemory)
    return region._memory


def _own(slot: _Slot) -> Outbox | None:
    """The outbox of this process that has a slot."""
    for box in _outboxes.own():
        if _named(box.region._memory)[0] == slot.identity:
            return box
    return None


def _inbox(slot: _Slot) -> Inbox:
    """The sender that has a slot, opened once."""
    key = os.getpid(), slot.identity
    inbox = _inboxes.get(key)
    if inbox is None:
        identity = slot.identity
        region: Region
        if isinstance(identity, tuple):
            region = _attached(identity, slot.whole, gpu=False, cpu=True, readonly=False)
        else:
            memory = open_export(CALL, received(slot.whole).fd, gpu=False)
            _names[memory] = memory._fd, identity
            region = Region._of(memory, NBYTES, cpu=False)
        inbox = Inbox(region, isinstance(identity, tuple))
        _inboxes[key] = inbox
    return inbox


def _attached(identity: tuple[str, int], socket: str, **views: bool) -> BrokerRegion:
    life, number = identity
    try:
        return attach(_socket(life, socket), life, number, **views)
    except Gone as error:
        raise Gone(
            f"{CALL}: its sender has ended, or is another user's, whose regions this process may "
            f"not have ({error}): keep the sender until the tensor has arrived, and share tensors "
            f"with other users by name, with gdrpy.torch.share(..., mode=0o660) and attach()"
        ) from error


def _socket(life: str, senders: str) -> str:
    """The path of the broker with this identity, which its sender has at another one."""
    path, reasons = socket_of(life, _paths(senders))
    if path is not None:
        return path
    raise BrokerUnavailable(
        f"{CALL}: this process does not reach the sender's broker, which the sender has at "
        f"{senders} ({reasons}): give it the socket's folder, and say where by "
        f"gdrpy.torch.install_reducers(socket)"
    )


def _paths(senders: str) -> Iterator[str]:
    yield from (one.socket for one in reversed(_installed) if one.socket is not None)
    yield senders
    yield connect_path()


class _Use:
    """What keeps a received storage: its memory here, and the storage in its senders.

    The sender's is kept until the GPU work queued when the storage is dropped is done.
    """

    _finalizing = staticmethod(sys.is_finalizing)

    def __init__(self, hold: Hold, memory: GpuMemory, inbox: Inbox, slot: _Slot) -> None:
        self._hold = hold
        self._memory = memory
        self._taken = {inbox: slot}
        self._number = object()
        _in_use[self._number] = os.getpid(), memory.devices[0]

    def take(self, slot: _Slot) -> None:
        """Have the process of a slot keep the storage too, if this process has it from others."""
        inbox = _inbox(slot)
        if inbox in self._taken:
            inbox.came(slot.number, slot.token)
        else:
            inbox.take(slot.number, slot.token)
            self._taken[inbox] = slot

    @property
    def slot(self) -> _Slot:
        """The first slot, to send on: other processes open its file by this one."""
        inbox, slot = next(iter(self._taken.items()))
        return _Slot(*_named(inbox.region._memory), slot.number, slot.token)

    def __del__(self) -> None:
        if self._finalizing() or self._memory._forked():
            return
        undo = Undo()
        undo.callback(_in_use.pop, self._number)
        for inbox, slot in self._taken.items():
            undo.callback(inbox.end, slot.number)
        undo.callback(self._hold.end)
        reclaim.give_back(self._memory.devices, undo, self._memory)


class _Bytes:
    """The bytes of a storage, for torch."""

    def __init__(self, memory: GpuMemory, sent: _Sent, use: _Use) -> None:
        self._memory, self._sent, self._use = memory, sent, use

    def __dlpack_device__(self) -> Device:
        if cuda.simulated():
            return HOST
        assert self._memory.device is not None
        return CUDA, self._memory.device

    def __dlpack__(self, **wishes: Any) -> object:
        return dlpack.export(CALL, self, **wishes)

    def _view(self, device: Device) -> View | None:
        assert self._memory.ptr is not None
        address, shape = self._memory.ptr + self._sent.offset, (self._sent.nbytes,)
        return View(address, device, shape, DTYPES["U8"], self._memory.guarded, self._use)

    def _copy(self, device: Device, stream: int | None) -> NoReturn:  # noqa: ARG002
        raise BufferError(f"{CALL}: no copies are made for DLPack device {device}")


def _look() -> bool:
    """Give back what receivers, and GPUs, are done with. Whether there is more to wait for."""
    _outboxes.collect()
    for device in _receiving():
        reclaim.reclaim(device)
    return bool(_outboxes.count or _receiving())


def _receiving() -> set[int]:
    """The GPUs of what this process has received and is not done with."""
    pid = os.getpid()
    return {device for process, device in _in_use.copy().values() if process == pid}


_watcher = Watcher(_look)
