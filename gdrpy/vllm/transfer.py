"""The weight transfer engine "gdrpy": trainers publish weights, and engines load them in place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from secrets import token_hex
from typing import Any

import torch
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.model_loader.reload import (
    finalize_layerwise_reload,
    initialize_layerwise_reload,
)

from gdrpy.broker.client.broker import Broker, connect
from gdrpy.errors import InvalidRequest, NotFound
from gdrpy.torch.modules import attach, share
from gdrpy.vllm.loader import shared


@dataclass
class InitInfo(WeightTransferInitInfo):
    """``socket`` is the broker's, as for :func:`gdrpy.connect`."""

    socket: str | None = None


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):
    """``name`` is that of a region or checkpoint with tensors named as in the model's files."""

    name: str


@dataclass
class SendArgs:
    """How a trainer sends: ``send`` passes the update's fields to the engines."""

    name: str
    send: Callable[[dict[str, Any]], object]
    socket: str | None = None


class Engine(WeightTransferEngine[InitInfo, UpdateInfo]):
    """Each worker copies what it needs from the trainer's region, also over NVLink."""

    init_info_cls = InitInfo
    update_info_cls = UpdateInfo
    _broker: Broker | None = None

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        """Connect to the broker."""
        self._broker = connect(init_info.socket)

    def start_weight_update(self) -> None:
        """Prepare the model. Raises InvalidRequest if its weights are shared with other engines."""
        if shared:
            raise InvalidRequest(
                "start_weight_update: this engine's weights are read-only, since load_format=gdrpy "
                "shares them with other engines: load it by another format"
            )
        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: UpdateInfo) -> None:
        """Load the tensors of a region."""
        if self._broker is None:
            self._broker = connect()
        tensors = attach(self._broker, update_info.name)
        self.model.load_weights(tensors.items())
        torch.accelerator.synchronize()

    def finish_weight_update(self) -> None:
        """Finish the layers."""
        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        """Close the connection."""
        if self._broker is not None:
            self._broker.close()

    @staticmethod
    def trainer_send_weights(
        iterator: Iterator[tuple[str, torch.Tensor]], trainer_args: dict[str, Any] | SendArgs
    ) -> None:
        """Publish a trainer's tensors as one region, have the engines load it, and delete it.

        Raises InvalidRequest if there is a region of the name, which it leaves alone.
        """
        args = SendArgs(**trainer_args) if isinstance(trainer_args, dict) else trainer_args
        mine = {"sender": token_hex()}
        with connect(args.socket) as broker:
            try:
                share(broker, args.name, dict(iterator), missing=True, metadata=mine)
            except ValueError as error:
                with suppress(NotFound):
                    broker.stat(args.name)  # it has no tensors
                    raise _taken(args.name) from error
                raise
            with broker.get(args.name, gpu=False, cpu=False) as region:
                if region.metadata.get("sender") != mine["sender"]:
                    raise _taken(args.name)
                try:
                    args.send({"name": args.name})
                finally:
                    with suppress(NotFound):  # somebody else deleted or replaced it
                        region.delete()


def _taken(name: str) -> InvalidRequest:
    return InvalidRequest(
        f"trainer_send_weights: there is a region {name!r} already: choose another name, or delete "
        f"it"
    )
