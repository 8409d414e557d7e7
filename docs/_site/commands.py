"""The directive ``commands``: what every ``gdrpy COMMAND --help`` says, as of this build."""

from __future__ import annotations

import argparse
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from gdrpy.cli import COMMANDS, command_parser, parser


def commands() -> dict[str, argparse.ArgumentParser]:
    """The parsers of the commands, by name."""
    return {name: command_parser(name) for name in COMMANDS}


class Commands(SphinxDirective):
    def run(self) -> list[nodes.Node]:
        found = [_help("gdrpy", parser().format_help())]
        return found + [_help(f"gdrpy {name}", p.format_help()) for name, p in commands().items()]


def _help(title: str, text: str) -> nodes.section:
    name = nodes.make_id(title)
    section = nodes.section("", nodes.title("", title), ids=[name], names=[name])
    section += nodes.literal_block(text, text, language="text")
    return section


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("commands", Commands)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
