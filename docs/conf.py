"""The documentation site: ``make docs`` builds it into build/docs.

Its source folder is the repository, not this folder, so that every page is the file that a plain
checkout and a code-hosting page show, with the same links, those that leave docs/ included: they
lead to the pages named in ``include_patterns``, or by ``sources`` to a copy of the file.
"""

import os
import re
import subprocess
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
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx_copybutton",
    "sources",
    "names",
    "commands",
    "keywords",
    "notebooks",
]

#: What begins a line that a reader types. Only these lines are copied, without it.
copybutton_prompt_text = r"(?:\(\w+\) [$#]|\$|>>>|\.\.\.) "
copybutton_prompt_is_regexp = True
copybutton_line_continuation_character = "\\"

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
myst_links_external_new_tab = False

#: Described without being there: the site is built where none of them is.
autodoc_mock_imports = [
    "cupy",
    "lmcache",
    "prometheus_client",
    "ray",
    "rmm",
    "torch",
    "transformers",
    "vllm",
]
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
_OTHERS = "np|numpy|os|collections|contextlib|torch|transformers"
nitpick_ignore_regex = [("py:class", rf"(.*\.)?({_OTHERS})\..*")]


def repository() -> str:
    """Where this checkout was cloned from, as a web page; empty if that is not on the web."""
    command = ["git", "-C", str(HERE), "config", "--get", "remote.origin.url"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except FileNotFoundError:  # a source archive, without git
        return ""
    address = re.fullmatch(r"(?:https://|(?:ssh://)?git@)([^/:@]+)[/:](.+?)(?:\.git)?", found)
    return "https://{}/{}".format(*address.groups()) if address else ""


html_theme = "furo"
html_title = f"gdrpy {version}"
html_static_path = ["_site/static"]
html_css_files = ["gdrpy.css"]
html_additional_pages = {"index": "start.html"}
html_context = {"repository": repository()}
html_sidebars = {
    "**": [
        "sidebar/brand.html",
        "repository.html",
        "sidebar/search.html",
        "sidebar/scroll-start.html",
        "sidebar/navigation.html",
        "sidebar/scroll-end.html",
    ]
}
templates_path = ["_site/templates"]
html_copy_source = False
html_show_sphinx = False
