"""The documentation site: ``make docs`` builds it into build/docs.

Its source folder is the repository, not this folder, so that every page is the file that a plain
checkout and a code-hosting page show, with the same links, those that leave docs/ included: they
lead to the pages named in ``include_patterns``, or by ``sources`` to a copy of the file.
"""

import os
import sys
from pathlib import Path

from gdrpy import __version__

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_site"))

# The same pages everywhere, on machines with a GPU too.
os.environ["GDRPY_SIM"] = "1"
os.environ["COLUMNS"] = "80"

project = "gdrpy"
version = release = __version__
copyright = "the gdrpy developers"
root_doc = "docs/index"
include_patterns = [
    "docs/**",
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "*/README.md",
    "examples/*.ipynb",
    "tests/vm/README.md",
    "tests/vm/*/README.md",
]
exclude_patterns = [".*", "build", "dist", "docs/_site", "**/__pycache__"]
extensions = ["myst_parser", "sphinx.ext.autodoc", "sources", "names", "commands", "notebooks"]

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
myst_links_external_new_tab = False

#: Described without being there: the site is built where none of them is.
autodoc_mock_imports = ["cupy", "rmm", "torch"]
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
#: Bounds of a message's fields, which are not what a reader asks for.
autodoc_type_aliases = dict.fromkeys(("Number", "Bytes", "_Size"), "int") | {
    "_DeviceOrCpu": "int | str",
    "_NumberOrNone": "int | None",
}
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
maximum_signature_line_length = 80
python_use_unqualified_type_names = True
add_module_names = False
toc_object_entries_show_parents = "hide"

default_role = "code"
highlight_language = "text"

nitpicky = True
#: Names of other libraries, whose pages are not asked for at build time.
nitpick_ignore = [
    ("py:class", name)
    for name in (
        "AbstractContextManager",
        "ArrayLike",
        "Buffer",
        "CUstream",
        "DTypeLike",
        "NDArray",
    )
]
nitpick_ignore_regex = [("py:class", r"(.*\.)?(np|numpy|os|collections|contextlib|torch)\..*")]

html_theme = "furo"
html_title = f"gdrpy {version}"
html_static_path = ["_site/static"]
html_css_files = ["gdrpy.css"]
html_additional_pages = {"index": "start.html"}
templates_path = ["_site/templates"]
html_copy_source = False
html_show_sphinx = False
