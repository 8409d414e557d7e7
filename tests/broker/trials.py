"""Presses a broker from outside, as clients that know docs/broker-protocol.md and nothing else.

Every trial is a sentence that holds, whatever hostile or unlucky clients do. It says exactly what
is granted and what is refused, and how. After each the broker has the regions, leases, sessions
and descriptors that it had before, and what belongs to others is as it was.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import importlib
import inspect
import itertools
import json
import os
import platform
import random
import shlex
import shutil
import signal
import sys
import tempfile
import textwrap
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from brokers import resident
from trialbed import (
    AS_OTHERS,
    HANGS,
    KILLING,
    SERVE,
    TRIALS,
    WORDS,
    Bed,
    Grown,
    Lost,
    Unauthorised,
    Watched,
)

for _subject in ("requests", "crowds", "rights", "kills"):
    importlib.import_module(f"trials_of_{_subject}")

#: KiB by which the broker, its keeper and this program may have grown after a quarter of the time.
_GROWTH = {"broker": 32 << 10, "keeper": 8 << 10, "program": 32 << 10}
#: Failures after which there is no point in going on, and seconds between two words of progress.
_FAILURES, _PROGRESS = 20, 10.0


class Run:
    """Trials, one after the other, and what came of them."""

    def __init__(self, names: list[str], seed: int, bed: Bed) -> None:
        self.names, self.seed, self.bed = names, seed, bed
        self.runs: Counter[str] = Counter()
        self.failures: list[dict[str, Any]] = []
        self.left_out = [name for name in names if name in AS_OTHERS and not self.bed.root]
        self.rounds = 0
        self.began = time.monotonic()
        self._made = itertools.count()
        self._brokers: dict[bool, Watched] = {}
        self._first: dict[str, int] = {}
        self._grown: dict[str, int] = {}

    def go(self, rounds: int, seconds: float, told: Callable[[], None]) -> None:
        """Each trial so often, then again, in any order, until the time is over."""
        chance = random.Random(self.seed)
        names = [name for name in self.names if name not in self.left_out]
        last = self.began
        try:
            while names and len(self.failures) < _FAILURES:
                for name in names:
                    if self.rounds >= rounds and time.monotonic() - self.began >= seconds:
                        return
                    scale = chance.choice([1, 1, 2, 5, 10]) if self.rounds else 1
                    self._once(name, scale)
                    if time.monotonic() - last > _PROGRESS:
                        last = time.monotonic()
                        told()
                self.rounds += 1
                self._look_at_growth(time.monotonic() - self.began < seconds / 4)
                chance.shuffle(names)
        except KeyboardInterrupt:
            pass

    def _once(self, name: str, scale: int) -> None:
        self.runs[name] += 1
        bed = self.bed
        bed.scale = scale
        bed.random.seed(f"{self.seed} {name} {self.runs[name]}")
        killing = name in KILLING
        try:
            signal.alarm(HANGS)
            if killing not in self._brokers:
                made = bed.folder / f"broker-{next(self._made)}"
                self._brokers[killing] = Watched(bed, made, bed.program, WORDS)
            bed.broker = self._brokers[killing]
            with contextlib.ExitStack() as stack:
                bed.stack = stack
                TRIALS[name](bed)
            bed.broker.settle()
        except Exception as error:
            self._failed(name, scale, killing, error)
        finally:
            signal.alarm(0)

    def _failed(self, name: str, scale: int, killing: bool, error: Exception) -> None:
        broker = self._brokers.pop(killing, None)
        kind = next((kind for kind in (Lost, Unauthorised, Grown) if isinstance(error, kind)), None)
        failure = {
            "trial": name,
            "run": self.runs[name],
            "scale": scale,
            "kind": "failed" if kind is None else kind.__name__.lower(),
            "why": f"{type(error).__name__}: {error}"[:2000],
            "where": "".join(traceback.format_exception(error))[-4000:],
            "log": broker.process.log.splitlines()[-20:] if broker else [],
        }
        self.failures.append(failure)
        print(f"FAILED {name}: {failure['why']}", file=sys.stderr, flush=True)
        if broker is not None:
            broker.drop()  # another one for the next trial
            self._first = {}
            shutil.rmtree(broker.process.folder, ignore_errors=True)

    def _look_at_growth(self, early: bool) -> None:
        """What takes how much more memory than it ever did early on."""
        found = {"program": resident(os.getpid())}
        if False in self._brokers:
            found["broker"], found["keeper"] = self._brokers[False].resident()
        for what, size in found.items():
            if early or what not in self._first:
                self._first[what] = max(size, self._first.get(what, 0))
            else:
                self._grown[what] = size - self._first[what]

    def finish(self) -> None:
        """End the brokers, which leave nothing."""
        for what, grown in self._grown.items():
            if grown > _GROWTH[what]:
                error = Grown(f"the {what} takes {grown} KiB more than early on")
                self._failed(f"growth of the {what}", 0, None, error)
        while self._brokers:
            _, broker = self._brokers.popitem()
            try:
                broker.finish()
            except Exception as error:
                broker.drop()
                self._failed("the end of a broker", 0, None, error)

    def report(self) -> dict[str, Any]:
        """What was done so far."""
        kinds = Counter(failure["kind"] for failure in self.failures)
        failed = Counter(failure["trial"] for failure in self.failures)
        return {
            "seed": self.seed,
            "seconds": round(time.monotonic() - self.began, 1),
            "rounds": self.rounds,
            "trials": {
                name: {"runs": self.runs[name], "failed": failed[name]} for name in self.names
            },
            "left_out": self.left_out,
            "counts": dict(sorted(self.bed.counted.items())),
            "refused_as_expected": dict(sorted(self.bed.refusals.items())),
            "lost": kinds["lost"],
            "unauthorised": kinds["unauthorised"],
            "grown": kinds["grown"],
            "failed_otherwise": kinds["failed"],
            "grown_kib": self._grown or None,
            "failures": self.failures,
            "kernel": platform.release().partition("-")[0],
            "python": platform.python_version(),
            "cores": os.cpu_count(),
        }


def table(report: dict[str, Any]) -> str:
    """A report as lines of up to 60 columns."""
    lines = [f"{'trial':<48} {'runs':>5} {'bad':>4}", "-" * 60]
    for name, one in report["trials"].items():
        runs = "out" if name in report["left_out"] else one["runs"]
        first, *more = textwrap.wrap(name, 48, subsequent_indent="  ")
        lines.append(f"{first:<48} {runs:>5} {one['failed']:>4}")
        lines += more
    for title in ("counts", "refused_as_expected"):
        lines += ["", f"{title.replace('_', ' '):<49}{'number':>11}", "-" * 60]
        lines += [f"{what:<49}{much:>11}" for what, much in report[title].items()]
    lines += ["", f"{'verdict':<49}{'number':>11}", "-" * 60]
    for what in ("lost", "unauthorised", "grown", "failed_otherwise"):
        lines.append(f"{what.replace('_', ' '):<49}{report[what]:>11}")
    for what, grown in (report["grown_kib"] or {}).items():
        lines.append(f"{f'KiB more of the {what} than early on':<49}{grown:>11}")
    if report["left_out"]:
        lines.append("Trials marked `out` take several users: run as root.")
    lines.append(f"{report['rounds']} rounds in {report['seconds']} seconds, seed {report['seed']}")
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    trials = "\n".join(
        textwrap.fill(f"{name}: {inspect.getdoc(made)}", 76, subsequent_indent="    ")
        for name, made in TRIALS.items()
    )
    parser = argparse.ArgumentParser(
        description=inspect.cleandoc(__doc__ or ""),
        epilog=f"""examples:
  python tests/broker/trials.py                      each trial once
  python tests/broker/trials.py --hours 1 --json f   again and again, counts into f
  python tests/broker/trials.py "gets" "kill"        those with such words in their name

