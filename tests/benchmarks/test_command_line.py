"""What may be asked of run.py, and where its result goes."""

from __future__ import annotations

import json
import os
import sys

import pytest

import machine
import proof
import results
import rivalrings
import run


class TestOptions:
    @pytest.mark.parametrize(
        "arguments",
        [
            ["--only", "speed"],
            ["--seconds", "0"],
            ["--seconds", "nan"],
            ["--kills", "0"],
            ["--mscclpp", "nowhere"],
            ["--fast"],
        ],
    )
    def test_that_cannot_be_are_refused(self, arguments, capsys):
        with pytest.raises(SystemExit) as exit_:
            run.parse(arguments)
        assert exit_.value.code == 2
        assert arguments[0] in capsys.readouterr().err

    def test_that_decide_what_is_measured_are_recorded(self):
        options = run.parse(
            [
                *("--only", "attach,latency", "--seconds", "2", "--kills", "7"),
                *("--output", "/x", "--commit", "abc"),
            ]
        )
        recorded = run.measuring_arguments(options)
        assert recorded == ["--only", "latency,attach", "--seconds", "2", "--kills", "7"]

    def test_names_no_folder_of_sources_but_the_last(self, tmp_path):
        for one in rivalrings.NEEDED:
            (tmp_path / "fifo" / one).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "fifo" / one).touch()
        options = run.parse(["--mscclpp", str(tmp_path / "fifo")])
        assert run.measuring_arguments(options) == ["--mscclpp", "fifo"]

    def test_in_the_environment_are_recorded(self, monkeypatch):
        monkeypatch.setenv("GDRPY_SIM", "")
        monkeypatch.setenv("GDRPY_BACKEND", "nvrm")
        assert machine.command(["--quick"]) == (
            "GDRPY_BACKEND=nvrm python benchmarks/run.py --quick"
        )


class TestOutput:
    @pytest.fixture(autouse=True)
    def _nothing_is_measured(self, monkeypatch):
        monkeypatch.setattr(run, "measure", None)

    def test_that_is_no_folder_is_refused_before(self, tmp_path, capsys):
        path = tmp_path / "file"
        path.touch()
        assert run.main(["--output", str(path)]) == 2
        assert capsys.readouterr() == ("", f"--output {path}: File exists\n")

    def test_that_nothing_may_be_written_to_is_refused_before(self, tmp_path, capsys, monkeypatch):
        monkeypatch.setattr(run.os, "access", lambda *_: False)
        assert run.main(["--output", str(tmp_path)]) == 2
        assert capsys.readouterr() == ("", f"--output {tmp_path}: nothing may be written there\n")


class TestCommit:
    def test_may_be_given_where_git_cannot_tell(self, monkeypatch):
        monkeypatch.setattr(machine, "_git", lambda *arguments: None)
        header = machine.describe([], "abc")
        assert (header["commit"], header["dirty"]) == ("abc", None)

    def test_is_unknown_without_git(self, monkeypatch):
        monkeypatch.setattr(machine, "_git", lambda *arguments: None)
        header = machine.describe([], None)
        assert (header["commit"], header["dirty"]) == (None, None)


class TestLibraries:
    def test_are_told_with_their_versions(self, monkeypatch):
        monkeypatch.setattr(machine.importlib.metadata, "version", lambda name: f"{name} 1")
        header = machine.describe([], "abc")
        libraries = ("torch", "vllm", "torch_memory_saver")
        assert [header[name] for name in libraries] == ["torch 1", "vllm 1", "torch-memory-saver 1"]


class TestKernel:
    def test_is_told_without_what_its_distributor_adds(self, monkeypatch):
        monkeypatch.setattr(machine.platform, "release", lambda: "6.12.48-generic-1+x")
        assert machine.describe([], "abc")["kernel"] == "6.12.48"

    def test_is_told_so_by_what_a_step_of_the_proof_printed(self, monkeypatch, tmp_path):
        monkeypatch.setattr(machine.platform, "release", lambda: "6.12.48-generic")
        printing = (sys.executable, "-c", 'print(\'{"header": {"kernel": "6.12.48-generic"}}\')')
        step = proof.step("info", (*printing, "--json"), os.geteuid())
        assert step["output"] == {"header": {"kernel": "6.12.48"}}


class TestFile:
    def test_is_named_after_gpu_date_and_modules(self, publishable):
        publishable["header"] |= {"gpu": "NVIDIA H200", "date": "2026-11-21T07:00:00+00:00"}
        publishable["modules"] = ["latency"]
        assert results.file_stem(publishable) == "h200-2026-11-21-latency"

    def test_is_never_overwritten(self, result, tmp_path):
        first, second = (results.save(result, tmp_path) for _ in range(2))
        assert second.name == f"{first.stem}-2.json"
        assert json.loads(first.read_text()) == json.loads(second.read_text()) == result


class TestFailingModule:
    def test_loses_nothing_of_the_others_and_fails_the_run(self, monkeypatch, tmp_path, capsys):
        def fail(session):
            raise OSError("no such device")

        monkeypatch.setitem(run.MODULES, "attach", fail)
        assert run.main(["--quick", "--only", "latency,attach", "--output", str(tmp_path)]) == 1
        (path,) = tmp_path.iterdir()
        kept = json.loads(path.read_text())
        assert {one["module"] for one in kept["measurements"]} == {"latency"}
        assert {"what": "attach", "reason": "OSError: no such device"} in kept["absent"]
        assert "no such device" in capsys.readouterr().err
