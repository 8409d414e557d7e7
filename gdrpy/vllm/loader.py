"""The load format "gdrpy": the first engine publishes its weights, and the next ones attach."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec
import torch
import vllm
from vllm.envs import compile_factors
from vllm.logger import init_logger
from vllm.model_executor.model_loader import get_model_loader
from vllm.model_executor.model_loader.base_loader import BaseModelLoader
from vllm.model_executor.model_loader.utils import (
    initialize_model,
    process_weights_after_loading,
)
from vllm.utils.torch_utils import set_default_torch_dtype

from gdrpy import cuda
from gdrpy.broker.client.broker import Broker, BrokerRegion, connect
from gdrpy.broker.replies import Reply
from gdrpy.broker.requests import Delete
from gdrpy.errors import Error, InvalidRequest, NotFound
from gdrpy.region import detach_many
from gdrpy.torch.naming import check_owner, commit_of, name_of, settings_of
from gdrpy.vllm.contents import Contents, blank, numbers_of, packed
from gdrpy.vllm.fallback import Unshareable, sharing, told
from gdrpy.vllm.kv_cache import forget, offer

_logger = init_logger("vllm.gdrpy")


class Shared(NamedTuple):
    """A model of this process, and the region that its weights are in.

    ``loaded`` has the names of the numbers that came with the weights.
    """

    broker: Broker
    region: BrokerRegion
    model: weakref.ref[torch.nn.Module]
    loaded: set[str]


#: The models of this process that the load format "gdrpy" loaded.
shared: list[Shared] = []


class _Options(msgspec.Struct, forbid_unknown_fields=True):
    """``model_loader_extra_config``.

    ``name`` is that of the region, ``kv_cache`` that of the region for the KV cache; ranks add
    "/RANK". ``replace`` has this engine load and publish a new version. ``load_format`` and
    ``extra_config`` are those by which an engine loads.
    """

    name: str | None = None
    replace: bool = False
    kv_cache: str | None = None
    socket: str | None = None
    load_format: str = "auto"
    extra_config: dict[str, Any] = {}


class Loader(BaseModelLoader):
    """Weights in a sealed region of the broker.

    Parameters are views of the region. Other tensors of the model, which kernels may write, are
    copies of this engine.
    """

    def __init__(self, load_config: Any) -> None:
        super().__init__(load_config)
        try:
            self._options = msgspec.convert(load_config.model_loader_extra_config, _Options)
        except msgspec.ValidationError as error:
            raise ValueError(f"load_format=gdrpy: model_loader_extra_config: {error}") from None
        options = self._options
        own = replace(
            load_config,
            load_format=options.load_format,
            model_loader_extra_config=options.extra_config,
        )
        self._own = get_model_loader(own)
        self._numbers: dict[str, Any] = {}

    def download_model(self, model_config: Any) -> None:
        """Download a model by the loader of the first engine."""
        self._own.download_model(model_config)

    def load_weights(self, model: torch.nn.Module, model_config: Any) -> None:
        """Load weights by the loader of the first engine."""
        self._numbers = numbers_of(model)
        self._own.load_weights(model, model_config)

    def load_model(self, vllm_config: Any, model_config: Any, prefix: str = "") -> Any:
        """Load a model, and share its weights with the other engines of this machine.

        A thread of its own does it, because vLLM has this thread allocate from the pool that it
        empties by itself when it sleeps. torch never frees what is dropped there.
        """
        device = self._device(vllm_config)

        def load() -> Any:
            with nullcontext() if device.type == "cpu" else torch.cuda.device(device):
                return self._shared(vllm_config, model_config, prefix)

        try:
            with _config_restored(vllm_config), ThreadPoolExecutor(1) as thread:
                model = thread.submit(load).result()
            self._offer_cache(vllm_config, model_config, model)
            return model
        except Unshareable as error:
            told(error)
        return self._own.load_model(vllm_config, model_config, prefix)

    def _offer_cache(self, vllm_config: Any, model_config: Any, model: torch.nn.Module) -> None:
        """Have vLLM make its KV cache in a region, if that is asked for."""
        name, device = self._options.kv_cache, self._device(vllm_config)
        if name is None or model_config is not vllm_config.model_config:
            return
        try:
            with sharing(), ExitStack() as undo:
                broker = connect(self._options.socket)
                undo.callback(broker.close)
                where = device.index or 0
                cache = offer(broker, name + _rank_of(vllm_config), vllm_config, where)
                undo.pop_all()
            # When the process ends, the broker waits for its GPU work, and ends its lease.
            weakref.finalize(model, forget, cache).atexit = False
        except Unshareable as error:
            told(error)

    def _shared(self, vllm_config: Any, model_config: Any, prefix: str) -> Any:
        _check_shareable(vllm_config)
        options, device = self._options, self._device(vllm_config)
        with sharing():
            name = _name_of(options, vllm_config, model_config, prefix, device)
            broker = connect(options.socket)
        with ExitStack() as undo:
            undo.callback(broker.close)
            with sharing():
                region = None if options.replace else self._found(broker, name)
            if region is None:
                did, model = "published", super().load_model(vllm_config, model_config, prefix)
                with sharing():
                    region = self._publish(broker, name, model, vllm_config)
                    self._check_region(broker, region, device)
                    undo.callback(_withdraw, broker, region)
                    contents = Contents(region)
                    contents.share(model)
                if device.type == "cuda":
                    torch.cuda.empty_cache()
            else:
                undo.callback(detach_many, [region])
                with sharing():
                    self._check_region(broker, region, device)
                    did, contents = "attached", Contents(region)
                    model = self._attach(contents, vllm_config, model_config, prefix)
            undo.pop_all()
        if model_config.enable_sleep_mode:
            try:
                broker.keep_many([region])
            except (Error, ValueError) as error:
                _logger.warning("gdrpy: the first sleep will copy the weights: %s", error)
        _logger.info("gdrpy: %s %d bytes of weights as region %r", did, region.nbytes, name)
        one = Shared(broker, region, weakref.ref(model), contents.loaded)
        shared.append(one)
        weakref.finalize(model, _forget, one)
        if model_config.sleep_mode_backend == "cumem":  # it knows nothing of the region
            model_config.sleep_mode_backend = "gdrpy"
            if getattr(model_config, "sleep_mode_offload_cudagraph", False):
                _logger.warning("gdrpy: CUDA graphs stay on the GPU: only cumem offloads them")
        return model

    def _found(self, broker: Broker, name: str) -> BrokerRegion | None:
        """The region of a name, if there is one."""
        try:
            return broker.wake(name, cpu=False)
        except NotFound:
            return None

    def _check_region(self, broker: Broker, region: BrokerRegion, device: torch.device) -> None:
        """Raise Unshareable for a region that this engine cannot use.

        Raises PermissionDenied for another user's that was not named.
        """
        if self._options.name is None:
            check_owner(broker, region)
        if not region.sealed:
            raise Unshareable(
                "region", f"region {region.name!r} is not sealed, so that others may write to it"
            )
        gpu = device.index or 0
        if region.device != gpu:
            raise Unshareable(
                "region",
                f"region {region.name!r} is on {region.location}, and this engine on device {gpu}",
            )

    def _publish(
        self, broker: Broker, name: str, model: torch.nn.Module, vllm_config: Any
    ) -> BrokerRegion:
        """Publish a loaded model's tensors, or attach those of an engine that was faster."""
        device = self._device(vllm_config)
        for key, parameter in model.named_parameters():
            if parameter.device != device:
                raise Unshareable("offload", f"parameter {key!r} is on {parameter.device}")
        bases, aliases, notes = packed(model, self._numbers, device)
        where = cuda.uuid(device.index) if device.type == "cuda" else 0
        return broker.put_tensors(
            name,
            bases,
            where,
            aliases=aliases,
            notes=notes,
            missing=not self._options.replace,
            seal=True,
            cpu=False,
        )

    def _attach(
        self, contents: Contents, vllm_config: Any, model_config: Any, prefix: str
    ) -> torch.nn.Module:
        """A model of a region's weights.

        vLLM prepares the model as after a load, with memory that all parameters share, so that
        all that is not a tensor is as usual. The tensors are replaced then.
        """
        device = self._device(vllm_config)
        try:
            with set_default_torch_dtype(model_config.dtype):
                with device, torch.device("meta"):
                    model = initialize_model(
                        vllm_config=vllm_config, model_config=model_config, prefix=prefix
                    )
                scratch, before = blank(model, device), numbers_of(model)
                process_weights_after_loading(model, model_config, device)
        except Exception as error:
            reason = f"vLLM cannot prepare {model_config.model!r} without weights: {error!r}"
            raise Unshareable("model", reason) from error
        contents.fill(model, scratch, before)
        return model.eval()

    def _device(self, vllm_config: Any) -> torch.device:
        device = torch.device(self.load_config.device or vllm_config.device_config.device)
        if device.type == "cuda" and device.index is None:
            return torch.device("cuda", torch.cuda.current_device())
        return device


