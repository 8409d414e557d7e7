"""Notebooks as pages: their texts as Markdown, their code, and their saved outputs.

Nothing is executed. The tests run the notebooks and compare the outputs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from docutils import nodes
from myst_parser.parsers.sphinx_ import MystParser
from sphinx.application import Sphinx


class NotebookParser(MystParser):
    """Parses a notebook as the Markdown that shows the same."""

    supported = ("notebook",)

    def parse(self, inputstring: str, document: nodes.document) -> None:
        parts = (part for cell in json.loads(inputstring)["cells"] for part in _markdown(cell))
        super().parse("\n\n".join(parts), document)


def _markdown(cell: dict[str, Any]) -> Iterator[str]:
    """A cell's text, or its code and each of its outputs."""
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        yield source
        return
    yield f"```python\n{source}\n```"
    for output in cell["outputs"]:
        text = "".join(output["text"] if "text" in output else output["data"]["text/plain"])
        yield f"```text\n{text.rstrip()}\n```"


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_source_suffix(".ipynb", "notebook")
    app.add_source_parser(NotebookParser)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
