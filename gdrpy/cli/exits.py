"""What a command's exit status means."""

from __future__ import annotations

OK = 0
#: A check failed, or what was begun could not be finished.
FAILED = 1
#: Wrong usage, or nothing can be run here; argparse's own status for bad arguments.
UNUSABLE = 2
#: Ended by Ctrl-C: 128 + SIGINT, as a shell reports it.
INTERRUPTED = 130


def words_of(error: Exception) -> str:
    """What an error says, without the number that stands before an OSError's."""
    said = error.strerror if isinstance(error, OSError) else None
    return said or str(error)


class CommandError(Exception):
    """Ends the command with one message on stderr and this exit status."""

    def __init__(self, message: str, status: int = FAILED) -> None:
        super().__init__(message)
        self.status = status
