"""The text of help, in lines that the terminal has room for."""

from __future__ import annotations

import argparse
import re
import shutil
import textwrap
from typing import Any, NoReturn

from gdrpy.cli.output import Output
from gdrpy.common import spelling

#: Spaces at the beginning of a line, then the first column if the line has two, then the rest.
_LINE = re.compile(r"( *)((?:\S| (?! ))+ {2,})?(.*)")


#: Columns of the narrowest terminal that help is folded for.
_NARROWEST = 60


class Parser(argparse.ArgumentParser):
    """A parser whose help has the terminal's width. Printing it raises CommandError."""

    #: Whether an error goes to stdout as well, as JSON.
    as_json = False

    def __init__(self, **options: Any) -> None:
        super().__init__(formatter_class=_Formatter, allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        """End the program; for options that are not known with one that may have been meant."""
        _, _, unknown = message.partition("unrecognized arguments: ")
        options = {one[2:] for one in self._option_string_actions if one.startswith("--")}
        for word in unknown.split():
            if word.startswith("--"):
                near = spelling.nearest(word[2:].partition("=")[0], options)
                message += f": did you mean '--{near}'?" if near else ""
                break
        Output(self.as_json).failed("CommandError", message)
        super().error(message)

    def print_help(self, file: Any = None) -> None:
        """Print the help, to stdout if there is no ``file``."""
        if file is None:
            Output().text(self.format_help().rstrip("\n"))
        else:
            super().print_help(file)


class _Formatter(argparse.HelpFormatter):
    """Folds paragraphs, and the second of two columns."""

    def __init__(self, prog: str) -> None:
        columns = max(shutil.get_terminal_size().columns, _NARROWEST)
        super().__init__(prog, width=columns - 2)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        del indent
        return "\n".join(
            _folded(first, hanging, rest, width) for first, hanging, rest in items(text)
        )


def items(text: str) -> list[tuple[str, int, str]]:
    """Paragraphs and entries: the beginning of the first line, the indentation of the other lines,
    and the words.
    """
    items: list[tuple[str, int, str]] = []
    joins = -1  # lines with this indentation continue the last item
    for line in text.splitlines():
        found = _LINE.fullmatch(line)
        assert found
        spaces, column, rest = found[1], found[2] or "", found[3]
        if rest and not column and len(spaces) == joins:
            first, hanging, words = items.pop()
            items.append((first, hanging, f"{words} {rest}"))
            continue
        first = spaces + column
        example = spaces and not column
        items.append((first, len(first) + 4 * bool(example), rest))
        joins = -1 if example or not rest or rest.endswith(":") else len(first)
    return items


def _folded(first: str, hanging: int, words: str, width: int) -> str:
    comment = "# " * words.startswith("# ")  # on each of its lines, which are pasted into shells
    if hanging > width // 2 and len(first + words) > width:  # too narrow a column
        spaces = first[: len(first) - len(first.lstrip())]
        hanging = len(spaces) + 4
        if comment:
            lines = (spaces, first.strip()), (" " * hanging, words)
            return "\n".join(_folded(start, hanging, rest, width) for start, rest in lines)
        first, words = spaces, f"{first.strip()}  {words}"
    return textwrap.fill(
        words,
        width,
        initial_indent=first,
        subsequent_indent=" " * hanging + comment,
        break_long_words=False,
        break_on_hyphens=False,
    )
