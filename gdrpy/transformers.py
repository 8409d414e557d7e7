"""Models of transformers whose weights all processes of a machine share."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from gdrpy import cuda
from gdrpy.broker.client.broker import Broker, BrokerRegion
from gdrpy.common.extras import brought_by
from gdrpy.errors import NotFound

with brought_by("gdrpy[transformers]"):
    import transformers
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PreTrainedModel

    from gdrpy.torch.modules import assign, empty_weights, share, torch_tensors
    from gdrpy.torch.naming import check_owner, commit_of, name_of, settings_of

__all__ = ["from_pretrained", "region_of"]

#: The attribute of a model that has its region.
_REGION = "_gdrpy_region"

#: Options for the configuration, and for the model that is made from it.
_OF_CONFIG = {"revision", "token", "cache_dir", "local_files_only", "subfolder"}
_OF_MODEL = {"attn_implementation", "experts_implementation"}


def from_pretrained(
    model: str | os.PathLike[str],
    *,
    broker: Broker,
    name: str | None = None,
    device: Any = 0,
    kind: Any = AutoModelForCausalLM,
    dtype: Any = "auto",
    mode: int = 0o600,
    **options: Any,
) -> PreTrainedModel:
    """A pretrained model, whose weights the first process loads and publishes for all others.

    Args:
        model: A folder, or a name on the hub, as for transformers' ``from_pretrained``.
        broker: The broker, of :func:`gdrpy.connect`.
        name: The name of the region; None makes one of the model, its files and this call.
        device: The GPU, named as for :func:`gdrpy.alloc`.
        kind: A class of transformers: ``AutoModelForCausalLM`` or another.
        dtype: The weights' type; "auto" is the checkpoint's.
        mode: The region's permissions.
        options: Others of transformers, by keyword: ``revision``, ``token``, ``cache_dir``,
            ``local_files_only``, ``subfolder``, ``attn_implementation``,
            ``experts_implementation``, ``trust_remote_code``.

    The model is in evaluation mode. Its weights are read-only: a write to one ends the process's
    CUDA context. It takes no GPU memory of this process but for buffers that are not part of its
    state. The first process loads it into host memory. Those that start at the same time may each
    load it, and end with the same region. It wakes weights of which all holders sleep.

    Raises TypeError for options that weights would not fit, ValueError for a quantized model and
    for a named region on another GPU, PermissionDenied for another user's region unless it was
    named, and the errors of transformers, :func:`gdrpy.torch.assign` and ``Broker.put_tensors``.
    """
    unknown = sorted(options.keys() - _OF_CONFIG - _OF_MODEL - {"trust_remote_code"})
    if unknown:
        raise TypeError(
            f"from_pretrained: option {unknown[0]!r} is none that shared weights can have: load "
            f"the model by transformers, and pass it to gdrpy.torch.share()"
        )
    of_config = {key: value for key, value in options.items() if key not in _OF_MODEL}
    of_model = {key: value for key, value in options.items() if key not in _OF_CONFIG}
    path, gpu = os.fspath(model), cuda.ordinal("from_pretrained", device)
    config = AutoConfig.from_pretrained(path, **of_config)
    if getattr(config, "quantization_config", None):
        raise ValueError(
            f"from_pretrained: {path!r} is quantized, and its parts depend on what was loaded: "
            f"vLLM's plug-in shares such models"
        )
    known = name
    if known is None:
        deciding = {key: one for key, one in of_model.items() if key != "attn_implementation"}
        what = settings_of(config), kind.__name__, sorted(deciding.items())
        revision = options.get("revision")
        commit = commit_of(path, revision, options.get("cache_dir"))
        kept = str(dtype).removeprefix("torch."), cuda.uuid(gpu), revision, commit
        folder = str(Path(path, options.get("subfolder") or ""))
        known = name_of("transformers", transformers.__version__, folder, *what, *kept)
    try:
        region = broker.wake(known, cpu=False)
    except NotFound:
        made = kind.from_pretrained(path, dtype=dtype, **options)
        about = {"dtype": str(made.dtype).removeprefix("torch.")}
        given = {"seal": True, "missing": True, "mode": mode, "metadata": about, "cpu": False}
        share(broker, known, made, cuda.uuid(gpu), **given)
        region = broker.wake(known, cpu=False)
    else:
        make = getattr(kind, "from_config", None) or kind._from_config
        with empty_weights():
            made = make(config, dtype=region.metadata.get("dtype"), **of_model)
        if made.can_generate():
            with suppress(OSError):  # it has none
                made.generation_config = GenerationConfig.from_pretrained(path, **of_config)
    if name is None:
        check_owner(broker, region)
    if region.device != gpu:
        raise ValueError(
            f"from_pretrained: region {known!r} is on {region.location}, not on device {gpu}: "
            f"choose another name"
        )
    assign(made, torch_tensors("from_pretrained", region.tensors()))
    setattr(made, _REGION, region)
    return made.eval()


def region_of(model: PreTrainedModel) -> BrokerRegion:
    """The region of a model's weights, for ``Broker.sleep_many`` and ``wake_many``.

    Raises ValueError for a model that :func:`from_pretrained` did not make.
    """
    region = getattr(model, _REGION, None)
    if not isinstance(region, BrokerRegion):
        raise ValueError(
            f"region_of: this {type(model).__name__} is not from gdrpy.transformers.from_pretrained"
        )
    return region
