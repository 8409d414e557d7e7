"""A temporary broker, for tests, notebooks and examples."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from gdrpy.errors import BrokerUnavailable


@contextmanager
def temporary(*options: str) -> Iterator[str]:
    """Run ``gdrpy serve`` with these options during the block, which gets the socket's path.

    The broker and all of its regions end with the block. Raises BrokerUnavailable if it does not
    start; its stderr has the reason.
    """
    with tempfile.TemporaryDirectory(prefix="gdrpy-broker-") as folder:
        path = f"{folder}/broker.sock"
        command = [sys.executable, "-m", "gdrpy", "serve", "--json", "--socket", path, *options]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            try:
                assert server.stdout is not None
                if '"socket"' not in server.stdout.readline():  # nothing, or the error's beginning
                    raise BrokerUnavailable(f"gdrpy serve did not start: status {server.wait()}")
                yield path
            finally:
                server.terminate()
