"""The name of a region that holds an engine's weights."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
import vllm


def name_of(vllm_config: Any, model_config: Any, prefix: str, load_format: str) -> str:
    """``vllm/MODEL/ID``: ID is a digest of all that decides on the weights' values and places.

    A folder's files are known by their sizes and modification times, a model of a hub by its
    revision.
    """
    parts = [
        vllm.__version__,
        torch.__version__,
        load_format,
        prefix,
        str(model_config.model),
        str(model_config.revision),
        str(model_config.dtype),
        str(model_config.quantization),
        model_config.hf_config.to_json_string(use_diff=False),
        str(vllm_config.cache_config.cache_dtype),
        _parallel(vllm_config.parallel_config),
        torch.cuda.get_device_name() if torch.cuda.is_available() else "",
        _files(model_config.model),
    ]
    digest = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
    return f"vllm/{Path(model_config.model).name}/{digest}"


def _parallel(config: Any) -> list[Any]:
    return [
        config.tensor_parallel_size,
        config.pipeline_parallel_size,
        config.data_parallel_size,
        config.enable_expert_parallel,
    ]


def _files(folder: str) -> list[tuple[str, int, int]]:
    """The name, size and modification time of each file in a model's folder, if it is one."""
    try:
        found = [(path.name, path.stat()) for path in Path(folder).iterdir()]
    except OSError:
        return []
    return sorted((name, state.st_size, state.st_mtime_ns) for name, state in found)
