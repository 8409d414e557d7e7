"""A result as Markdown."""

from __future__ import annotations

import json
import re

import pytest

import publishing
import report
from table import Table


class TestMarkdown:
    def test_says_what_the_figures_come_from(self, publishable):
        text = publishing.markdown(publishable)
        header = publishable["header"]
        for field in ("command", "gpu", "pcie_link", "cpu", "kernel", "python", "numpy"):
            assert header[field] in text

    def test_has_every_median_of_a_latency(self, publishable):
        (one,) = [
            one
            for one in publishable["measurements"]
            if one["id"] == "latency/write/64/mapping.write"
        ]
        one["median"] = 123.4
        rows = publishing.markdown(publishable).splitlines()
        assert any(re.fullmatch(r"\| mapping\.write \| \S+ \| 123 \|.*", row) for row in rows)

    def test_says_what_was_not_measured(self, publishable):
        assert "Not measured: torch (" in publishing.markdown(publishable)

    def test_rows_have_as_many_cells_as_columns(self, publishable):
        blocks = [text.splitlines() for text in publishing.markdown(publishable).split("\n\n")]
        tables = [lines for lines in blocks if lines[0].startswith("|")]
        assert len(tables) == len([block for block in blocks if block[0].startswith("**")]) > 0
        for lines in tables:
            assert len({line.count("|") for line in lines}) == 1

    def test_sets_columns_of_figures_to_the_right_and_words_to_the_left(self):
        table = Table("times", ["way", "unit", "median"], [["A", "us", "-"], ["B", "us", "-1.5"]])
        assert publishing.as_markdown(table).splitlines()[3] == "| --- | --- | ---: |"

    def test_leaves_out_a_figure_that_is_missing(self, publishable):
        missing = "latency/write/64/C routine"
        kept = [one for one in publishable["measurements"] if one["id"] != missing]
        publishable["measurements"] = kept
        (row,) = [
            line
            for line in publishing.markdown(publishable).splitlines()
            if line.startswith("| C routine |")
        ][:1]
        assert row.split(" | ")[2] == "-"


class TestRefusal:
    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            (lambda result: result["header"].update(simulated=True), "simulated GPU"),
            (lambda result: result.update(quick=True), "--quick run"),
            (lambda result: result["measurements"][0].update(verified=False), "wrong data"),
        ],
    )
    def test_of_what_says_nothing(self, publishable, tmp_path, capsys, change, reason):
        change(publishable)
        path = tmp_path / "result.json"
        path.write_text(json.dumps(publishable))
        assert report.main([str(path)]) == 2
        output = capsys.readouterr()
        assert output.out == ""
        assert reason in output.err


class TestFileThatIsNoResult:
    @pytest.mark.parametrize(
        ("text", "why"),
        [
            ("no JSON", "no result of run.py (Expecting value: line 1 column 1 (char 0))"),
            ("[1]", "no result of run.py (it holds no fields)"),
            (
                '{"header": {}, "steps": []}',
                "no result of run.py (it has no modules, quick, measurements, absent, goals)",
            ),
        ],
    )
    def test_is_refused_in_one_line(self, tmp_path, capsys, text, why):
        path = tmp_path / "result.json"
        path.write_text(text)
        assert report.main([str(path)]) == 2
        assert capsys.readouterr() == ("", f"{path}: {why}\n")

    def test_is_refused_if_it_is_not_there(self, tmp_path, capsys):
        path = tmp_path / "result.json"
        assert report.main([str(path)]) == 2
        assert capsys.readouterr() == ("", f"{path}: No such file or directory\n")


class TestOnly:
    @pytest.fixture
    def file(self, publishable, tmp_path):
        path = tmp_path / "result.json"
        path.write_text(json.dumps(publishable))
        return str(path)

    def test_prints_tables_whose_titles_begin_so(self, file, capsys):
        assert report.main([file, "--only", "latency: write", "--only", "broker"]) == 0
        titles = re.findall(r"^\*\*(.*)\*\*$", capsys.readouterr().out, re.MULTILINE)
        assert titles[0].startswith("latency: write,")
        assert {title.partition(":")[0] for title in titles} == {"latency", "broker"}

    def test_of_no_title_lists_those_there_are(self, file, capsys):
        assert report.main([file, "--only", "latency", "--only", "speed"]) == 2
        output = capsys.readouterr()
        assert output.out == ""
        first, *titles = output.err.splitlines()
        assert first == "result.json: no table's title begins with speed; there are:"
        assert "  goals (medians)" in titles


class TestSummary:
    @pytest.fixture
    def summed_up(self, publishable, tmp_path, capsys):
        """The lines of the summary of the result as the test left it."""

        def summed_up():
            path = tmp_path / "data" / "result.json"
            path.parent.mkdir()
            path.write_text(json.dumps(publishable))
            assert report.main([str(path), "--summary", str(tmp_path / "page.md")]) == 0
            return capsys.readouterr().out.splitlines()

        return summed_up

    def test_sets_a_time_beside_the_best_of_the_other_ways(self, publishable, summed_up):
        rivals = {"cuda.bindings, pageable": 5, "cuda.bindings, pinned": 4}
        publishable["measurements"] = [
            one | {"median": rivals.get(one["way"], 0.2)}
            for one in publishable["measurements"]
            if one["way"] in rivals or one["way"] == "mapping.write"
        ]
        found = [line for line in summed_up() if line.startswith("| Write 64 B")]
        assert found == [
            "| Write 64 B to GPU memory | **0.200 us** | 4.00 us, cuda.bindings | 20.0 |"
        ]

    def test_takes_points_of_sweeps_by_their_size(self, publishable, summed_up):
        (sweep,) = (one for one in publishable["sweeps"] if one["id"] == "copyengine/read")
        at = sweep["by"]["size"].index(4096)
        for way, median in (
            ("engine, pinned", 2),
            ("cuda.bindings, pageable", 9),
            ("cuda.bindings, pinned", 7),
        ):
            sweep["median"][way][at] = median
        found = [line for line in summed_up() if line.startswith("| Read 4 KiB")]
        assert found == [
            "| Read 4 KiB by the copy engine | **2.00 us** | 7.00 us, `cuMemcpyDtoH` | 3.50 |"
        ]

    def test_leaves_out_what_was_not_measured(self, publishable, summed_up):
        publishable["distributions"] = []
        assert not any("Signal" in line for line in summed_up())

    def test_links_its_data_from_the_page(self, summed_up):
        assert summed_up()[-1].endswith(": [data](data/result.json).")


class TestGoals:
    def test_have_no_table_where_none_applies(self, publishable):
        publishable["goals"] = []
        assert "goals" not in publishing.markdown(publishable)
