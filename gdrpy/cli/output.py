"""The output of commands: tables and lines for people, or JSON for programs."""

from __future__ import annotations

import functools
import json
import os
import sys
import textwrap
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO, TextIO

from gdrpy.cli.exits import CommandError, ReaderGone
from gdrpy.cli.sizes import approximate_size

if TYPE_CHECKING:
    from rich.console import Console

#: The width of tables, in columns, where stdout is not a terminal and $COLUMNS is not set.
_PLAIN_WIDTH = 140
#: Seconds between two lines on the progress of a copy where stderr is not a terminal.
_SECONDS_BETWEEN_LINES = 10.0
#: Lists with more entries print one entry per line of JSON.
_LONG = 100

#: Columns of a terminal that a cell of a table takes besides its text: two spaces and a line.
CELL_EDGES = 3

#: A table or another object of rich's. rich is imported when output begins: help does not need it.
Renderable = Any


def _drop_buffered() -> None:
    """Discard what stdout still holds: Python would try to write it again at exit."""
    try:
        stdout = sys.stdout.fileno()
    except OSError:  # a stream without a descriptor, as tests have
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stdout)
    os.close(nowhere)


def write_all(stream: BinaryIO, data: bytes | memoryview) -> None:
    """Write all bytes to a stream that may take a part at a time. Raises OSError."""
    rest = memoryview(data)
    while rest:
        rest = rest[stream.write(rest) :]


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str | Renderable]],
    title: str | None = None,
    right: Collection[str] = (),
    whole: Collection[str] = (),
    caption: str | None = None,
) -> Renderable:
    """A table; columns in ``right`` hold figures, and columns in ``whole`` are never folded."""
    from rich.table import Table
    from rich.text import Text

    made = Table(title=title, title_justify="left", caption=caption, caption_justify="left")
    for name in columns:
        justify: Any = "right" if name in right else "left"
        made.add_column(name, justify=justify, no_wrap=name in whole, overflow="fold")
    for row in rows:
        made.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    return made


def table_width(columns: Mapping[str, Iterable[str]]) -> int:
    """Columns of a terminal that a table takes, by its columns' titles and cells."""
    cells = (max(map(len, (title, *column))) for title, column in columns.items())
    return sum(width + CELL_EDGES for width in cells) + 1


