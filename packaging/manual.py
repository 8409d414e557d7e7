"""Writes the manual pages of gdrpy and of each of its commands, of the texts that --help prints.

``gdrpy.1`` and ``gdrpy-COMMAND.1`` go to a folder; ``man ./gdrpy-serve.1`` shows one.
"""

from __future__ import annotations

import argparse
import datetime
import os
import re
from collections.abc import Iterator
from pathlib import Path

from gdrpy.cli import GROUPS, command_parser, helptext, parser
from gdrpy.cli.header import gdrpy_version

#: A line that says what the lines below it are.
_HEADING = re.compile(r"[^.,:;]+:")
#: What roff takes for itself, or shows as another character than a user types.
_ROFF = str.maketrans(
    {"\\": r"\e", "-": r"\-", "'": r"\(aq", "`": r"\(ga", "^": r"\(ha", "~": r"\(ti"}
)


def pages(date: str) -> dict[str, str]:
    """The text of each page by its file's name."""
    modules = [one for group in GROUPS.values() for one in group.items()]
    abouts = {module.rpartition(".")[2]: about for module, about in modules}
    whole = parser()
    about = str(whole.description).rstrip(".")
    made = {"gdrpy.1": _page("gdrpy", about, whole, [f"gdrpy-{name}" for name in abouts], date)}
    for name, about in abouts.items():
        title = f"gdrpy-{name}"
        made[f"{title}.1"] = _page(title, about, command_parser(name), ["gdrpy"], date)
    return made


def _page(
    title: str, about: str, shown: argparse.ArgumentParser, also: list[str], date: str
) -> str:
    usage = shown.format_usage().removeprefix("usage: ")
    lines = [
        f'.TH "{_text(title)}" 1 "{date}" "gdrpy {gdrpy_version()}" "User Commands"',
        ".SH NAME",
        f"{_text(title)} \\- {_text(about)}",
        ".SH SYNOPSIS",
        *_as_written(line.removeprefix("       ") for line in usage.splitlines()),
        ".SH DESCRIPTION",
        *_prose(shown.description or "", ".SS"),
    ]
    actions = [one for one in shown._actions if one.help != argparse.SUPPRESS]
    for heading, named in (("POSITIONAL ARGUMENTS", False), ("OPTIONS", True)):
        chosen = [one for one in actions if bool(one.option_strings) is named]
        lines += [f".SH {heading}"] * bool(chosen)
        for action in chosen:
            lines += _entry(*_described(shown, action))
    lines += _prose(shown.epilog or "", ".SH")
    lines += [".SH SEE ALSO", ",\n".join(f".BR {_text(one)} (1)" for one in also)]
    return "\n".join(lines) + "\n"


def _described(shown: argparse.ArgumentParser, action: argparse.Action) -> tuple[str, str]:
    """An option or argument as --help prints it, and what it is for."""
    formatter = shown._get_formatter()
    return formatter._format_action_invocation(action), formatter._expand_help(action)


def _prose(text: str, heading: str) -> Iterator[str]:
    """A text of help: headings, paragraphs, entries and examples."""
    lines: list[str] = []
    for first, _, words in helptext.items(text.strip()):
        column = first.strip()
        if first and not column:
            lines.append(first[2:] + words)
            continue
        yield from _as_written(lines)
        lines = []
        if column:
            yield from _entry(column, words)
        elif _HEADING.fullmatch(words):
            title = words.removesuffix(":")
            yield f"{heading} {_text(title.upper() if heading == '.SH' else title)}"
        elif words:
            yield from (".PP", _text(words))
    yield from _as_written(lines)


def _entry(column: str, words: str) -> Iterator[str]:
    yield from (".TP", f".B {_text(column)}", _text(words))


def _as_written(lines: Iterator[str] | list[str]) -> Iterator[str]:
    """Lines that are not filled, unless there are none."""
    kept = [_text(line) for line in lines]
    if kept:
        yield from (".PP", ".nf", *kept, ".fi")


def _text(words: str) -> str:
    """Words as roff shows them unchanged."""
    plain = words.translate(_ROFF)
    return f"\\&{plain}" if plain.startswith((".", "\\(aq")) else plain


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("folder", type=Path, metavar="FOLDER", help="where they go")
    day = datetime.date.fromisoformat
    words.add_argument("--date", type=day, metavar="YYYY-MM-DD", default=datetime.date.today())
    args = words.parse_args()
    os.environ["COLUMNS"] = "80"
    args.folder.mkdir(parents=True, exist_ok=True)
    for name, page in pages(args.date.isoformat()).items():
        (args.folder / name).write_text(page)


if __name__ == "__main__":
    main()
