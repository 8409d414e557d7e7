"""The benchmark of failover, small and on the simulated GPU, and what would make it fail."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading

import pytest

import failover
import failover_trial
import gdrpy
from failover_front import Answer, Front
from failover_trial import KINDS, Trial
from gdrpy import cuda
from harness import Session
from publishing import NotPublishable, check
from two_engines import ANSWER, PROMPTS

CHECKS = [
    "every answer is that of the model alone",
    "several requests wait at each kill",
    "a killed process writes nothing once its lease has ended",
    "a killed process writes nothing once it has been waited for",
    "the weights have the bytes that they had",
    "one model is what is left",
    "no region, session or lease is left",
    "GPU memory is back",
    "no descriptor is left",
]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The result of ``failover.py``."""
    folder = tmp_path_factory.mktemp("results")
    command = [sys.executable, failover.__file__, "--output", folder]
    with (folder / "said").open("w+") as said:
        done = subprocess.run(command, stdout=said, stderr=said, check=False, timeout=120)
        assert done.returncode == 0, (folder / "said").read_text()
    (path,) = folder.glob("*.json")
    return json.loads(path.read_text())


@pytest.fixture
def trial(tmp_path):
    with Trial(Session(0, False, lambda what: None, 1), tmp_path) as trial:
        yield trial


class TestRun:
    def test_passes_every_check(self, run):
        assert [one for one in run["checks"] if not one["passed"]] == []
        assert [one["what"] for one in run["checks"]] == CHECKS

    def test_times_two_kills_of_each_kind_and_two_writers_each_way(self, run):
        assert {one["way"]: len(one["samples"]) for one in run["measurements"]} == dict.fromkeys(
            [*KINDS, failover_trial.LEASE, failover_trial.END], 2
        )
        assert all(one["verified"] for one in run["measurements"])

    def test_counts_kills_and_answers(self, run):
        kills, answers = run["figures"]
        assert (kills["id"], kills["value"]) == (failover_trial.KILLS, 10)
        assert answers["value"] > 20
        assert answers["where"] == "0 wrong"

    def test_is_not_published(self, run):
        with pytest.raises(NotPublishable, match="measured on a simulated GPU"):
            check(run)


class TestOptions:
    def test_no_kill_is_refused(self, capsys):
        with pytest.raises(SystemExit) as exit_:
            failover.parse(["--kills", "0"])
        assert exit_.value.code == 2
        assert "--kills: must be 1 at least" in capsys.readouterr().err


class TestFront:
    @pytest.fixture
    def front(self, trial):
        trial.engines.publish()
        front = Front(trial.engines)
        yield front
        front.close()

    def test_counts_a_wrong_answer(self, front):
        front.ask(PROMPTS[0], [-1] * ANSWER)
        assert [one.right for one in front.answers] == [False]

    def test_takes_no_answer_of_a_killed_engine_and_no_wrong_one_for_the_next(self, front):
        front.answers += [Answer(1, 7, True), Answer(2, 8, False), Answer(3, 8, True)]
        assert front.answered(0, {7}) == 3
        assert front.answered(0, set()) == 1


class TestTrial:
    def test_finds_what_stays_behind(self, trial, monkeypatch):
        monkeypatch.setattr(failover_trial, "_PATIENCE", 0.1)
        kept = []

        def leave():
            client = trial.client
            client.put("weights", b"other").close()
            kept.append(client.allocate("left", 1))
            kept.append(tempfile.TemporaryFile())  # noqa: SIM115

        monkeypatch.setattr(trial, "_kill_writers", leave)
        trial.all()
        for one in kept:
            one.close()
        failed = [one.what for one in trial.checks if not one.passed]
        assert failed == [one for one in CHECKS if "process" not in one][2:]

    def test_finds_kills_at_which_no_other_request_waits(self, trial, monkeypatch):
        monkeypatch.setattr(failover_trial, "_CLIENTS_SIMULATED", 1)
        trial._kill_under_load(trial.engines.publish())
        assert [(one.what, one.passed) for one in trial.checks] == [
            (CHECKS[0], True),
            (CHECKS[1], False),
        ]

    def test_waits_for_sessions_that_end_late(self, trial, monkeypatch):
        def leave():
            late = gdrpy.connect(trial.socket)
            threading.Timer(0.5, late.close).start()

        monkeypatch.setattr(trial, "_kill_under_load", lambda right: None)
        monkeypatch.setattr(trial, "_kill_writers", leave)
        trial.all()
        assert [one.what for one in trial.checks if not one.passed] == []

    def test_finds_writes_of_a_process_that_lives(self, trial):
        trial.client.allocate("kv", failover_trial._KV_NBYTES_SIMULATED).close()
        command = [sys.executable, failover_trial._WRITER, trial.socket, "kv", "1"]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as other:
            other.stdout.readline()
            assert trial._kill_writer(failover_trial.END, failover_trial._ended)
            other.kill()
        assert not trial._kill_writer(failover_trial.END, failover_trial._ended)


class TestWithoutTorch:
    def test_a_gpu_is_refused(self, monkeypatch, capsys):
        monkeypatch.setattr(cuda, "simulated", lambda: False)
        monkeypatch.setattr(failover.importlib.util, "find_spec", lambda name: None)
        assert failover.main([]) == 2
        assert capsys.readouterr().err == "benchmarks/failover.py: needs torch\n"
