"""Links to files that are no pages: to a page that shows the file, or to a copy of it.

A folder is shown by its README if that is a page, else by a list of its files.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from docutils import nodes
from pygments.lexers import get_lexer_for_filename, guess_lexer
from pygments.util import ClassNotFound
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.osutil import relative_uri

#: Kinds of files that a browser shows by itself.
_COPIED = {".json", ".svg", ".png"}


class LinksToSources(SphinxPostTransform):
    """Before the references of the pages are resolved: what leads to no page is taken here."""

    default_priority = 5
    formats = ("html",)

    def run(self, **_: Any) -> None:
        links = addnodes.download_reference, addnodes.pending_xref
        for node in list(self.document.findall(lambda n: isinstance(n, links))):
            if node.get("reftype") == "myst":
                self._lead(node)

    def _lead(self, node: nodes.Element) -> None:
        top = Path(self.env.srcdir)
        path = (top / self.env.docname).parent.joinpath(node["reftarget"]).resolve()
        if not path.is_relative_to(top) or not path.exists():
            return
        place = path.relative_to(top).as_posix()
        if f"{place}/README" in self.env.found_docs:
            page = f"{place}/README"
        elif path.is_file() and isinstance(node, addnodes.pending_xref):
            return  # a page
        else:
            page = f"source/{place}"
            shown(self.app).add(path)
        uri = relative_uri(
            self.app.builder.get_target_uri(self.env.docname),
            page if path.suffix in _COPIED else self.app.builder.get_target_uri(page),
        )
        node.replace_self(nodes.reference("", "", *node.children, refuri=uri, internal=True))


def shown(app: Sphinx) -> set[Path]:
    """The files and folders outside the pages that pages lead to."""
    if not hasattr(app.env, "gdrpy_sources"):
        app.env.gdrpy_sources = set()
    found: set[Path] = app.env.gdrpy_sources
    return found


def _pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    folders = {path for path in shown(app) if path.is_dir()}
    inside = {path for folder in folders for path in _files(folder)}
    for path in sorted((shown(app) - folders) | inside):
        if path.suffix in _COPIED:
            copy = Path(app.outdir, "source", path.relative_to(app.srcdir))
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
        else:
            yield _page(app, path, _text(app, path))
    for folder in sorted(folders):
        yield _page(app, folder, _list(_files(folder)))


def _files(folder: Path) -> list[Path]:
    return sorted(one for one in folder.iterdir() if one.is_file() and one.name[0] != ".")


def _page(app: Sphinx, path: Path, body: str) -> tuple[str, dict[str, Any], str]:
    place = path.relative_to(app.srcdir).as_posix()
    title = escape(place)
    return f"source/{place}", {"title": title, "body": f"<h1>{title}</h1>{body}"}, "page.html"


def _text(app: Sphinx, path: Path) -> str:
    text = path.read_text()
    try:
        lexer = get_lexer_for_filename(path.name)
    except ClassNotFound:
        lexer = guess_lexer(text)
    return str(app.builder.highlighter.highlight_block(text, lexer.aliases[0]))


def _list(paths: list[Path]) -> str:
    items = [
        f'<li><a href="{path.parent.name}/{path.name}{"" if path.suffix in _COPIED else ".html"}">'
        f"{path.name}</a></li>"
        for path in paths
    ]
    return f"<ul>{''.join(items)}</ul>"


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_post_transform(LinksToSources)
    app.connect("html-collect-pages", _pages)
    return {"parallel_read_safe": True, "parallel_write_safe": False}
