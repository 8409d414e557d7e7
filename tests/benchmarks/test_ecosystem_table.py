"""The table of ways between array libraries and gdrpy: from pytest's report to words."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

import ecosystem
import ways

REPORT = """
<testsuites><testsuite>
<testcase classname="t.TestMemory" name="test_a[torch&lt;-array-by-dlpack]"/>
<testcase classname="t.TestMemory" name="test_b[torch&lt;-array-by-dlpack]"/>
<testcase classname="t.TestLifetime" name="test_a[torch&lt;-array-by-dlpack]"/>
<testcase classname="t.TestLifetime" name="test_b[torch&lt;-array-by-dlpack]"><failure/></testcase>
<testcase classname="t.TestLifetime" name="test_c[torch&lt;-array-by-dlpack]"/>
<testcase classname="t.TestSource" name="test_a[array&lt;-jax]"><skipped/></testcase>
</testsuite></testsuites>
"""


class TestOutcome:
    @pytest.fixture
    def outcomes(self):
        return ecosystem.outcomes(ElementTree.fromstring(REPORT))

    def test_is_failed_if_one_of_its_tests_failed(self, outcomes):
        assert outcomes["torch<-array-by-dlpack"] == {"memory": "passed", "lifetime": "FAILED"}

    def test_of_what_did_not_run_is_no_success(self, outcomes):
        assert outcomes["array<-jax"] == {"memory": "not installed"}

    def test_is_told_in_words(self, outcomes):
        assert ecosystem.rows(outcomes) == [
            {"way": "array<-jax", "memory": "not installed"},
            {"way": "torch<-array-by-dlpack", "memory": ways.GPU, "lifetime": "FAILED"},
        ]


class TestTable:
    def test_leaves_out_what_no_way_has(self):
        header = {"simulated": True, "commit": "c" * 40, "dirty": True, "command": "make it"}
        header |= {"date": "2026-01-02T03:04:05", "nvidia_driver": None}
        header |= {"python": "3.11", "gdrpy": "1.0"}
        rows = [{"way": "a<-b", "memory": "copied"}, {"way": "c<-d", "lifetime": "kept"}]
        result = {"header": header, "libraries": {"numpy": "2"}, "ways": rows}
        assert ecosystem.markdown(result).splitlines() == [
            "**On the simulated GPU**",
            "",
            "| direction | memory | lifetime |",
            "| --- | --- | --- |",
            "| `a<-b` | copied | - |",
            "| `c<-d` | - | kept |",
            "",
            "`make it`, 2026-01-02, commit cccccccccccc, with local changes: driver none, "
            "Python 3.11, gdrpy 1.0, numpy 2.",
        ]
