"""Engines of vLLM with the plug-in, which answer one prompt after the other.

They are forked from a process that has imported vLLM, which takes longer than all else.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from contextlib import suppress
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any, TextIO

import engines_worker
from engines import ENVIRONMENT
from failover_front import ANSWER, PROMPTS
from sharedweights_process import Silent

with suppress(ImportError):  # where this module is only imported
    from vllm import LLM  # noqa: F401
    from vllm.v1.worker import gpu_worker  # noqa: F401


class _Process(ForkServerProcess):
    def wait(self) -> None:
        """Wait until it has ended, and give its descriptors back."""
        self.join()
        self.close()


class Engines:
    """Engines of a small model of random weights."""

    standbys = 8

    def __init__(self, path: str, folder: Path) -> None:
        self.log = folder / "engines.log"
        self.log.touch()
        self._model = str(folder / "model")
        extra = {"socket": path, "name": "weights"}
        self._shared = {"load_format": "gdrpy", "model_loader_extra_config": extra}
        # The process that forks has no other way to find this module.
        os.environ |= ENVIRONMENT | {"PYTHONPATH": os.pathsep.join(sys.path)}
        ForkServerContext().set_forkserver_preload([__name__])

    def publish(self) -> list[list[int]]:
        """Publish the weights; what an engine without the plug-in answers to each prompt."""
        worker = [sys.executable, engines_worker.__file__]
        subprocess.run([*worker, "make", self._model, "1", "small"], check=True)
        right = self._answers({"load_format": "auto"})
        self._answers(self._shared)
        return right

    def start(self, peer: socket.socket) -> _Process:
        return self._start(peer, self._shared)

    def _start(self, peer: socket.socket, loading: dict[str, Any]) -> _Process:
        options = {
            "model": self._model,
            "gpu_memory_utilization": 0.05,
            "kv_cache_memory_bytes": 1 << 28,
            "max_num_seqs": 1,
        }
        process = _Process(target=_serve, args=(peer, options | loading, self.log))
        process.start()
        return process

    def _answers(self, loading: dict[str, Any]) -> list[list[int]]:
        """The answers of an engine that runs alone, and then ends."""
        mine, peer = socket.socketpair()
        with peer:
            process = self._start(peer, loading)
        with mine, mine.makefile() as lines:
            said = []
            _line(lines)  # it sleeps
            for prompt in PROMPTS:
                mine.sendall(json.dumps(prompt).encode() + b"\n")
                said.append([int(_line(lines)) for _ in range(ANSWER)])
        process.wait()
        return said


def _line(lines: TextIO) -> str:
    """An engine's next line. Raises Silent."""
    if not (line := lines.readline()):
        raise Silent("the engine that runs alone ended")
    return line


def _serve(peer: socket.socket, options: dict[str, Any], log: Path) -> None:
    """Answer the prompts of a socket; sleep until the first one."""
    with log.open("a") as errors:
        os.dup2(errors.fileno(), 1)
        os.dup2(errors.fileno(), 2)
    engine, asleep = engines_worker.Engine(options), True
    engine.sleep(1)
    peer.sendall(b"asleep\n")
    for line in peer.makefile():
        if asleep:
            engine.wake()
            asleep = False
        (answer,) = engine.say([json.loads(line)], ANSWER)
        peer.sendall(b"".join(b"%d\n" % token for token in answer))