exit status: 0 all held; 1 something was lost, unauthorised, grew or failed

trials:
{trials}""",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("words", nargs="*", metavar="WORDS", help="of the names of some trials")
    parser.add_argument("--rounds", type=int, default=1, help="each trial so often (1)")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--seconds", type=float, default=0.0, help="go on for so long")
    length.add_argument("--hours", type=float, default=0.0, help="the same in hours")
    parser.add_argument("--seed", type=int, default=1, help="of all that chance decides (1)")
    parser.add_argument(
        "--patience",
        type=float,
        default=120.0,
        metavar="SECONDS",
        help="until what takes a fraction of one is taken for hanging (120)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the counts there")
    parser.add_argument(
        "--program",
        type=shlex.split,
        default=list(SERVE),
        metavar="COMMAND",
        help="what runs in place of `gdrpy serve`",
    )
    return parser


def main() -> int:
    """Run the trials, print what came of them, and keep that if asked to."""
    parser = _parser()
    options = parser.parse_args()
    names = [
        name
        for name in TRIALS
        if not options.words or any(words in name for words in options.words)
    ]
    if not names:
        parser.error(f"no trial has one of these in its name: {options.words}")
    seconds = options.seconds or options.hours * 3600
    for number in (signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, _raise)
    begun = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    command = " ".join(["trials.py", *sys.argv[1:]])
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        bed = Bed(Path(folder), options.program, options.patience)
        run = Run(names, options.seed, bed)

        def keep() -> dict[str, Any]:
            report = {"command": command, "begun": begun, **run.report()}
            if options.json:
                new = options.json.with_name(f"{options.json.name}.new")
                new.write_text(json.dumps(report, indent=2) + "\n")
                new.replace(options.json)
            return report

        def told() -> None:
            found = keep()
            print(
                f"{found['seconds']:.0f} s: {sum(run.runs.values())} trials, "
                f"{len(run.failures)} failed",
                file=sys.stderr,
                flush=True,
            )

        run.go(options.rounds, seconds, told)
        run.finish()
        report = keep()
    print(table(report))
    return 1 if report["failures"] else 0


def _raise(number: int, frame: object) -> None:
    if number == signal.SIGALRM:
        raise TimeoutError(f"the trial did not end in {HANGS} seconds")
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
