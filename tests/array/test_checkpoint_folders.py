"""The files of a checkpoint's folder, and folders that hold none."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from checkpoints import INDEX, SHARDS, write_checkpoint, write_index
from gdrpy.safetensors import file_layout, shards

FIRST, SECOND, THIRD = SHARDS


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "model")


class TestShards:
    def test_are_those_that_the_index_names_with_their_layouts(self, folder):
        safetensors.numpy.save_file({"x": np.ones(1)}, folder / "consolidated.safetensors")
        assert shards(folder) == {name: file_layout(folder / name) for name in SHARDS}
        assert list(shards(str(folder))) == [FIRST, SECOND, THIRD]

    def test_are_those_of_the_only_index_of_another_name(self, folder):
        (folder / INDEX).rename(folder / "diffusion.safetensors.index.json")
        assert list(shards(folder)) == [FIRST, SECOND, THIRD]

    def test_are_those_of_the_usual_index_beside_others(self, folder):
        (folder / "model.fp16.safetensors.index.json").write_text("{}")
        assert list(shards(folder)) == [FIRST, SECOND, THIRD]

    def test_without_an_index_are_the_only_file(self, folder):
        for name in (INDEX, SECOND, THIRD):
            (folder / name).unlink()
        assert list(shards(folder)) == [FIRST]

    def test_without_an_index_are_the_file_of_the_usual_name(self, folder):
        (folder / INDEX).unlink()
        (folder / SECOND).rename(folder / "model.safetensors")
        assert list(shards(folder)) == ["model.safetensors"]

    def test_may_have_tensors_that_the_index_leaves_out(self, folder):
        write_index(folder, {"layers.1.weight": FIRST})
        assert list(shards(folder)) == [FIRST]


class TestFolderWithoutCheckpoint:
    def refusal(self, folder: Path) -> str:
        with pytest.raises(ValueError, match=re.escape(str(folder))) as caught:
            shards(folder)
        return str(caught.value).replace(str(folder), "FOLDER")

    def test_says_what_belongs_there(self, tmp_path):
        assert self.refusal(tmp_path) == (
            "safetensors.shards: FOLDER holds no checkpoint: there is neither "
            "model.safetensors.index.json nor a safetensors file; give the folder that has them"
        )

    def test_of_several_files_without_an_index_names_them(self, folder):
        (folder / INDEX).unlink()
        assert self.refusal(folder) == (
            f"safetensors.shards: FOLDER has no model.safetensors, no {INDEX} that names a "
            f"checkpoint's files, and 3 other files like it: {FIRST}, {SECOND}, {THIRD}; load one "
            f"of them, or copy or download what is missing"
        )

    def test_of_a_missing_shard_names_it(self, folder):
        (folder / SECOND).unlink()
        assert self.refusal(folder) == (
            f"safetensors.shards: FOLDER: {INDEX} names 3 files, and {SECOND!r} is not there: copy "
            f"or download what is missing"
        )

    def test_of_a_link_to_nowhere_names_it(self, folder):
        for name in (SECOND, THIRD):
            (folder / name).unlink()
            (folder / name).symlink_to("../../blobs/gone")
        assert f"{SECOND!r}, {THIRD!r} are not there" in self.refusal(folder)

    def test_of_a_truncated_shard_names_it(self, folder):
        size = (folder / SECOND).stat().st_size
        os.truncate(folder / SECOND, size - 1)
        assert self.refusal(folder) == (
            f"FOLDER/{SECOND}: safetensors: the header describes {size} bytes, and the file has "
            f"{size - 1}: copy or download it again"
        )

    def test_of_a_shard_that_is_a_pointer_of_git_lfs_names_it(self, folder):
        (folder / SECOND).write_text("version https://git-lfs.github.com/spec/v1\n")
        assert self.refusal(folder).startswith(f"FOLDER/{SECOND}: safetensors: not in this format")

    def test_of_two_shards_with_the_same_tensor_names_both(self, tmp_path):
        again = {**SHARDS[SECOND], "layers.1.bias": np.zeros(1)}
        assert self.refusal(write_checkpoint(tmp_path / "model", {**SHARDS, SECOND: again})) == (
            f"safetensors.shards: FOLDER: {FIRST!r} and {SECOND!r} both have the tensor "
            f"'layers.1.bias': they are of different checkpoints; copy or download the folder again"
        )

    def test_of_a_shard_without_a_tensor_of_the_index_names_both(self, folder):
        write_index(folder, {"layers.1.weight": FIRST, "layers.2.weight": FIRST})
        assert self.refusal(folder) == (
            f"safetensors.shards: FOLDER: {INDEX} says that {FIRST!r} has the tensor "
            f"'layers.2.weight', and it has not: copy or download both again"
        )

    @pytest.mark.parametrize("file", ["../other.safetensors", "/etc/passwd", "", ".", "..", "a\0"])
    def test_whose_index_points_elsewhere_is_refused(self, folder, file):
        write_index(folder, {"layers.1.weight": FIRST, "x": file})
        assert self.refusal(folder) == (
            f"safetensors.shards: FOLDER: {INDEX} names {file!r}, which is not a file's name"
        )

    @pytest.mark.parametrize(
        "text",
        [
            b"",
            b"{",
            b"[]",
            b"{}",
            b"\xff",
            b"[" * 100_000,
            json.dumps({"weight_map": {}}).encode(),
            json.dumps({"weight_map": ["a"]}).encode(),
            json.dumps({"weight_map": {"a": 1}}).encode(),
        ],
    )
    def test_whose_index_is_none_is_refused(self, folder, text):
        (folder / INDEX).write_bytes(text)
        assert re.search(
            r'is not JSON with a "weight_map" of tensors to files: copy', self.refusal(folder)
        )

    def test_that_does_not_exist_is_an_os_error(self, tmp_path):
        with pytest.raises(FileNotFoundError):
            shards(tmp_path / "nowhere")

    def test_that_is_a_file_is_an_os_error(self, folder):
        with pytest.raises(NotADirectoryError):
            shards(folder / FIRST)
