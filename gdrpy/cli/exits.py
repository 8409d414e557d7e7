"""The exit statuses of commands, and the error that ends a command."""

from __future__ import annotations

OK = 0
#: A check failed, or the command failed in the middle.
FAILED = 1
#: Wrong usage, or the command cannot run here; argparse's status for bad arguments.
UNUSABLE = 2
#: Ended by Ctrl-C: 128 + SIGINT, as a shell reports it.
INTERRUPTED = 130
#: The reader of stdout ended first: 128 + SIGPIPE, as a shell reports it.
UNREAD = 141


def words_of(error: Exception) -> str:
    """The message of an error, without the number of an OSError."""
    said = error.strerror if isinstance(error, OSError) else None
    return said or str(error)


class CommandError(Exception):
    """Ends the command with one message on stderr and this exit status."""

    def __init__(self, message: str, status: int = FAILED) -> None:
        super().__init__(message)
        self.status = status


class ReaderGone(CommandError):
    """The reader of stdout, such as ``head``, has ended: the command ends without a message."""

    def __init__(self) -> None:
        super().__init__("the reader of stdout has ended", UNREAD)
