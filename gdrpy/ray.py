"""A tensor transport for Ray: actors of one machine share torch tensors through its broker."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import ray
import torch

from gdrpy.broker.client.broker import BrokerRegion, attach, shared_broker, socket_of
from gdrpy.broker.client.connection import Lease
from gdrpy.broker.client.views import lease_at
from gdrpy.broker.place import connect_path
from gdrpy.errors import BrokerUnavailable
from gdrpy.memory.gpu import memory_at
from gdrpy.torch.views import clusters, extent

try:
    from ray.experimental import (
        CommunicatorMetadata,
        TensorTransportManager,
        TensorTransportMetadata,
        register_tensor_transport,
    )
    from ray.experimental.rdt.util import transport_manager_info
except ImportError as error:
    raise ImportError(
        f"gdrpy.ray needs Ray 2.55 or newer, and this is {ray.__version__}, which lacks something "
        f"that it builds on: {error}"
    ) from error

__all__ = ["Transport", "register_transport"]

#: The transport's name.
NAME = "GDRPY"
#: Copied tensors lie at the same place modulo this as in their storage.
_ALIGNMENT = 256


def register_transport() -> None:
    """Make the transport known to Ray: ``@ray.method(tensor_transport="GDRPY")``.

    Call it in the process that makes the actors, before it makes them; Ray makes it known to them.
    Each process uses the broker that :func:`gdrpy.connect` finds. Calling it again does nothing.
    """
    if NAME not in transport_manager_info:
        register_tensor_transport(NAME, ["cuda", "cpu"], Transport, torch.Tensor)


class _Source(NamedTuple):
    """A region, which a receiver opens with its GPU view or its CPU view."""

    socket: str
    life: str
    region: int
    gpu: bool
    readonly: bool


class _Place(NamedTuple):
    """Where a tensor lies: the number of its source, None if it has no elements, and the byte."""

    source: int | None
    offset: int
    device: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]


@dataclass
class _Metadata(TensorTransportMetadata):
    """What a receiver is told of an object: its regions, and the places of its tensors."""

    host: str = ""
    sources: list[_Source] = field(default_factory=list)
    places: list[_Place] = field(default_factory=list)


class Transport(TensorTransportManager):
    """The transport that :func:`register_transport` registers; Ray makes one in each process.

    Tensors in regions of a broker are shared where they lie. The others, and those in arenas and
    pools, are copied, those of an object into one anonymous region for each device. Ray frees that
    when the object goes out of scope; a receiver's tensors keep its memory for as long as they
    live, even if the sender dies.
    """

    def __init__(self) -> None:
        #: Of each object of this process: what receivers are told, and the regions with copies.
        self._sent: dict[str, tuple[_Metadata, list[BrokerRegion]]] = {}

    def tensor_transport_backend(self) -> str:
        return NAME

    @staticmethod
    def is_one_sided() -> bool:
        return True

    @staticmethod
    def can_abort_transport() -> bool:
        return True  # or Ray kills both actors when one fails

    def actor_has_tensor_transport(self, actor: Any) -> bool:  # noqa: ARG002
        return True

    def extract_tensor_transport_metadata(
        self, obj_id: str, rdt_object: list[torch.Tensor]
    ) -> _Metadata:
        """Share an object's tensors. The work queued on them is done when this returns.

        Raises TypeError for sparse, nested and quantized tensors and those without memory, Detached
        for those of a detached region, and as ``Broker.allocate``.
        """
        if obj_id not in self._sent:  # a task that Ray repeats keeps its first result
            self._sent[obj_id] = _share(rdt_object)
        return self._sent[obj_id][0]

    def get_communicator_metadata(
        self,
        src_actor: Any,  # noqa: ARG002
        dst_actor: Any,  # noqa: ARG002
        backend: str | None = None,  # noqa: ARG002
    ) -> CommunicatorMetadata:
        return CommunicatorMetadata()

    def recv_multiple_tensors(
        self,
        obj_id: str,  # noqa: ARG002
        tensor_transport_metadata: _Metadata,
        communicator_metadata: CommunicatorMetadata,  # noqa: ARG002
        target_buffers: list[torch.Tensor] | None = None,
    ) -> list[torch.Tensor]:
        """The sender's tensors, or the target buffers with a copy of them.

        Raises BrokerUnavailable on another machine than the sender's, Gone if its memory no longer
        exists, NotFound if this process does not see the memory's GPU.
        """
        told = tensor_transport_metadata
        regions = [_open(source, told.host) for source in told.sources]
        tensors = [_tensor(place, regions) for place in told.places]
        if not target_buffers:
            return tensors
        for buffer, tensor in zip(target_buffers, tensors, strict=True):
            buffer.copy_(tensor)
        return target_buffers

    def send_multiple_tensors(
        self, tensors: Any, tensor_transport_metadata: Any, communicator_metadata: Any
    ) -> None:
        raise NotImplementedError("GDRPY is one-sided: receivers open the sender's memory")

    def garbage_collect(
        self,
        obj_id: str,
        tensor_transport_meta: _Metadata,  # noqa: ARG002
        tensors: list[torch.Tensor],  # noqa: ARG002
    ) -> None:
        """Drop an object's copies: receivers keep what they have."""
        self._sent.pop(obj_id, None)

    def abort_transport(self, obj_id: str, communicator_metadata: CommunicatorMetadata) -> None:
        """Nothing: receivers wait for nobody."""


