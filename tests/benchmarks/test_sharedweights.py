"""The benchmark of shared weights, small and on the simulated GPU, and what would make it fail."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest

import sharedweights
from publishing import NotPublishable, check, markdown
from sharedweights_process import Process, Silent
from sharedweights_trial import count_wrong

#: Waits when it is told to, else answers with what it was told.
PROGRAM = """
import json, signal, sys
for line in sys.stdin:
    if json.loads(line) == ["wait"]:
        signal.pause()
    print(line, end="", flush=True)
"""


@pytest.fixture(scope="module")
def small_run(tmp_path_factory):
    """The result of ``sharedweights.py --small``."""
    folder = tmp_path_factory.mktemp("results")
    command = [sys.executable, sharedweights.__file__, "--small", "--output", folder]
    with (folder / "said").open("w+") as said:
        done = subprocess.run(command, stdout=said, stderr=said, check=False, timeout=120)
        assert done.returncode == 0, (folder / "said").read_text()
    (path,) = folder.glob("*.json")
    return json.loads(path.read_text())


class TestSmallRun:
    def test_passes_every_check(self, small_run):
        assert [one for one in small_run["checks"] if not one["passed"]] == []
        assert [one["what"] for one in small_run["checks"]] == [
            "workers on the region answer as its maker did",
            "the weights are counted once",
            "every answer is one version's, whole",
            "every worker came to the newest version",
            "old versions are freed",
            "the others go on when a worker is killed",
            "a killed worker's lease is given back",
            "the others take the next version",
            "what a killed worker had is freed",
            "workers go on while there is no broker",
            "a new process finds the same bytes",
            "and answers as the others",
            "all take the next version from the next broker",
            "leases from before it are known to it",
        ]

    def test_counts_the_weights_once_whoever_has_them(self, small_run):
        memory = [one for one in small_run["measurements"] if one["unit"] == "MiB"]
        assert {one["way"]: one["samples"] for one in memory} == {
            "the region, no process": [2.0],
            "a process without weights": [0.0],
            "the region and 1 on it": [2.0],
            "the region and 2 on it": [2.0],
        }

    def test_times_what_is_done(self, small_run):
        times = [one for one in small_run["measurements"] if one["unit"] == "ms"]
        assert sorted(one["operation"] for one in times) == [
            "attach",
            "forward, no update",
            "forward, updates",
            "publish",
            "stall, no update",
            "stall, updates",
            "swap",
        ]
        assert all(one["verified"] for one in times)

    def test_is_not_published(self, small_run):
        with pytest.raises(NotPublishable, match="measured on a simulated GPU"):
            check(small_run)


class TestReport:
    def test_has_each_check_beside_the_memory(self, small_run):
        on_gpu = small_run["header"] | {"simulated": False, "gpu": "NVIDIA Test"}
        text = markdown(small_run | {"quick": False, "header": on_gpu})
        assert "| GPU memory taken | the region and 2 on it | MiB | 2.00 | 2.00 | - | 1 |" in text
        assert "| the weights are counted once | 0.0 MiB more than the region, for 2" in text


class TestWithoutAGpu:
    def test_the_large_model_is_refused(self, capsys):
        assert sharedweights.main([]) == 2
        said = "benchmarks/sharedweights.py: needs a GPU; --small runs on the simulated one\n"
        assert capsys.readouterr().err == said


class TestAnswers:
    def test_of_a_version_are_right(self):
        assert count_wrong([{"answers": {"1 a": 7, "2 b": 1}}], {1: "a", 2: "b"}) == 0

    def test_of_a_mixture_or_another_version_are_wrong(self):
        served = [{"answers": {"1 a": 7, "1 b": 2}}, {"answers": {"2 mixed": 3}}]
        assert count_wrong(served, {1: "a", 2: "b"}) == 5


class TestProcess:
    @pytest.fixture
    def process(self):
        with Process("the program", "-c", PROGRAM) as process:
            yield process

    def test_answers(self, process):
        assert process.ask("do", 1, "a") == ["do", 1, "a"]

    def test_that_has_ended_is_missed(self):
        with (
            Process("the program", "-c", "raise SystemExit(7)") as process,
            pytest.raises(Silent, match="the program ended, status 7"),
        ):
            process.ask("do")

    def test_that_does_not_answer_is_killed(self, process, monkeypatch):
        monkeypatch.setattr("sharedweights_process._PATIENCE", 0.1)
        with pytest.raises(Silent, match=f"the program ended, status -{signal.SIGKILL.value}"):
            process.ask("wait")
