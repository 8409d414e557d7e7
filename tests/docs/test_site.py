"""The documentation site builds without a warning, and everything in it leads somewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pygments import token
from pygments.lexers import BashSessionLexer
from sitecheck import (
    broken_links,
    fetched_from_elsewhere,
    search_entries,
    undocumented,
    unexplained,
)

import gdrpy

TOP = Path(__file__).parents[2]
IMAGES = TOP / "docs" / "images"

#: Sphinx, in a process that can reach no other machine.
SPHINX = """
import sys

def refuse(event, arguments):
    if event == "socket.getaddrinfo" or (
        event == "socket.connect" and not isinstance(arguments[1], str)
    ):
        raise RuntimeError(f"the build asks for {arguments}")

sys.addaudithook(refuse)
from sphinx.cmd.build import main
sys.exit(main(sys.argv[1:]))
"""


def build(source: Path, to: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Build the site of a source folder by the project's configuration, as `make docs` does."""
    words = ["-q", "-W", "--keep-going", "-c", str(TOP / "docs"), str(source), str(to)]
    return subprocess.run(
        [sys.executable, "-c", SPHINX, *words],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("site")
    done = build(TOP, made)
    assert (done.returncode, done.stderr) == (0, "")
    return made


class TestSite:
    def test_has_links_that_lead_to_what_they_say(self, site):
        assert broken_links(site) == []

    def test_asks_no_other_host_for_anything(self, site):
        assert fetched_from_elsewhere(site) == []

    def test_has_an_entry_for_every_public_name(self, site):
        assert undocumented(site) == []

    def test_shows_a_call_of_the_broker_as_users_make_it(self, site):
        page = (site / "docs" / "reference" / "broker.html").read_text()
        entry = page[page.index('id="gdrpy.Broker.allocate"') :]
        entry = entry[: entry.index("</dd></dl>")]
        assert "nbytes" in entry
        assert 'title="gdrpy.BrokerRegion"' in entry
        assert "The region of this name, made if it does not exist" in entry

    def test_shows_types_of_what_is_written_in_c(self, site):
        page = (site / "docs" / "reference" / "mappings.html").read_text()
        entry = page[page.index('id="gdrpy.Mapping.load"') :]
        assert '<span class="pre">int</span>' in entry[: entry.index("</dt>")]

    @pytest.mark.parametrize(
        "page", ["allocators", "broker", "channels", "mappings", "pins", "regions"]
    )
    def test_explains_the_parameters_of_every_call(self, site, page):
        assert unexplained(site / "docs" / "reference" / f"{page}.html") == []

    def test_has_the_help_of_every_command(self, site):
        from gdrpy.cli import COMMANDS

        page = (site / "docs" / "command-line.html").read_text()
        assert [name for name in COMMANDS if f"usage: gdrpy {name}" not in page] == []

    def test_shows_the_files_that_its_pages_lead_to(self, site):
        shown = (site / "source" / "examples" / "channel_to_kernel.py.html").read_text()
        assert "<h1>examples/channel_to_kernel.py</h1>" in shown
        assert (site / "source/benchmarks/results/h200-2026-11-28-all.json").is_file()

    @pytest.mark.parametrize(
        ("words", "page"),
        [
            ("install", "docs/quick-start"),
            ("pip", "docs/quick-start"),
            ("weights", "docs/howto/serving"),
            ("share model", "docs/howto/serving"),
            ("update weights", "docs/howto/serving"),
        ],
    )
    def test_is_searched_by_the_words_of_its_readers(self, site, words, page):
        assert search_entries(site)[words] == [page]

    def test_tells_its_version(self, site):
        page = (site / "docs" / "index.html").read_text()
        assert f'<span class="sidebar-brand-text">gdrpy {gdrpy.__version__}</span>' in page

    def test_copies_of_a_session_what_is_typed(self, site):
        script = (site / "_static" / "copybutton.js").read_text()
        (prompt,) = re.findall(r"formatCopyText\(text, '(.*)', true, true, true, ", script)
        prompt = prompt.encode().decode("unicode_escape")
        sessions = []
        for page in [*TOP.glob("*.md"), *TOP.glob("docs/**/*.md"), *TOP.glob("*/README.md")]:
            sessions += re.findall(r"```console\n(.*?)```", page.read_text(), re.DOTALL)
        assert len(sessions) > 50
        for session in sessions:
            tokens = BashSessionLexer().get_tokens(session)
            prompts = [text for kind, text in tokens if kind is token.Generic.Prompt]
            typed = re.findall(f"^{prompt}", session, re.MULTILINE)
            assert typed, session
            assert [one.split(") ")[-1] for one in typed] == prompts

    def test_shows_notebooks_with_their_outputs(self, site):
        page = (site / "examples" / "tour.html").read_text()
        assert "<h1>A tour in a notebook" in page
        assert "gdrpy simulated GPU" in page
        assert 'href="../docs/concepts.html"' in page

    def test_begins_at_its_top(self, site):
        assert 'url=docs/index.html"' in (site / "index.html").read_text()


class TestRepository:
    @pytest.mark.parametrize(
        ("origin", "link"),
        [
            ("https://example.org/some/gdrpy.git", "https://example.org/some/gdrpy"),
            ("https://example.org/some/gdrpy", "https://example.org/some/gdrpy"),
            ("git@example.org:some/gdrpy.git", "https://example.org/some/gdrpy"),
            ("ssh://git@example.org/some/gdrpy", "https://example.org/some/gdrpy"),
            ("/home/ann/gdrpy", None),
        ],
    )
    def test_is_linked_if_it_is_on_the_web(self, tmp_path, origin, link):
        (tmp_path / "docs").mkdir()
        (tmp_path / "docs" / "index.md").write_text("# Page\n")
        setting = {"KEY_0": "remote.origin.url", "VALUE_0": origin, "COUNT": "1"}
        environment = {f"GIT_CONFIG_{name}": value for name, value in setting.items()}
        done = build(tmp_path, tmp_path / "built", **environment)
        assert (done.returncode, done.stderr) == (0, "")
        page = (tmp_path / "built" / "docs" / "index.html").read_text()
        found = re.findall(r'<a class="repository" href="(.*?)">Repository</a>', page)
        assert found == ([link] if link else [])


class TestDiagrams:
    @pytest.mark.parametrize("name", sorted(path.name for path in IMAGES.iterdir()))
    def test_have_a_colour_for_the_dark_for_each_for_the_light(self, name):
        style, drawing = (IMAGES / name).read_text().split("</style>")
        (dark,) = re.findall(r"@media \(prefers-color-scheme: dark\) \{(.*)\}", style, re.DOTALL)
        changed = re.findall(r"\[(.*?)\] \{ (?:fill|stroke): #\w{6} \}", dark)
        assert set(changed) == set(re.findall(r' ((?:fill|stroke)="#\w{6}")', drawing))


class TestChecks:
    @pytest.mark.parametrize(
        ("text", "complaint"),
        [
            ("[there](nowhere.md)", "cross-reference target not found: 'nowhere.md'"),
            ("[there](index.md#nothing)", "'nothing'"),
            ("```{eval-rst}\n:func:`gdrpy.nothing`\n```", "target not found: gdrpy.nothing"),
            ("```{eval-rst}\n.. autofunction:: gdrpy.nothing\n```", "failed to import"),
            ("```{literalinclude} nothing.h\n```", "not found or reading it failed"),
        ],
    )
    def test_a_page_with_a_fault_fails_the_build(self, tmp_path, text, complaint):
        (tmp_path / "docs").mkdir()
        (tmp_path / "docs" / "index.md").write_text(f"# Doctored\n\n{text}\n")
        done = build(tmp_path, tmp_path / "built")
        assert done.returncode == 1
        assert complaint in done.stderr

    def test_broken_links_are_found(self, tmp_path):
        (tmp_path / "a.html").write_text('<p id="here"><a href="b.html#there"></a>')
        (tmp_path / "b.html").write_text(
            '<a href="a.html#here"></a><a href="a.html#gone"></a><img src="c.svg">'
        )
        assert broken_links(tmp_path) == [
            "a.html: b.html#there",
            "b.html: a.html#gone",
            "b.html: c.svg",
        ]

    def test_requests_to_other_hosts_are_found(self, tmp_path):
        (tmp_path / "a.html").write_text('<script src="https://host/x.js"></script>')
        assert fetched_from_elsewhere(tmp_path) == ["a.html: https://host/x.js"]

    def test_calls_that_list_no_parameters_are_found(self, tmp_path):
        call = "".join(f'<em class="sig-param">{name}</em>' for name in "abc")
        listed = '<dl class="field-list simple"><dd><strong>a</strong></dd></dl>'
        page = tmp_path / "all.html"
        page.write_text(
            f'<dt class="sig" id="f">{call}</dt>{listed}<dt class="sig" id="g">{call}</dt>'
        )
        assert unexplained(page) == ["g"]

    def test_names_without_an_entry_are_found(self, tmp_path):
        folder = tmp_path / "docs" / "reference"
        folder.mkdir(parents=True)
        (folder / "all.html").write_text('<dt id="gdrpy.Region">')
        missing = undocumented(tmp_path)
        assert "gdrpy.Region" not in missing
        assert {"gdrpy.alloc", "gdrpy.aio.connect", "gdrpy.Revoked"} <= set(missing)
