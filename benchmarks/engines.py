"""vLLM with the plug-in: engines that share weights, sleep, wake, and are killed.

Each engine is a process. Its answers to 100 prompts, greedily, must be those of an engine without
the plug-in. Where nothing else is said, a figure is a single act.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter
from typing import Any

import gdrpy
import machine
from engines_worker import SIZES
from gdrpy import cuda
from gpumemory import nvml
from results import FORMAT, add_arguments, save
from sharedweights_process import Process, Silent, broker

_WORKER = Path(__file__).with_name("engines_worker.py")
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "GDRPY_STRICT": "1",
}
_PROMPTS, _LENGTH = 100, 32
_MIB = 1 << 20
#: Of the engines whose KV cache lies in a region, in bytes.
_CACHE = 2 << 30


class Trial:
    """The acts in their order: what each took, and whether what it left was right."""

    def __init__(self, folder: Path, socket: str, gpus: int, options: dict[str, Any]) -> None:
        self.figures: dict[str, float] = {}
        self.checks: dict[str, bool] = {}
        self._folder, self._socket, self.gpus, self._options = folder, socket, gpus, options
        self._stack = ExitStack()
        self._right: dict[str, Any] = {}

    def __enter__(self) -> Trial:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def make(self, seed: int, size: str, quantization: str) -> str:
        """A model of random weights; its folder."""
        folder = str(self._folder / f"model-{seed}")
        subprocess.run(
            [sys.executable, _WORKER, "make", folder, str(seed), size, quantization], check=True
        )
        return folder

    def engine(
        self, title: str, model: str, extra: dict[str, Any] | None = None, **options: Any
    ) -> Process:
        """An engine; with ``extra`` it has the load format of the plug-in."""
        options |= {"model": model, "load_format": "auto", "tensor_parallel_size": self.gpus}
        options |= self._options
        if extra is not None:
            options["load_format"] = "gdrpy"
            options["model_loader_extra_config"] = {"socket": self._socket, **extra}
            if "kv_cache" in extra:
                options["kv_cache_memory_bytes"] = _CACHE
        process = Process(title, str(_WORKER), "serve", json.dumps(options), patience=400)
        self._stack.enter_context(process)
        for key, seconds in process.hear().items():
            self.note(f"{title}: {key.removesuffix('_s')}", seconds)
        return process

    def right(self, engine: Process, model: str) -> None:
        """Take an engine's answers for right ones."""
        self._right[model] = engine.ask("tokens", _PROMPTS, _LENGTH)["digest"]

    def check(self, what: str, engine: Process, model: str) -> None:
        """Compare an engine's answers with the right ones."""
        said = engine.ask("tokens", _PROMPTS, _LENGTH)
        self.checks[what] = said["digest"] == self._right[model]
        print(f"{what}: {'right' if self.checks[what] else 'WRONG'}", flush=True)

    def note(self, what: str, value: float) -> None:
        """Keep a figure."""
        self.figures[what] = value
        print(f"{what}: {value:.4g}", flush=True)

    def timed(self, what: str, act: Callable[[], object]) -> None:
        """Do something, and keep the seconds that it says, or else that it took."""
        began = perf_counter()
        said = act()
        self.note(what, said if isinstance(said, float) else perf_counter() - began)


def plain(trial: Trial, model: str, other: str | None) -> None:
    """An engine without the plug-in, with its own sleep mode."""
    if other is not None:
        with trial.engine("plain", other) as engine:
            trial.right(engine, other)
    with trial.engine("plain", model) as engine:
        trial.right(engine, model)
        for time in ("first", "second"):
            trial.timed(f"plain: {time} sleep", lambda: engine.ask("sleep", 1))
            trial.timed(f"plain: {time} wake", lambda: engine.ask("wake"))
        trial.check("plain: tokens after sleep and wake", engine, model)