def update() -> int:
    """Take the newest versions of this process's shared weights; returns how many were newer.

    If it raises, all models have the versions that they had.
    """
    stale = [one for one in shared if not one.region.detached and one.region.stale]
    before = [(one, one.region._described(), one.loaded.copy()) for one in stale]
    with ExitStack() as held:
        for one in stale:
            held.enter_context(hold(one))  # the broker keeps the version, also without holders
        detach_many([one.region for one in stale])
        try:
            for one in stale:
                take_newest(one)
        except BaseException:
            with ExitStack() as each:  # also if another one fails
                for was in before:
                    each.callback(_restore, *was)
            raise
    return len(stale)


def _restore(one: Shared, described: dict[str, Any], loaded: set[str]) -> None:
    """Attach the version that a region had."""
    detach_many([one.region])
    vars(one.region).update(described)
    one.broker.attach_many([one.region])
    if (model := one.model()) is not None:
        Contents(one.region).refresh(model, one.loaded)
    one.loaded.intersection_update(loaded)


def hold(one: Shared) -> BrokerRegion:
    """A lease of a region, without views."""
    region = one.region
    return one.broker._attach(region._life, region.id, gpu=False, cpu=False, readonly=True)


def take_newest(one: Shared) -> None:
    """Attach the newest version of a region that is detached.

    If it raises, the region is detached and describes its own version. Raises InvalidRequest for a
    version that is not sealed, and as ``attach()``.
    """
    region, model, before = one.region, one.model(), one.region._described()
    with ExitStack() as awake:
        try:
            one.broker.attach_many([region], newer=True)
        except NotFound:  # its holders sleep
            awake.enter_context(one.broker.wake(str(region.name), cpu=False))
            one.broker.attach_many([region], newer=True)
    try:
        if not region.sealed:
            raise InvalidRequest(
                f"load_format=gdrpy: version {region.version} of region {region.name!r} is not "
                f"sealed, so that others may write to it: publish it sealed"
            )
        contents = Contents(region)
        if model is not None:
            contents.refresh(model, one.loaded)
    except BaseException:
        detach_many([region])
        vars(region).update(before)
        raise
    one.loaded.update(contents.loaded)


