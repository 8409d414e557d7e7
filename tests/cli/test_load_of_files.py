"""``gdrpy load`` of single files; that of folders is tested with checkpoints."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import gdrpy
from gdrpy.cli import main


class TestLoad:
    @pytest.fixture
    def weights(self, tmp_path: Path) -> Path:
        from gdrpy import safetensors

        tensors = {"bias": np.arange(3, dtype=np.float32), "scale": np.ones(2, np.int16)}
        path = tmp_path / "weights.safetensors"
        with gdrpy.alloc(safetensors.plan(tensors).nbytes) as region:
            safetensors.store(region, tensors)
            path.write_bytes(region.read())
        return path

    def test_gives_the_tensors_to_whoever_attaches(self, broker, weights, json_of):
        status, said = json_of("load", str(weights), "weights", "--seal")
        assert (status, said["tensors"], said["sealed"]) == (0, 2, True)
        with gdrpy.connect() as client, client.get("weights", gpu=False) as region:
            assert region.tensors()["bias"].read().tolist() == [0, 1, 2]

    def test_of_another_file_ends_with_1_and_leaves_nothing(self, broker, file, json_of, capsys):
        assert main(["load", str(file), "weights"]) == 1
        assert capsys.readouterr().err.startswith(f"error: load: {file}: ")
        assert json_of("ls")[1]["regions"] == []

    def test_of_a_missing_file_ends_with_2(self, broker, capsys):
        assert main(["load", "/nonexistent", "weights"]) == 2
        assert capsys.readouterr().err == (
            "error: cannot read /nonexistent: No such file or directory\n"
        )

    def test_takes_no_name_that_was_not_given_for_a_file(
        self, broker, weights, monkeypatch, capsys
    ):
        monkeypatch.chdir(weights.parent)
        weights.rename("weights")
        assert main(["load", "missing/weights.safetensors"]) == 2
        assert capsys.readouterr().err.endswith(": No such file or directory\n")

    def test_of_another_format_says_what_to_give(self, broker, tmp_path, capsys):
        (tmp_path / "junk").write_bytes(b"x" * 100)
        assert main(["load", str(tmp_path / "junk"), "j"]) == 1
        assert capsys.readouterr().err == (
            f"error: load: {tmp_path}/junk: safetensors: not in this format: it does not begin "
            f"with the length of a header: give a safetensors file, or copy or download it again\n"
        )

    def test_suggests_the_other_order_of_file_and_name(self, broker, weights, capsys):
        assert main(["load", "my weights", str(weights)]) == 2
        assert capsys.readouterr().err == (
            f"error: cannot read my weights: No such file or directory: did you mean 'gdrpy load "
            f"{weights} 'my weights''?\n"
        )
