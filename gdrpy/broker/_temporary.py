"""A broker of one's own for as long as a block runs: for tests, notebooks and examples."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from gdrpy.errors import BrokerUnavailable


@contextmanager
def temporary(*options: str) -> Iterator[str]:
    """Run ``gdrpy serve`` with these options, on a socket whose path the block gets.

    The broker and all of its regions end with the block. Raises BrokerUnavailable when it does not
    start; it has said on stderr why.
    """
    with tempfile.TemporaryDirectory(prefix="gdrpy-broker-") as folder:
        path = f"{folder}/broker.sock"
        command = [sys.executable, "-m", "gdrpy", "serve", "--json", "--socket", path, *options]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            try:
                assert server.stdout is not None
                if not server.stdout.readline():
                    raise BrokerUnavailable(f"gdrpy serve did not start: status {server.wait()}")
                yield path
            finally:
                server.terminate()
