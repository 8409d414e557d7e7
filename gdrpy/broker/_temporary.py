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

    The broker and all of its regions end with the block, and ``sys.stderr`` gets what the broker
    logged. Raises BrokerUnavailable with the reason if it does not start.
    """
    with (
        tempfile.TemporaryDirectory(prefix="gdrpy-broker-") as folder,
        tempfile.TemporaryFile("w+") as log,
    ):
        path = f"{folder}/broker.sock"
        command = [sys.executable, "-P", "-m", "gdrpy", "serve", "--json", "--socket", path]
        with subprocess.Popen(
            [*command, *options], stdout=subprocess.PIPE, stderr=log, text=True
        ) as server:
            try:
                assert server.stdout is not None
                if '"socket"' not in server.stdout.readline():  # nothing, or the error's beginning
                    status = server.wait()
                    log.seek(0)
                    reason = log.read().strip().rpartition("\n")[2]
                    raise BrokerUnavailable(f"gdrpy serve ended with status {status}: {reason}")
                yield path
            finally:
                server.terminate()
                server.wait()
                log.seek(0)
                sys.stderr.write(log.read())