def shared(
    trial: Trial, model: str, other: str | None, socket: str, used: Callable[[], int]
) -> None:
    """Engines of one model, by the plug-in, and then of another version of it."""
    daemon = trial._stack.enter_context(broker(socket))
    before, named = used(), {"name": "model", "kv_cache": "kv"}
    first = trial.engine("first", model, named)
    one = used() - before
    trial.check("first: tokens", first, model)
    second = trial.engine("second", model, named)
    trial.note("GPU memory of the first engine, MiB", one / _MIB)
    trial.note("GPU memory of the second engine, MiB", (used() - before - one) / _MIB)
    trial.check("second: tokens", second, model)

    awake = used()
    trial.timed("second: sleep while the first is awake", lambda: second.ask("sleep", 1))
    trial.timed("first: first sleep", lambda: first.ask("sleep", 1))
    trial.note("GPU memory that both gave back, MiB", (awake - used()) / _MIB)
    trial.timed("first: first wake", lambda: first.ask("wake"))
    trial.timed("second: wake while the first is awake", lambda: second.ask("wake"))
    trial.check("first: tokens after sleep and wake", first, model)
    trial.check("second: tokens after sleep and wake", second, model)
    second.ask("sleep", 1)
    trial.timed("first: second sleep", lambda: first.ask("sleep", 1))
    trial.timed("first: second wake", lambda: first.ask("wake"))

    trial.timed(
        "first engine killed; second wakes and says a token", lambda: _fail_over(first, second)
    )
    trial.check("second: tokens after the first was killed", second, model)
    with gdrpy.connect(socket) as client:
        caches = [info for info in client.list("kv") if info.writers == 1]
        trial.checks["second: has the KV cache of the first"] = len(caches) == trial.gpus
    daemon.kill()
    with broker(socket) as daemon:
        trial.check("second: tokens after the broker was killed", second, model)
        trial.timed("second: sleep with the next broker", lambda: second.ask("sleep", 1))
        trial.timed("second: wake with the next broker", lambda: second.ask("wake"))
        trial.check("second: tokens after sleep with the next broker", second, model)
        replacing = {"name": "model", "replace": True}
        for version, folder in enumerate((other, model) if other else (), 2):
            publisher = trial.engine(f"publisher {version}", folder, replacing)
            trial.timed(f"second: takes version {version}", lambda: second.ask("update"))
            trial.check(f"second: tokens of version {version}", second, folder)
            publisher.kill()
        second.kill()


def trained(trial: Trial, model: str, other: str, socket: str) -> None:
    """An engine that takes the weights of a trainer, by the weight transfer engine."""
    with (
        broker(socket),
        trial.engine("trained", model, weight_transfer_config={"backend": "gdrpy"}) as engine,
        Process("the trainer", str(_WORKER), "train", other, socket) as trainer,
    ):
        trial.check("trained: tokens", engine, model)
        trial.timed(
            "trained: takes a trainer's weights",
            lambda: engine.ask("receive", socket, trainer.hear()),
        )
        trial.checks["trained: the trainer's region is gone"] = trainer.ask("taken") == "deleted"
        trial.check("trained: tokens of the trainer's weights", engine, other)


def _fail_over(first: Process, second: Process) -> float:
    first.kill()
    return float(second.ask("wake_and_say"))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks/engines.py", description=__doc__)
    parser.add_argument("--size", default="7.5GB", choices=SIZES, help="of the model (7.5GB)")
    parser.add_argument("--gpus", type=int, default=1, help="by which each engine is parallel (1)")
    parser.add_argument("--one", action="store_true", help="no other version of the model")
    parser.add_argument("--memory", type=float, default=0.2, help="each engine's part of the GPU")
    about = "of the weights: when they are loaded (fp8), or in the model's files (awq)"
    parser.add_argument("--quantization", default="", choices=("fp8", "awq"), help=about)
    add_arguments(parser)
    options = parser.parse_args(arguments)
    os.environ |= ENVIRONMENT
    given = {"gpu_memory_utilization": options.memory}
    if options.quantization == "fp8":
        given["quantization"] = "fp8"
    # The folder is in memory: the disk is not what is measured.
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder, nvml() as library:
        socket, pci = f"{folder}/broker", cuda.device_info(0).pci
        with Trial(Path(folder), socket, options.gpus, given) as trial:
            model = trial.make(1, options.size, options.quantization)
            other = None if options.one else trial.make(2, options.size, options.quantization)
            try:
                plain(trial, model, other)
                shared(trial, model, other, socket, lambda: library.use(pci).memory)
                if other is not None:
                    trained(trial, model, other, socket)
            except Silent as error:
                trial.checks[str(error)] = False
                print(error, flush=True)
    chosen = f"--size {options.size} --memory {options.memory} --gpus {options.gpus}"
    chosen += " --one" * options.one
    if options.quantization:
        chosen += f" --quantization {options.quantization}"
    result = {
        "format": FORMAT,
        "header": machine.describe((), options.commit)
        | {"command": f"python benchmarks/engines.py {chosen}", "gpus": options.gpus},
        "modules": ["engines"],
        "quick": options.size == "small",
        "size": options.size,
        "figures": [{"what": what, "value": value} for what, value in trial.figures.items()],
        "checks": trial.checks,
    }
    print(save(result, options.output))
    return 0 if all(trial.checks.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