def _withdraw(broker: Broker, region: BrokerRegion) -> None:
    """Give back a region that was published in vain, unless others hold it."""
    detach_many([region])
    with suppress(Error):
        broker._ask_now(Delete(str(region.name), region.id, unheld=True, id=0), Reply)


def _forget(one: Shared) -> None:
    """Give back what a dropped engine had."""
    with suppress(ValueError):
        shared.remove(one)
    with suppress(BufferError):  # somebody has a tensor of it
        one.region.close()
    one.broker.close()


def _check_shareable(vllm_config: Any) -> None:
    """Raise Unshareable for what writes into parameters after they were loaded."""
    parallel, transfer = vllm_config.parallel_config, vllm_config.weight_transfer_config
    for writer, there in {
        "enable_eplb": parallel.enable_eplb,
        "enable_elastic_ep": parallel.enable_elastic_ep,
        "weight_transfer_config": transfer is not None,
    }.items():
        if there:
            raise Unshareable(
                "writer", f"{writer} writes into weights, and shared ones are read-only"
            )


def _name_of(
    options: _Options, vllm_config: Any, model_config: Any, prefix: str, device: torch.device
) -> str:
    """The name of the region for a model of this engine's rank."""
    parallel = vllm_config.parallel_config
    role = "" if model_config is vllm_config.model_config else "/draft"
    rank = _rank_of(vllm_config)
    if options.name is not None:
        return options.name + role + rank
    name = name_of(
        "vllm",
        vllm.__version__,
        str(model_config.model),
        options.load_format,
        options.extra_config,
        prefix,
        model_config.revision,
        commit_of(str(model_config.model), model_config.revision),
        model_config.dtype,
        model_config.quantization,
        settings_of(model_config.hf_config),
        vllm_config.cache_config.cache_dtype,
        parallel.compute_hash(),
        vllm_config.kernel_config.compute_hash(),
        parallel.data_parallel_rank if parallel.enable_expert_parallel else 0,
        vllm_config.lora_config is not None,
        sorted(compile_factors().items()),
        cuda.uuid(device.index or 0),
    )
    return name + role + rank


def _rank_of(vllm_config: Any) -> str:
    """What an engine of several ranks adds to the names of its regions."""
    parallel = vllm_config.parallel_config
    return f"/{parallel.rank}" if parallel.world_size > 1 else ""


@contextmanager
def _config_restored(vllm_config: Any) -> Iterator[None]:
    """Have a second model of the same config find no layers of a first one that was given up."""
    compilation = vllm_config.compilation_config
    kept = {
        name: value.copy()
        for name, value in vars(compilation).items()
        if name.startswith("static_") and isinstance(value, dict | list)
    }
    try:
        yield
    except Unshareable:
        vars(compilation).update(kept)
        raise
