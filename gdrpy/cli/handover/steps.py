"""Numbered steps, each with the calls behind it, for commands that teach."""

from __future__ import annotations

from gdrpy.cli.output import Output


class Steps:
    """Prints each step when it is done, and keeps it for JSON."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self.done: list[dict[str, str]] = []

    def add(self, what: str, how: str) -> None:
        """Add a step that was just done, and the calls or the idea behind it."""
        self.done.append({"step": what, "how": how})
        self._output.line(f"{len(self.done)}. {what}")
        self._output.line(f"     {how}", style="dim")
