"""The comment ``<!-- search: install, pip -->``: words that the site's search finds this place by.

They become main entries of the index, which the search puts before titles and texts with a word.
"""

from __future__ import annotations

import re
from typing import Any

from sphinx.application import Sphinx


def _entries(_app: Sphinx, _page: str, source: list[str]) -> None:
    source[0] = re.sub(
        r"^<!-- search: (.+) -->$",
        lambda found: f":::{{index}} !{found[1].replace(', ', ', !')}\n:::",
        source[0],
        flags=re.MULTILINE,
    )


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("source-read", _entries)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
