"""``gdrpy validate --module``: the first run of the kernel module beside a GPU, step by step.

It stops at the first doubt, and undoes its changes.
"""

from __future__ import annotations

import signal
import threading
import time
import traceback
from contextlib import ExitStack
from dataclasses import asdict, dataclass

from gdrpy.cli.checks.rig import Rig, Settings
from gdrpy.cli.data import Mismatch
from gdrpy.cli.exits import FAILED, OK, CommandError
from gdrpy.cli.firstrun.state import FirstRun
from gdrpy.cli.firstrun.steps import ALL, Step
from gdrpy.cli.header import gpu_fields, host_header
from gdrpy.cli.output import Output

__all__ = ["ALL", "run"]

#: Seconds until a warning that a step still runs: in the kernel it may never end.
PATIENCE = 60.0


@dataclass(frozen=True)
class StepResult:
    """The outcome of a step: its words or the doubt, and the lines of the kernel meanwhile."""

    name: str
    shows: str
    passed: bool
    seconds: float
    words: str
    kernel: list[str]


def run(command_line: str, device: int, seed: int, output: Output) -> int:
    """Run the steps; FAILED at the first doubt. Raises CommandError if no step can run."""
    header = host_header(command_line, backend="gdrdrv")
    settings = Settings(device, "gdrdrv", 0, seed)
    results: list[StepResult] = []
    with ExitStack() as stack:
        # The module is unloaded after a lost terminal, too.
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                before = signal.signal(number, signal.default_int_handler)
                stack.callback(signal.signal, number, before)
        current = FirstRun(device)
        stack.callback(current.close, output)
        for step in ALL:
            result = _run(step, len(results) + 1, settings, current, output)
            results.append(result)
            if not result.passed:
                break
    left_out = [step.name for step in ALL[len(results) :]]
    passed = all(result.passed for result in results)
    if left_out:
        output.line(f"not run: {', '.join(left_out)}")
    output.line(f"{sum(result.passed for result in results)} of {len(ALL)} steps passed")
    output.finish(
        {
            "header": header.json() | gpu_fields(device),
            "seed": seed,
            "passed": passed,
            "steps": [asdict(result) for result in results],
            "not_run": left_out,
        }
    )
    return OK if passed else FAILED


def _run(
    step: Step, number: int, settings: Settings, current: FirstRun, output: Output
) -> StepResult:
    slow = f"step {number}, {step.name}, still runs: sudo dmesg says why if the kernel hangs"
    watchdog = threading.Timer(PATIENCE, output.warn, [slow])
    watchdog.daemon = True
    watchdog.start()
    begun = time.perf_counter()
    try:
        passed, words = _outcome(step, number, settings, current)
    finally:
        watchdog.cancel()
    seconds = time.perf_counter() - begun
    kernel = current.kernel_lines()

    mark = "pass" if passed else "DOUBT"
    style = None if passed else "bold red"
    output.line(f"{number:2}  {mark}  {step.shows}: {words}", style=style)
    for line in kernel:
        output.line(f"          the kernel: {line}")
    if not passed:
        output.line(f"          look at: {step.look}")
    return StepResult(step.name, step.shows, passed, seconds, words, kernel)


def _outcome(step: Step, number: int, settings: Settings, current: FirstRun) -> tuple[bool, str]:
    """Whether the step passed, and its words; everything that it held is released."""
    try:
        with ExitStack() as stack:
            current.begin(f"step {number}, {step.name}", Rig(settings, step.name, stack))
            passed, words = _attempt(step, current)
    except CommandError:
        raise
    except Exception as error:
        passed, words = False, f"giving back: {type(error).__name__}: {error}"
    try:
        current.look_around()
    except Mismatch as doubt:
        words = str(doubt) if passed else f"{words}; and {doubt}"
        passed = False
    return passed, words


def _attempt(step: Step, current: FirstRun) -> tuple[bool, str]:
    """Run the step. Its frames, and their views, are gone before the memory is released."""
    try:
        return True, step.function(current)
    except KeyboardInterrupt as interrupt:
        traceback.clear_frames(interrupt.__traceback__)
        raise
    except CommandError:
        raise
    except Mismatch as doubt:
        return False, str(doubt)
    except Exception as error:
        return False, f"{type(error).__name__}: {error}"
