"""What is held against a built documentation site: its links, its requests, its names."""

from __future__ import annotations

import ast
import json
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import gdrpy

PACKAGE = Path(gdrpy.__file__).parent
DEFINITIONS = ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef


class Page(HTMLParser):
    """The anchors of a page, what it links to, and what a browser fetches to show it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: set[str] = set()
        self.fetched: set[str] = set()
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.anchors.update(found[name] for name in ("id", "name") if name in found)
        if tag == "a" and "href" in found:
            self.links.add(found["href"])
        elif tag == "link" and "href" in found:
            self.fetched.add(found["href"])
        elif "src" in found:
            self.fetched.add(found["src"])


def pages_of(site: Path) -> dict[Path, Page]:
    return {path: Page(path) for path in sorted(site.rglob("*.html"))}


def broken_links(site: Path) -> list[str]:
    """Links within the site that lead to no file or no anchor, each with the page it is on."""
    pages = pages_of(site)
    broken = []
    for path, page in pages.items():
        for link in sorted(page.links | page.fetched):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            anchors = pages[target].anchors if target in pages else set()
            if not target.is_file() or (parts.fragment and unquote(parts.fragment) not in anchors):
                broken.append(f"{path.relative_to(site)}: {link}")
    return broken


def fetched_from_elsewhere(site: Path) -> list[str]:
    """What a browser would ask other hosts for."""
    return [
        f"{path.relative_to(site)}: {address}"
        for path, page in pages_of(site).items()
        for address in sorted(page.fetched)
        if urlsplit(address).netloc
    ]


def public_names() -> set[str]:
    """Every name that a user may write. Modules are read, since some need other libraries."""
    names = {f"gdrpy.{name}" for name in gdrpy.__all__} | {"gdrpy.cuda.call", "gdrpy.cuda.context"}
    for module in gdrpy._MODULES:
        home = PACKAGE / module
        text = (home / "__init__.py" if home.is_dir() else home.with_suffix(".py")).read_text()
        tree = ast.parse(text).body
        said = [ast.literal_eval(one.value) for one in tree if _assigns_all(one)]
        defined = [one.name for one in tree if isinstance(one, DEFINITIONS)]
        own = said[0] if said else [name for name in defined if not name.startswith("_")]
        names.update(f"gdrpy.{module}.{name}" for name in own)
    return names


def _assigns_all(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "__all__"


def undocumented(site: Path) -> list[str]:
    """Public names that have no entry in the reference."""
    entries = {
        anchor for page in pages_of(site / "docs" / "reference").values() for anchor in page.anchors
    }
    return sorted(public_names() - entries)


class Calls(HTMLParser):
    """The calls of a page of the reference: how many parameters each has, how many it explains."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.parameters: dict[str, int] = {}
        self.explained: dict[str, int] = {}
        self._call = ""
        self._listing = False
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        classes = found.get("class", "").split()
        if tag == "dt" and "sig" in classes:
            self._call = found.get("id", "")
            self.parameters[self._call] = self.explained[self._call] = 0
        elif tag == "em" and "sig-param" in classes:
            self.parameters[self._call] += 1
        elif tag == "abbr":  # the marks * and / among the parameters
            self.parameters[self._call] -= 1
        elif tag == "dl":
            self._listing = "field-list" in classes
        elif tag == "strong" and self._listing:
            self.explained[self._call] += 1

    def handle_endtag(self, tag: str) -> None:
        if tag == "dl":
            self._listing = False


def unexplained(page: Path) -> list[str]:
    """Calls of three parameters or more on a page of the reference that list none of them."""
    calls = Calls(page)
    return [
        name for name, count in calls.parameters.items() if count >= 3 and not calls.explained[name]
    ]


def search_entries(site: Path) -> dict[str, list[str]]:
    """The pages that the site's search puts first, by the words that somebody types for them."""
    text = (site / "searchindex.js").read_text()
    index = json.loads(text[text.index("(") + 1 : text.rindex(")")])
    return {
        words: [index["docnames"][page] for page, _, main in places if main]
        for words, places in index["indexentries"].items()
    }
