"""A region of a broker in a process that holds it."""

from __future__ import annotations

import errno
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from threading import Thread
from types import FrameType
from typing import TYPE_CHECKING, Any, Self, cast

from gdrpy import safetensors
from gdrpy._core._mapping import Descriptor, Undo, alone
from gdrpy.arrays.array import Array
from gdrpy.broker.client.base import BrokerBase
from gdrpy.broker.client.bound import guard
from gdrpy.broker.client.connection import Lease, Parcels
from gdrpy.broker.client.layouts import ARRAY, same_layout, stored_array
from gdrpy.broker.client.views import remember
from gdrpy.broker.copies import mark_of
from gdrpy.broker.protocol import CPU_DEVICE, unpack_metadata
from gdrpy.broker.replies import Grant, RegionInfo
from gdrpy.common.dtypes import DType
from gdrpy.errors import Gone, InvalidRequest, MissingView, NotFound, ReadOnly, Sealed, SizeMismatch
from gdrpy.memory import vmm
from gdrpy.memory.gpu import GpuMemory
from gdrpy.memory.memory import ATTACH
from gdrpy.memory.view import Mapping
from gdrpy.region import Region

if TYPE_CHECKING:
    import numpy as np


class LeasedRegion(Region):
    """A region that a broker granted. Made by the broker's calls: a BrokerRegion."""

    #: The broker's number of the region, valid in this life of the broker.
    id: int
    #: None for an anonymous region.
    name: str | None
    #: The version of its name, from 1 on; 0 for a draft.
    version: int
    #: Whether it was sealed before it was opened, or by this object.
    sealed: bool
    #: Whether the kernel keeps this process from writing in any way: its descriptor is read-only.
    #: Otherwise the views of a read-only region are read-only in the page tables of the CPU and of
    #: the GPU. That prevents mistakes, but the process could map the descriptor again and write.
    enforced: bool
    #: Whether it was bound to its exporter, whose lease has ended.
    ended = False

    _anew = "get it again by its name"
    _again = "connect to the broker, and get it again"

    _broker: BrokerBase[Self]
    _life: str
    _packed: bytes
    _metadata: dict[str, Any] | None = None
    #: What the broker told of it when sleep_many() detached it.
    _asleep: RegionInfo | None = None
    #: The host copy that wake_many() made it from, which stays mapped for the next time.
    _copy: LeasedRegion | None = None
    #: What has the broker count it as asleep while it is detached.
    _sleeper: Lease | None = None
    #: Whether it is bound to the lease of another connection, its exporter's.
    _bound = False
    #: Called when its exporter's lease ends.
    _callbacks: tuple[Callable[[Any], object], ...] = ()
    #: Whether its memory was taken after its end.
    _taken = False

    @classmethod
    def _granted(
        cls,
        broker: BrokerBase[Self],
        grant: Grant,
        parcels: Parcels,
        gpu: bool,
        cpu: bool,
        viewer: int | None = None,
        address: int | None = None,
    ) -> Self:
        """The region of a grant, made from the last of ``parcels``, which it removes.

        ``viewer`` is the ordinal of the GPU for its GPU view, None for the memory's own;
        ``address`` is that of the GPU view, None for any.
        """
        lease = parcels[-1][1]
        opening = _opening(grant.name)
        try:
            descriptor = _arrived(grant, parcels)
            device = None if grant.device == CPU_DEVICE else grant.device
            if device is None and not cpu:
                raise MissingView(
                    f"region {grant.name!r} is host memory, which has no GPU view: open it with "
                    f"cpu=True"
                )
            region = cls._adopt(
                opening,
                descriptor,
                grant.nbytes,
                device,
                gpu=gpu,
                cpu=cpu,
                readonly=grant.readonly,
                source=lease,
                viewer=viewer,
                address=address,
            )
            parcels.pop()
        except BaseException as error:
            parcels.clear()
            lease.close()
            if type(error) is NotFound:
                words = str(error).replace(_unseen(None), _unseen(grant.uuid))
                raise NotFound(words) from None
            raise
        try:
            region._broker = broker
            region._describe(grant, lease)
            remember(region._memory, region._cpu)
            if region._memory.unseen is not None:
                region._warn_of_unseen(grant.uuid)
        except BaseException:
            region.close()
            raise
        return region

    @property
    def _remedy(self) -> str:  # type: ignore[override]
        return ATTACH if self._asleep is None else "wake it by broker.wake_many([region]) first"

    def _warn_of_unseen(self, uuid: str | None) -> None:
        """Warn that it has the CPU view alone."""
        self._memory.unseen = words = _unseen(uuid)
        frame, level = sys._getframe(), 1
        while frame.f_back is not None and _is_ours(frame):
            frame, level = frame.f_back, level + 1
        warnings.warn(
            f"{_opening(self.name)} with its CPU view alone: {words}, or open it with gpu=False",
            stacklevel=level,
        )

    def _describe(self, grant: Grant, lease: Lease) -> None:
        self.id = grant.region
        self.name = grant.name
        self.version = grant.version
        self.sealed = grant.sealed
        self.enforced = grant.enforced
        self._packed, self._metadata = grant.metadata, None
        self._life = lease.life
        self._asleep = None
        self.ended = False
        self._bound = grant.grace is not None
        if grant.grace is not None:
            guard(self, lease, grant.grace)

    def _described(self) -> dict[str, Any]:
        """The fields that a grant sets, to restore if a change is undone."""
        names = "id", "name", "version", "sealed", "enforced", "readonly"
        hidden = "_packed", "_life", "_asleep", "_bound", "ended"
        return {"_metadata": None, **{name: getattr(self, name) for name in names + hidden}}

    def _attach_granted(self, call: str, newer: bool, grant: Grant, parcels: Parcels) -> bool:
        """Attach the memory of a grant, made from the last of ``parcels``, which it removes.

        A ``newer`` one's contents must lie alike. The lease is returned if this raises, or if
        another thread has attached the region: then it returns False.
        """
        lease, attached = parcels[-1][1], False
        try:
            descriptor = _arrived(grant, parcels)
            if grant.nbytes != self.nbytes:
                raise SizeMismatch(
                    f"{call}: version {grant.version} of region {grant.name!r} has {grant.nbytes} "
                    f"bytes, and this one {self.nbytes}: close this one, and get the other"
                )
            newer &= (lease.life, grant.region) != (self._life, self.id)
            if newer and not same_layout(self.metadata, unpack_metadata(grant.metadata)):
                raise SizeMismatch(
                    f"{call}: the contents of version {grant.version} of region {grant.name!r} lie "
                    f"otherwise than those of this one: close this one, and get the other"
                )
            fd, size = descriptor.fileno(), grant.size
            attached = self._attach(call, fd, grant.readonly, size, lease)
            if attached:
                self._describe(grant, lease)
                self._keep_copy_of_contents()
        finally:
            parcels.pop()
            if not attached:
                lease.close()
        return attached

    def _attach_once(self, call: str, *memory: Any) -> bool:
        self._check_taken(call)
        attached = super()._attach_once(call, *memory)
        if attached:
            self._sleeper = None
        return attached

    def _give_back(self, source: Any, told: Undo) -> None:
        alone(self._lock, self._fall_asleep, source)
        told.callback(source._connection.flush_patiently)
        source._connection.close_leases([source])

    def _fall_asleep(self, lease: Lease) -> None:
        if self.detached and self.version and not (lease.lost or self._taken):
            self._sleeper = lease.sleeper()

    def when_ended(self, callback: Callable[[Self], object]) -> None:
        """Have ``callback(region)`` called when the lease of its exporter has ended.

        Only regions that were allocated with ``grace`` end so. A thread of gdrpy calls it; if the
        region has ended already, this call does. The grace time begins before it is called, and
        the thread waits for it: it must return soon. sys.excepthook shows its errors.

        Raises InvalidRequest for a region that is not bound, and for the exporter, which ends it
        itself; TypeError; Gone once the memory was taken.
        """
        call = "BrokerRegion.when_ended"
        if not callable(callback):
            raise TypeError(f"{call}: callback must be callable, not {callback!r:.80}")
        self._check(call)
        if not self._bound:
            raise InvalidRequest(
                f"{call}: {self!r} is not bound to an exporter other than this connection, so it "
                f"never ends: have the exporter allocate it with grace=, and get it by another "
                f"connection"
            )
        if not alone(self._lock, self._add_callback, callback):
            callback(self)

    def _add_callback(self, callback: Callable[[Any], object]) -> bool:
        if not self.ended:
            self._callbacks += (callback,)
        return not self.ended

    def _end(self) -> tuple[Callable[[Any], object], ...]:
        """Note its end; returns the callbacks."""
        return alone(self._lock, self._end_once)

    def _end_once(self) -> tuple[Callable[[Any], object], ...]:
        self.ended = True
        callbacks, self._callbacks = self._callbacks, ()
        return callbacks

    def _take_away(self, key: tuple[str, int], is_idle: Callable[[], bool]) -> bool:
        """Give the memory of an ended region, ``key``, back, after which any use raises Gone.

        ``is_idle`` says whether the work that was queued on its GPUs at the first call is done.
        Returns whether this is over; False while it must be tried again. Raises BufferError as
        detach().
        """
        ours = alone(self._lock, self._lose, key)
        if not ours:
            return ours is not None
        if not (isinstance(self._memory, GpuMemory) and self._memory.can_detach):
            self.close()
            return True
        if not is_idle():
            return False
        lease = alone(self._lock, self._detach_lost)
        if lease is not None:
            lease.close()
            lease._connection.flush_patiently()
        return True

    def _lose(self, key: tuple[str, int]) -> bool | None:
        """Refuse every use, with the lock held, unless the memory is another region's; returns
        whether. None if it is detached: another thread may be about to attach it.
        """
        lease = self._memory.source
        if isinstance(lease, Lease) and (lease.life, lease.region) == key:
            self._taken = True
            self._disarm()
        return self._taken or (None if lease is None else False)

    def _detach_lost(self) -> Lease | None:
        """Detach it for good, with the lock held; returns its lease."""
        memory, lease = self._memory, self._lease
        assert isinstance(memory, GpuMemory)
        if self.closed or memory.detached:
            return None
        for mapping in self._detachable("taking a region"):
            mapping.close()
        memory.source, memory.lost = None, self._end_words
        memory.detach()
        return lease

    @property
    def _end_words(self) -> str:
        if self.name is None:
            return "the anonymous region ended with its exporter: close it"
        return f"region {self.name!r} ended with its exporter: close it, and get the next one"

    def _check(self, call: str, /) -> None:
        self._check_taken(call)
        super()._check(call)

    def _check_taken(self, call: str) -> None:
        """Raise Gone if its memory was taken."""
        if self._taken:
            raise Gone(f"{call}: {self._end_words}")

    def _keep_copy_of_contents(self) -> None:
        """Drop the host copy if it is of other contents: in a thread, for it takes 40 ms a GiB."""
        if self._copy is not None:
            of = mark_of(self._copy.metadata, self._copy.id)
            mine = mark_of(self.metadata, self.id)
            if of is None or mine is None or of.stamp != mine.stamp:
                copy, self._copy = [self._copy], None
                with suppress(RuntimeError):  # no more threads can start
                    Thread(target=copy.clear).start()

    @property
    def _lease(self) -> Lease:
        """The lease. The memory keeps it, since arrays outlive the region."""
        return cast(Lease, self._memory.source)

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata that was stored with the region."""
        if self._metadata is None:
            self._metadata = unpack_metadata(self._packed)
        return self._metadata

    def numpy(
        self, dtype: Any = None, shape: int | tuple[int, ...] | None = None, offset: int = 0
    ) -> np.ndarray[Any, Any]:
        """The array that put() stored. Else, or with any argument, as of a Mapping.

        Args:
            dtype: The elements' type; None is the stored array's, or "uint8".
            shape: The shape; None is the stored array's, or one dimension with all that fits.
            offset: The byte at which the first element begins.

        Raises ValueError if the metadata describes an array that put() cannot have stored.
        """
        if dtype is None and shape is None and not offset and ARRAY in self.metadata:
            dtype, shape = stored_array("BrokerRegion.numpy", self.metadata[ARRAY])
        return super().numpy("uint8" if dtype is None else dtype, shape, offset)

    def array(
        self, shape: int | tuple[int, ...] | None = None, dtype: Any = None, offset: int = 0
    ) -> Array:
        """The array that put() stored. Else, or with any argument, as of :meth:`Region.array`.

        Other libraries take the region itself as that array too. Its buffer has raw elements of
        types without a format.

        Args:
            shape: The shape; None is the stored array's, or one dimension with all that fits.
            dtype: The elements' type; None is the stored array's, or "U8".
            offset: The byte at which the first element begins.

        Raises as :meth:`Region.array`, and ValueError as :meth:`numpy`.
        """
        if dtype is None and shape is None and not offset and ARRAY in self.metadata:
            dtype, shape = stored_array("BrokerRegion.array", self.metadata[ARRAY])
        return super().array(shape, "U8" if dtype is None else dtype, offset)

    def _as_array(self) -> Array:
        try:
            return self.array()
        except TypeError as error:
            raise TypeError(
                f"{error}; the region's numpy() gives the array, array(dtype='U8') its bytes"
            ) from None
        except ValueError:  # metadata of another meaning
            return super().array()

    def _buffer(self, formatted: bool, /) -> memoryview:
        try:
            kind, shape = stored_array("BrokerRegion", self.metadata.get(ARRAY))
            raw = not kind.native if isinstance(kind, DType) else kind.kind in "mM"
            size = kind.nbytes if isinstance(kind, DType) else kind.itemsize
            return self.cpu.numpy(f"V{size}" if raw else kind, shape).data
        except ValueError:
            return super()._buffer(formatted)

    def tensors(self) -> dict[str, Array]:
        """The tensors of a region that ``put_tensors`` or ``load`` made, by name, without a copy.

        Raises ValueError unless it holds a valid image of the safetensors format.
        """
        return self._tensors("BrokerRegion.tensors")

    def _tensors(self, call: str) -> dict[str, Array]:
        self._check(call)
        try:
            return safetensors.tensors(self)
        except ValueError as error:
            raise ValueError(f"{call}: region {self.name!r} {self._instead(error)}") from error

    def _instead(self, error: ValueError) -> str:
        """The end of an error message for a region without tensors: its content, and the remedy."""
        if self.metadata.get("format") == "safetensors":
            return f"holds no valid tensors ({error}): publish them again"
        if self.metadata.get("format") == "checkpoint":
            return f"lists the files of a checkpoint: open it by broker.tensors({self.name!r})"
        if ARRAY in self.metadata:
            return (
                f"holds one array: torch.from_dlpack(broker.get({self.name!r})), or the region's "
                f"array() or numpy()"
            )
        return "holds no tensors: publish some by broker.put_tensors() or `gdrpy load`"

    def _check_writable(self, call: str) -> None:
        self._check(call)
        if self.sealed:
            raise Sealed(
                f"{call}: region {self.name!r} is sealed: publish a version by put() or create()"
            )
        if self.readonly:
            raise ReadOnly(
                f"{call}: region {self.name!r} is read-only here; get it with "
                f"readonly=False, as a user who may write it (`gdrpy stat` tells who)"
            )

    def _seal_here(self, view: Mapping | None) -> None:
        """Refuse writes from now on; ``view`` is a read-only CPU view in place of the old one."""
        self._disarm()
        if view is not None:
            assert self._cpu is not None
            assert self._mappings is not None
            self._mappings.add(self._cpu)
            self._cpu = view
        self.sealed = self.readonly = True

    def _protect(self) -> None:
        """Make the GPU view read-only in the page tables, once nothing writes any more."""
        if self._ptr is not None:
            assert isinstance(self._memory, GpuMemory)
            vmm.protect(self._memory)

    def _release(self) -> None:
        lease: Any = self._memory.source
        super()._release()
        self._sleeper = None
        if self._copy is not None:
            self._copy.close()
        if lease is not None:
            lease.close()
            lease._connection.flush_patiently()

    def _release_with_users(self) -> bool:
        told = super()._release_with_users()
        self._sleeper = None
        return told

    def __repr__(self) -> str:
        if self.closed and not self._taken:
            return f"<{type(self).__name__} CLOSED>"
        state = ", ended" if self.ended else ", sealed" if self.sealed else ""
        name = "anonymous" if self.name is None else repr(self.name)
        if self.closed:
            return f"<{type(self).__name__} {name}{state}: CLOSED>"
        return f"<{type(self).__name__} {name}{state}: {super().__repr__()[1:-1]}>"


def _opening(name: str | None) -> str:
    """The words that name the call in errors of opening a region."""
    return "opening an anonymous region" if name is None else f"opening region {name!r}"


def _unseen(uuid: str | None) -> str:
    """That this process does not see a GPU, in words."""
    return vmm.UNSEEN.format(gpu="a GPU" if uuid is None else f"the GPU {uuid}")


def _is_ours(frame: FrameType) -> bool:
    """Whether gdrpy's code runs in a frame."""
    return str(frame.f_globals.get("__name__")).partition(".")[0] == "gdrpy"


def _arrived(grant: Grant, parcels: Parcels) -> Descriptor:
    """The descriptor of the last of ``parcels``. Raises OSError if this process had no room."""
    descriptor = parcels[-1][0]
    if descriptor is None:
        raise OSError(
            errno.EMFILE,
            f"region {grant.name!r} came without its descriptor: this process may open "
            f"no more files; close some, or raise the limit (ulimit -n)",
        )
    return descriptor
