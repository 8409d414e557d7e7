"""Where a command's words go: tables and lines for people, or one JSON object for programs."""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO, TextIO

from gdrpy.cli.exits import CommandError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

#: Columns to lay tables out for where nobody's terminal says how wide it is.
_PLAIN_WIDTH = 140
#: Entries of a list from which on each takes one line of JSON.
_LONG = 100


def _drop_buffered() -> None:
    """Let what stdout still holds go nowhere: Python would try to write it again at exit."""
    try:
        stdout = sys.stdout.fileno()
    except OSError:  # a stream of a test's, with no descriptor
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stdout)
    os.close(nowhere)


def write_all(stream: BinaryIO, data: bytes) -> None:
    """Write bytes also where a stream has no buffer and takes a part at a time. Raises OSError."""
    rest = memoryview(data)
    while rest:
        rest = rest[stream.write(rest) :]


class Output:
    """A command's stdout and stderr.

    With ``as_json`` stdout carries what :meth:`finish` gets and nothing else. Progress and errors
    go to stderr either way. Writing to stdout raises CommandError where that cannot be written;
    nothing more goes there then. rich, which takes longer to import than many a command to run, is
    imported by what first needs it.
    """

    def __init__(self, as_json: bool = False) -> None:
        self.as_json = as_json
        self._writable = True

    @functools.cached_property
    def _out(self) -> Console:
        from rich.console import Console

        return Console(highlight=False, width=_width(sys.stdout))

    @functools.cached_property
    def _err(self) -> Console:
        from rich.console import Console

        return Console(highlight=False, width=_width(sys.stderr), stderr=True)

    def line(self, text: str = "", style: str | None = None) -> None:
        """Print a line, never folded, unless JSON is wanted."""
        if not self.as_json:
            with self._writing():
                self._out.print(text, style=style, markup=False, soft_wrap=True)

    def show(self, renderable: RenderableType) -> None:
        """Print a table or other rich object, unless JSON is wanted."""
        if not self.as_json:
            with self._writing():
                self._out.print(renderable)

    def finish(self, result: Mapping[str, Any]) -> None:
        """Print the command's result where JSON is wanted."""
        if self.as_json and self._writable:
            self.text(_json(result))

    def text(self, text: str) -> None:
        """Write lines to stdout as they are: rich takes a millisecond for each of a long table."""
        try:
            with self._writing():
                print(text, flush=True)
        except CommandError as error:
            if isinstance(error.__cause__, BrokenPipeError):  # a pager was left
                raise SystemExit(1) from None
            raise

    def draws(self) -> bool:
        """Whether stdout takes the lines of tables."""
        return (getattr(sys.stdout, "encoding", None) or "utf-8").lower().startswith("utf")

    def width(self) -> int:
        """Columns of stdout."""
        plain, told = _width(sys.stdout), os.environ.get("COLUMNS", "")
        if plain is not None:
            return plain
        return int(told) if told.isdecimal() else os.get_terminal_size(1).columns or 80

    def record(self, record: Mapping[str, Any]) -> None:
        """Print one of several results, as a line of its own, where JSON is wanted."""
        if self.as_json:
            with self._writing():
                self._out.out(json.dumps(record, allow_nan=False), highlight=False)

    def raw(self, data: bytes) -> None:
        """Write bytes to stdout as they are: a command's result that is no text."""
        with self._writing():
            write_all(sys.stdout.buffer, data)
            sys.stdout.buffer.flush()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        if sys.stdout is None:  # what Python makes of a closed descriptor
            self._writable = False
            raise CommandError("cannot write to stdout: it is closed")
        try:
            yield
        except OSError as error:
            self._writable = False
            _drop_buffered()
            raise CommandError(f"cannot write to stdout: {error.strerror}") from error

    def warn(self, message: str) -> None:
        """Print a warning on stderr."""
        self._err.print(f"warning: {message}", style="yellow", markup=False, soft_wrap=True)

    def error(self, message: str) -> None:
        """Print what went wrong on stderr."""
        self._err.print(f"error: {message}", style="red", markup=False, soft_wrap=True)

    @contextmanager
    def progress(
        self, what: str, total: int, *, tells_steps: bool = False
    ) -> Iterator[Callable[[str], None]]:
        """A bar on stderr, where that is a terminal; gives what to call as each step begins.

        A command that prints a line at each step needs no bar on the terminal where they appear.
        No thread draws it meanwhile: that would disturb what is being timed.
        """
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        told = tells_steps and self._out.is_terminal and not self.as_json
        bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            console=self._err,
            transient=True,
            auto_refresh=False,
            disable=told or not self._err.is_terminal,
        )
        with bar:
            task = bar.add_task(what, total=total)
            begun = 0

            def begin(step: str) -> None:
                nonlocal begun
                bar.update(task, completed=begun, description=f"{what}: {step}", refresh=True)
                begun += 1

            yield begin

    @contextmanager
    def copying(self, what: str) -> Iterator[Callable[[int, int], None]]:
        """A bar on stderr, where that is a terminal; call what it gives with bytes done and all."""
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TransferSpeedColumn,
        )

        bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            DownloadColumn(binary_units=True),
            TransferSpeedColumn(),
            console=self._err,
            transient=True,
            disable=not self._err.is_terminal,
        )
        with bar:
            task = bar.add_task(what, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)

    @contextmanager
    def live(self) -> Iterator[Callable[[RenderableType], None]]:
        """Gives what to call with each next picture: in place on a terminal, else below the last.

        Nothing is shown where JSON is wanted.
        """
        if self.as_json or not self._out.is_terminal:
            yield self.show
            return
        from rich.live import Live

        with Live(console=self._out, screen=True, auto_refresh=False) as live:
            yield lambda picture: live.update(picture, refresh=True)


def _width(stream: TextIO | None) -> int | None:
    return None if stream is not None and stream.isatty() else _PLAIN_WIDTH


def _json(result: Mapping[str, Any]) -> str:
    """A result, a field a line; one entry a line of a long list, which would take seconds else."""
    if not any(isinstance(value, list) and len(value) > _LONG for value in result.values()):
        return json.dumps(result, indent=2, allow_nan=False)
    pack = json.JSONEncoder(allow_nan=False).encode

    def packed(value: Any) -> str:
        if not isinstance(value, list):
            return pack(value)
        return "[\n    " + ",\n    ".join(map(pack, value)) + "\n  ]"

    fields = [f"  {pack(name)}: {packed(value)}" for name, value in result.items()]
    return "{\n" + ",\n".join(fields) + "\n}"
