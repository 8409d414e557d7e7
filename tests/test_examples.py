"""Every example is a complete program, and prints what it promises."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys

import pytest

import gdrpy
import notebookrun
from exampleruns import EXAMPLES, LAST_LINES, NO_KERNELS, WITH_A_KERNEL, run


class TestExample:
    @pytest.mark.parametrize("name", LAST_LINES)
    def test_runs_and_prints_its_result(self, name, tmp_path):
        printed = run(name, tmp_path)
        assert printed.endswith(LAST_LINES[name].format(backend="sim"))
        assert printed.startswith(NO_KERNELS) == (name in WITH_A_KERNEL)


class TestTwoEngines:
    @pytest.fixture
    def engines(self, monkeypatch):
        monkeypatch.syspath_prepend(EXAMPLES)
        return importlib.import_module("two_engines")

    def test_end_with_status_1_after_a_wrong_answer(self, engines, tmp_path, monkeypatch, capsys):
        publish = subprocess.check_output

        def wrong(command):
            right = json.loads(publish(command))
            right[3][0] += 1
            return json.dumps(right)

        monkeypatch.setattr(subprocess, "check_output", wrong)
        assert engines.main(str(tmp_path / "socket")) == 1
        assert "40 answers, 1 of them wrong\n" in capsys.readouterr().out

    def test_end_with_status_1_if_more_memory_is_taken(
        self, engines, tmp_path, monkeypatch, capsys
    ):
        publish, path = subprocess.check_output, str(tmp_path / "socket")

        def more(command):
            with gdrpy.connect(path) as broker:
                broker.put("copy", b"of the weights").close()
            return publish(command)

        monkeypatch.setattr(subprocess, "check_output", more)
        assert engines.main(path) == 1
        assert capsys.readouterr().out == (
            "2 takeovers, 40 answers, 0 of them wrong\nmemory for weights is taken once: False\n"
        )

    def test_answer_while_the_next_standby_starts(self, engines, tmp_path, monkeypatch):
        asked, waited = [], {}
        ask, wait = engines.Engine.ask, engines.Engine.wait_until_asleep

        def count(engine, prompt, kill=False):
            asked.append(prompt)
            return ask(engine, prompt, kill)

        def note(engine):
            waited.setdefault(engine, len(asked))
            wait(engine)

        monkeypatch.setattr(engines.Engine, "ask", count)
        monkeypatch.setattr(engines.Engine, "wait_until_asleep", note)
        assert engines.main(str(tmp_path / "socket")) == 0
        # The first two takeovers are at the 11th and the 31st prompt, which are asked twice; the
        # broker is killed before the 21st.
        assert list(waited.values()) == [1, 12, 21, 42]


class TestControlLoop:
    def test_counts_every_period_in_both_histograms(self, tmp_path):
        _, late, took = run("control_loop.py", tmp_path).split("\n\n")[:3]
        for histogram in (late, took):
            assert sum(map(int, re.findall(r"#+ (\d+)$", histogram, re.M))) == 1999

    def test_draws_them(self, tmp_path):
        pytest.importorskip("matplotlib")
        run("control_loop.py", tmp_path, "--plot", "jitter.svg")
        drawn = (tmp_path / "jitter.svg").read_text()
        for words in ("A control loop of 1 ms", "speeds of host memory", "store took"):
            assert words in drawn


class TestNotebook:
    def test_has_the_outputs_of_its_cells(self, tmp_path):
        """After a change: python tests/notebookrun.py examples/tour.ipynb"""
        saved = EXAMPLES / "tour.ipynb"
        fresh = tmp_path / "tour.ipynb"
        notebook = json.loads(saved.read_text())
        for cell in notebook["cells"]:
            if cell["cell_type"] == "code":
                cell["outputs"] = []
        fresh.write_text(notebookrun.text_of(notebook))
        done = subprocess.run(
            [sys.executable, notebookrun.__file__, fresh],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            check=False,
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        assert fresh.read_text() == saved.read_text()


class TestListOfExamples:
    def test_has_each(self):
        listed = re.findall(r"^\| \[`(.+?)`\]\(\1\) \|", (EXAMPLES / "README.md").read_text(), re.M)
        kinds = (".py", ".c", ".json", ".ipynb")
        found = (path for path in EXAMPLES.rglob("*") if path.suffix in kinds)
        there = [str(path.relative_to(EXAMPLES)) for path in found]
        assert sorted(listed) == sorted(there)
        assert [name for name in sorted(there) if name.endswith(".py")] == sorted(LAST_LINES)