class Output:
    """A command's stdout and stderr.

    With ``as_json`` stdout carries only what :meth:`finish` and :meth:`record` get. Progress and
    errors go to stderr either way. A failed write to stdout raises CommandError, ReaderGone if its
    reader has ended, and nothing more is written there. rich is imported on first use: its import
    takes longer than many commands.
    """

    def __init__(self, as_json: bool = False) -> None:
        self.as_json = as_json
        self._writable = True
        #: Whether stdout has a result, or a part of one.
        self._told = False

    @functools.cached_property
    def _out(self) -> Console:
        from rich.console import Console

        return Console(highlight=False, width=_width(sys.stdout))

    @functools.cached_property
    def _err(self) -> Console:
        from rich.console import Console

        return Console(highlight=False, width=_width(sys.stderr), stderr=True)

    def line(self, text: str = "", style: str | None = None) -> None:
        """Print a line without folding it, unless JSON is wanted."""
        if not self.as_json:
            with self._writing():
                self._out.print(text, style=style, markup=False, soft_wrap=True)

    def prose(self, text: str, indent: str = "") -> None:
        """Print sentences in lines of whole words, unless JSON is wanted.

        The lines are as wide as a terminal or $COLUMNS; without either there is one. Further lines
        begin with ``indent``. Words longer than a line, such as paths, stay whole.
        """
        if self.is_live() or _told_width():
            options: Any = {"break_long_words": False, "break_on_hyphens": False}
            text = textwrap.fill(text, self.width(), subsequent_indent=indent, **options)
        self.line(text)

    def show(self, renderable: Renderable) -> None:
        """Print a table or another object of rich's, unless JSON is wanted."""
        if not self.as_json:
            with self._writing():
                self._out.print(renderable)

    def finish(self, result: Mapping[str, Any]) -> None:
        """Print the command's result where JSON is wanted."""
        if self.as_json and self._writable:
            self._told = True
            self.text(_json(result))

    def text(self, text: str) -> None:
        """Write lines to stdout unchanged: rich takes a millisecond for each of a long table."""
        with self._writing():
            print(text, flush=True)

    def draws(self) -> bool:
        """Whether stdout can encode the lines of tables."""
        return (getattr(sys.stdout, "encoding", None) or "utf-8").lower().startswith("utf")

    def width(self) -> int:
        """The width of tables in columns."""
        return _width(sys.stdout) or _told_width() or os.get_terminal_size(1).columns or 80

    def height(self) -> int | None:
        """The height of the terminal in lines, if :meth:`live` fills it."""
        return self._out.height if self.is_live() else None

    def record(self, record: Mapping[str, Any]) -> None:
        """Print one of several results as one line, where JSON is wanted."""
        if self.as_json:
            self._told = True
            with self._writing():
                self._out.out(json.dumps(record, allow_nan=False), highlight=False)

    def failed(self, kind: str, message: str) -> None:
        """Print an error where JSON is wanted: as one line, which readers of lines take as well."""
        if self._writable:
            self.record({"error": {"type": kind, "message": message}})

    def interrupted(self) -> None:
        """Print that Ctrl-C ended the command, where JSON is wanted and none was printed."""
        if not self._told:
            self.failed("KeyboardInterrupt", "ended by Ctrl-C")

    def raw(self, data: bytes | memoryview) -> None:
        """Write bytes to stdout unchanged, for a command whose result is not text."""
        with self._writing():
            write_all(sys.stdout.buffer, data)
            sys.stdout.buffer.flush()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        if sys.stdout is None:  # Python's answer to a closed descriptor
            self._writable = False
            raise CommandError("cannot write to stdout: it is closed")
        try:
            yield
        except (BrokenPipeError, SystemExit) as error:  # rich exits for the former
            self._writable = False
            _drop_buffered()
            raise ReaderGone from error
        except OSError as error:
            self._writable = False
            _drop_buffered()
            raise CommandError(f"cannot write to stdout: {error.strerror}") from error

    def note(self, message: str) -> None:
        """Print a line on stderr if that is a terminal."""
        if self._err.is_terminal:
            self._err.print(message, style="dim", markup=False, soft_wrap=True)

    def warn(self, message: str) -> None:
        """Print a warning on stderr."""
        self._err.print(f"warning: {message}", style="yellow", markup=False, soft_wrap=True)

    def error(self, message: str) -> None:
        """Print an error on stderr."""
        self._err.print(f"error: {message}", style="red", markup=False, soft_wrap=True)

    @contextmanager
    def progress(
        self, what: str, total: int, *, tells_steps: bool = False
    ) -> Iterator[Callable[[str], None]]:
        """A bar on stderr if stderr is a terminal; yields a function to call as each step begins.

        With ``tells_steps`` the command prints a line at each step, and shows no bar on the
        terminal where those lines appear. No thread draws the bar: that would disturb timings.
        """
        from rich import progress

        told = tells_steps and self._out.is_terminal and not self.as_json
        columns = progress.TextColumn("{task.description}"), progress.MofNCompleteColumn()
        with self._bar(*columns, disable=told, auto_refresh=False) as bar:
            task = bar.add_task(what, total=total)
            begun = 0

            def begin(step: str) -> None:
                nonlocal begun
                bar.update(task, completed=begun, description=f"{what}: {step}", refresh=True)
                begun += 1

            yield begin

    @contextmanager
    def copying(self, what: str) -> Iterator[Callable[[int, int], None]]:
        """A bar on stderr if stderr is a terminal, else a line now and then.

        Yields a function to call with the bytes done and the bytes in all.
        """
        from rich import progress
        from rich.table import Column

        if not self._err.is_terminal:
            yield self._lines_of(what)
            return
        name = Column(max_width=20, no_wrap=True)
        words = progress.TextColumn("{task.description}", markup=False, table_column=name)
        figures = (
            progress.DownloadColumn(binary_units=True, table_column=Column(no_wrap=True)),
            progress.TransferSpeedColumn(table_column=Column(no_wrap=True)),
            progress.TimeRemainingColumn(compact=True, table_column=Column(no_wrap=True)),
        )
        with self._bar(words, *figures) as bar:
            task = bar.add_task(what, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)

    def _lines_of(self, what: str) -> Callable[[int, int], None]:
        """A function of bytes done and in all, which prints a line every few seconds."""
        begun = told = time.monotonic()

        def tell(done: int, total: int) -> None:
            nonlocal told
            now = time.monotonic()
            if now - told < _SECONDS_BETWEEN_LINES:
                return
            told, speed = now, max(done / (now - begun), 1)
            self._err.print(
                f"{what}: {approximate_size(done)} of {approximate_size(total)}, "
                f"{approximate_size(int(speed))}/s, {(total - done) / speed:.0f} s left",
                markup=False,
                soft_wrap=True,
            )

        return tell

    def _bar(self, words: Any, *figures: Any, disable: bool = False, **options: Any) -> Any:
        from rich.progress import BarColumn, Progress

        options |= {"transient": True, "disable": disable or not self._err.is_terminal}
        return Progress(words, BarColumn(None), *figures, console=self._err, expand=True, **options)

    def is_live(self) -> bool:
        """Whether :meth:`live` shows pictures in place."""
        return not self.as_json and self._out.is_terminal

    @contextmanager
    def live(self) -> Iterator[Callable[[Renderable], None]]:
        """Yields a function that shows the next picture: in place on a terminal, else below.

        Nothing is shown where JSON is wanted.
        """
        if not self.is_live():
            yield self.show
            return
        from rich.live import Live

        with Live(console=self._out, screen=True, auto_refresh=False) as live:
            yield lambda picture: live.update(picture, refresh=True)


def _width(stream: TextIO | None) -> int | None:
    """The width of tables where a stream is not a terminal; None if it is one."""
    return None if stream is not None and stream.isatty() else _told_width() or _PLAIN_WIDTH


def _told_width() -> int:
    """$COLUMNS, 0 if it is not set."""
    told = os.environ.get("COLUMNS", "")
    return int(told) if told.isdecimal() else 0


def _json(result: Mapping[str, Any]) -> str:
    """A result, one field per line; a long list has one entry per line, which is quicker."""
    if not any(isinstance(value, list) and len(value) > _LONG for value in result.values()):
        return json.dumps(result, indent=2, allow_nan=False)
    pack = json.JSONEncoder(allow_nan=False).encode

    def packed(value: Any) -> str:
        if not isinstance(value, list):
            return pack(value)
        return "[\n    " + ",\n    ".join(map(pack, value)) + "\n  ]"

    fields = [f"  {pack(name)}: {packed(value)}" for name, value in result.items()]
    return "{\n" + ",\n".join(fields) + "\n}"