def _share(tensors: list[torch.Tensor]) -> tuple[_Metadata, list[BrokerRegion]]:
    """What to tell receivers of tensors, and the regions with copies."""
    plain = dict(enumerate(map(_plain, tensors)))
    sources: dict[_Source, int] = {}
    places: dict[int, tuple[int | None, int]] = {}
    others: dict[int, torch.Tensor] = {}
    for number, one in plain.items():
        start, end = extent(one)
        found = lease_at(one.data_ptr(), end - start)
        if start == end:
            places[number] = None, 0
        elif found is None or found.memory.in_parts:
            others[number] = one  # an arena would use the memory again while receivers have it
        else:
            source = _source(found.lease, found.memory.ptr is not None)
            places[number] = sources.setdefault(source, len(sources)), found.offset
    by_device: dict[torch.device, list[dict[int, torch.Tensor]]] = {}
    for numbers in clusters(others):
        cluster = {number: others[number] for number in numbers}
        if len(cluster) == 1:  # the gaps of a tensor alone, such as one column of many
            (number,) = cluster
            plain[number] = cluster[number] = _without_gaps(others[number])
        by_device.setdefault(plain[numbers[0]].device, []).append(cluster)
    regions = []
    for device, those in by_device.items():
        region, offsets = _copy(device, those)
        regions.append(region)
        source = _source(region._lease, region.device is not None)
        index = sources.setdefault(source, len(sources))
        places |= {number: (index, offset) for number, offset in offsets.items()}
    for device in {one.device for one in plain.values() if one.is_cuda}:
        torch.cuda.current_stream(device).synchronize()
    told = _Metadata(
        tensor_meta=[(one.shape, one.dtype) for one in plain.values()],
        tensor_device=plain[0].device.type if plain else None,
        host=os.uname().nodename,
        sources=list(sources),
        places=[
            _Place(*places[number], one.device.type, one.dtype, tuple(one.shape), one.stride())
            for number, one in plain.items()
        ],
    )
    return told, regions


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor without what is not in its memory. Raises TypeError, Detached."""
    dense = tensor.layout is torch.strided and not tensor.is_nested and not tensor.is_quantized
    if not dense or tensor.is_meta:
        raise TypeError(
            f"sharing a tensor by {NAME}: it is sparse, nested or quantized, or has no memory "
            f"({tensor.layout}, {tensor.dtype}, {tensor.device}): return a dense copy"
        )
    start, end = extent(tensor)
    held = memory_at(tensor.data_ptr(), end - start)
    if held is not None and held[0].detached:
        held[0]._check(f"sharing a tensor by {NAME}")
    return tensor.detach().resolve_conj().resolve_neg()


def _without_gaps(tensor: torch.Tensor) -> torch.Tensor:
    start, end = extent(tensor)
    return tensor if end - start <= tensor.nbytes else tensor.contiguous()


def _source(lease: Lease, gpu: bool) -> _Source:
    return _Source(lease.socket, lease.life, lease.region, gpu, not lease.writable)


def _copy(
    device: torch.device, parts: list[dict[int, torch.Tensor]]
) -> tuple[BrokerRegion, dict[int, int]]:
    """A region with copies of a device's tensors, and their offsets.

    Those of one part overlap, and do so in the region.
    """
    offsets: dict[int, int] = {}
    pieces: list[tuple[int, torch.Tensor]] = []
    offset = 0
    for part in parts:
        extents = {number: extent(one) for number, one in part.items()}
        start = min(extents.values())[0] // _ALIGNMENT * _ALIGNMENT
        nbytes = max(end for _, end in extents.values()) - start
        offsets |= {number: offset + first - start for number, (first, _) in extents.items()}
        piece = torch.empty(0, dtype=torch.uint8, device=device)
        storage = next(iter(part.values())).untyped_storage()
        pieces.append((offset, piece.set_(storage, start, (nbytes,), (1,))))
        offset += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
    broker = shared_broker(connect_path())
    region = broker.allocate(None, offset, device, cpu=device.type == "cpu")
    copies = torch.from_dlpack(region.array())
    for offset, piece in pieces:
        copies[offset : offset + piece.numel()].copy_(piece)
    return region, offsets


def _open(source: _Source, host: str) -> BrokerRegion:
    """The sender's region, by its broker's path in the sender or by that of this process."""
    path, reasons = socket_of(source.life, (source.socket, connect_path()))
    if path is not None:
        return attach(path, source.life, source.region, source.gpu, not source.gpu, source.readonly)
    raise BrokerUnavailable(
        f"receiving tensors by {NAME}: they lie at the broker at {source.socket} on {host}, which "
        f"this process on {os.uname().nodename} does not reach ({reasons}): between machines use "
        f"another transport, such as NIXL or GLOO, or ray.get(reference, _use_object_store=True), "
        f"or send a gdrpy.broker.Reference"
    )


def _tensor(place: _Place, regions: list[BrokerRegion]) -> torch.Tensor:
    source, offset, device, dtype, shape, stride = place
    if source is None:
        return torch.empty_strided(shape, stride, dtype=dtype, device=device)
    steps = zip(shape, stride, strict=True)
    count = 1 + sum((length - 1) * step for length, step in steps)
    flat = torch.from_dlpack(regions[source].array(count * dtype.itemsize, "U8", offset))
    return flat.view(dtype).as_strided(shape, stride)
