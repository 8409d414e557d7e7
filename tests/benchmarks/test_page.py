"""The page about performance."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

import page
import plotcheck
import plots
import report
import rivalrings
import stepinputs
from publishing import NotPublishable

TOP = Path(__file__).resolve().parent.parent.parent
#: The results whose plots are committed.
RESULTS = list((TOP / "benchmarks/results").glob("*-all.json"))


@pytest.fixture
def saved(publishable, tmp_path):
    """A result that may be published, in a file."""
    path = tmp_path / "test-all.json"
    path.write_text(json.dumps(publishable))
    return path


def missed(result, **fields):
    """Make the first goal one that was missed."""
    goal = result["goals"][0]
    goal |= {"figure": 0.09, "verdict": "missed", "where": None, **fields}
    return goal


class TestCommittedPages:
    def test_are_what_their_data_gives(self, tmp_path):
        for path in (TOP / "docs").glob("performance*.md"):
            found = re.search(r"`python benchmarks/report.py (\S+) --page (\S+)`", path.read_text())
            assert found is not None
            data, target = (TOP / name for name in found.groups())
            assert target == path
            assert page.page(json.loads(data.read_text()), data, target) == path.read_text()
            for plot in re.findall(r"\]\((\S+\.svg)\)", path.read_text()):
                assert (path.parent / plot).is_file()


class TestPage:
    def test_is_written_with_chapters_and_with_plots_that_are_there(self, saved, tmp_path):
        target = tmp_path / "performance.md"
        assert report.main([str(saved), "--page", str(target)]) == 0
        chapters = re.findall("^## (.*)$", target.read_text(), re.MULTILINE)
        of_kernels = (rivalrings.MODULE, stepinputs.MODULE)
        titles = (one.title for one in page.SECTIONS if one.module not in of_kernels)
        assert chapters == ["What you gain", "Method", *titles, "Goals"]
        shown = re.findall(r"\]\((\S+\.svg)\)", target.read_text())
        assert sorted(shown) == sorted(path.name for path in tmp_path.glob("*.svg"))
        assert len(shown) == 6

    def test_leaves_out_what_was_not_run(self, publishable, saved, tmp_path):
        for kind in ("sweeps", "measurements", "distributions"):
            publishable[kind] = [one for one in publishable[kind] if one["module"] != "pingpong"]
        text = page.page(publishable, saved, tmp_path / "performance.md")
        assert "## Signals to the GPU and back" not in text
        assert "pingpong.svg" not in text

    def test_is_written_of_single_times_alone(self, publishable, saved, tmp_path):
        publishable["sweeps"] = publishable["measurements"] = []
        text = page.page(publishable, saved, tmp_path / "performance.md")
        counts = [one["count"] for one in publishable["distributions"]]
        verified = f"{len(counts)} of {len(counts)} figures with verified data"
        assert f"{min(counts)} to {max(counts)} samples a figure; {verified}" in text

    def test_is_refused_for_a_simulated_gpu(self, publishable, saved, tmp_path):
        publishable["header"]["simulated"] = True
        with pytest.raises(NotPublishable, match="simulated"):
            page.page(publishable, saved, tmp_path / "performance.md")


class TestMissedGoal:
    def test_is_told_with_how_much(self, publishable, saved, tmp_path):
        goal = missed(publishable, bound=0.06, unit="us", relation="<=")
        text = page.page(publishable, saved, tmp_path / "performance.md")
        assert f"- **{goal['goal']}** is 0.090 us. The bound is <= 0.06 us (50.0% off)." in text

    def test_of_an_earlier_commit_has_the_words_of_today(self, publishable, saved, tmp_path):
        words = missed(publishable)["goal"]
        publishable["goals"][0]["goal"] = "as it was called then"
        text = page.page(publishable, saved, tmp_path / "performance.md")
        assert f"- **{words}** is " in text
        assert "as it was called then" not in text

    def test_says_where_and_why(self, publishable, saved, tmp_path):
        goal = missed(publishable, where="64 B, mapping offset 1")
        notes = saved.with_name("test-all-notes.md")
        notes.write_text(f"# Why\n\n## {goal['goal']}\n\nThe bus was\nbusy.\n")
        text = page.page(publishable, saved, tmp_path / "performance.md")
        assert "(64 B, mapping offset 1)" in text
        assert " off). The bus was busy." in text

    def test_that_was_none_may_have_no_note(self, publishable, saved, tmp_path):
        saved.with_name("test-all-notes.md").write_text("# Why\n\n## a goal\n\nNo.\n")
        with pytest.raises(NotPublishable, match="a goal"):
            page.page(publishable, saved, tmp_path / "performance.md")


class TestPlots:
    def test_are_svg_and_the_same_for_the_same_data(self, publishable, saved):
        first = {path.name: path.read_bytes() for path in plots.draw(publishable, saved)}
        again = {path.name: path.read_bytes() for path in plots.draw(publishable, saved)}
        assert first == again
        for drawn in first.values():
            assert ElementTree.fromstring(drawn).tag == "{http://www.w3.org/2000/svg}svg"

    def test_that_are_committed_cut_off_and_cover_nothing(self, monkeypatch, tmp_path):
        from matplotlib.figure import Figure

        figures = {}
        monkeypatch.setattr(
            Figure, "savefig", lambda figure, path, **_: figures.update({Path(path).name: figure})
        )
        assert RESULTS
        for result in RESULTS:
            drawn = plots.draw(json.loads(result.read_text()), tmp_path / result.name)
            assert {path.name: plotcheck.faults(figures[path.name]) for path in drawn} == {
                plots.plot_path(result, name).name: [] for name in plots.PLOTS
            }

    def test_that_are_committed_are_what_their_data_gives(self, tmp_path):
        """By their words: the lines differ with the release of matplotlib."""
        for result in RESULTS:
            drawn = plots.draw(json.loads(result.read_text()), tmp_path / result.name)
            assert len(drawn) == len(plots.PLOTS)
            for path in drawn:
                assert words(path) == words(result.with_name(path.name))


def words(path: Path) -> list[str | None]:
    """The texts of a plot."""
    return [one.text for one in ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}text")]
