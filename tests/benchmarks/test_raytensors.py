"""The benchmark of tensors between Ray's actors, small and on the simulated GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

import raytensors

_ENVIRONMENT = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "of-the-tests"}


class TestSmallRun:
    def test_measures_each_way_that_there_is_without_a_gpu(self, tmp_path):
        command = [sys.executable, raytensors.__file__, "--nbytes", "4096", "--rounds", "2"]
        with (tmp_path / "said").open("w+") as said:
            done = subprocess.run(
                [*command, "--output", tmp_path],
                env=os.environ | _ENVIRONMENT,
                stdout=said,
                stderr=said,
                check=False,
                timeout=200,
            )
            assert done.returncode == 0, (tmp_path / "said").read_text()
        (path,) = tmp_path.glob("*.json")
        measured = json.loads(path.read_text())["measurements"]
        assert {one["way"]: (one["count"], one["verified"]) for one in measured} == {
            "GDRPY, in a region": (2, True),
            "GDRPY, torch's memory": (2, True),
            "object store": (2, True),
        }


class TestWrongElements:
    def test_end_the_run(self, monkeypatch):
        class Remote:
            def __init__(self, answer):
                self.remote = lambda *_: answer

        class Actor:
            write, by_gdrpy, ends = Remote(None), Remote("reference"), Remote((1.0, 7.0))

        monkeypatch.setattr(raytensors.ray, "get", lambda answer, **_: answer)
        with pytest.raises(ValueError, match=r"by_gdrpy: \(1.0, 7.0\) arrived instead of \(1.0, -"):
            raytensors.hand_over(Actor, Actor, "by_gdrpy", 1.0)
