"""Checkpoints for the tests: folders as Hugging Face's libraries write them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import safetensors.numpy

INDEX = "model.safetensors.index.json"

#: The tensors of a checkpoint by the files that have them.
SHARDS = {
    f"model-{number}-of-3.safetensors": {
        f"layers.{number}.weight": np.arange(1000, dtype=np.float32).reshape(20, 50) + number,
        f"layers.{number}.bias": np.full(7, number, np.int16),
    }
    for number in (1, 2, 3)
}
TENSORS = {name: array for shard in SHARDS.values() for name, array in shard.items()}


def write_checkpoint(folder: Path, shards: Mapping[str, Mapping[str, np.ndarray]] = SHARDS) -> Path:
    """Make the folder, with the files of a checkpoint and their index."""
    folder.mkdir(exist_ok=True)
    for file, tensors in shards.items():
        safetensors.numpy.save_file(dict(tensors), folder / file)
    files = {name: file for file, tensors in shards.items() for name in tensors}
    write_index(folder, files)
    return folder


def write_index(folder: Path, files: object) -> None:
    """Write the index of a folder: the file of each tensor."""
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": files}))
