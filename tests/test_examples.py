"""Every example is a complete program, and prints what it promises."""

from __future__ import annotations

import re

import pytest

from exampleruns import EXAMPLES, LAST_LINES, NO_KERNELS, WITH_A_KERNEL, run


class TestExample:
    @pytest.mark.parametrize("name", LAST_LINES)
    def test_runs_and_prints_its_result(self, name, tmp_path):
        printed = run(name, tmp_path)
        assert printed.endswith(LAST_LINES[name].format(backend="sim"))
        assert printed.startswith(NO_KERNELS) == (name in WITH_A_KERNEL)


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


class TestListOfExamples:
    def test_has_each(self):
        listed = re.findall(r"^\| \[`(.+?)`\]\(\1\) \|", (EXAMPLES / "README.md").read_text(), re.M)
        kinds = (".py", ".c", ".json")
        found = (path for path in EXAMPLES.rglob("*") if path.suffix in kinds)
        there = [str(path.relative_to(EXAMPLES)) for path in found]
        assert sorted(listed) == sorted(there)
        assert [name for name in sorted(there) if name.endswith(".py")] == sorted(LAST_LINES)
