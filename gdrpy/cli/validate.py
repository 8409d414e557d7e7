"""Writes seeded random bytes into GPU memory on one path (CPU stores, mapping copies, the
driver's own copies, the GPU itself, another process) and reads them back on another:
regions, parts of them, flags, and pins of memory made by cuMemAlloc. A failed check
reports the first byte that differs. Regions above 16 MiB are sampled.

--module is for the first run of the kernel module beside a GPU. As root it loads
gdrdrv with insmod.sh if it is not loaded, runs the steps below, reads the kernel's
log after each, stops at the first doubt, and unloads what it loaded.

examples:
  gdrpy validate
  gdrpy validate --size 1G --backend nvrm
  gdrpy validate --check flags-32 --check second-process
  gdrpy validate --seed 1234        # the same bytes again
  GDRPY_SIM=1 gdrpy validate        # on the simulated GPU
  sudo .venv/bin/gdrpy validate --module

exit status:
  0    every check passed, or was skipped for the reason shown; every step passed
  1    a check failed; a step met a doubt
  2    wrong usage, or no backend can be used here; no step could be run
  130  ended by Ctrl-C; the checks until then are shown
"""

from __future__ import annotations

import argparse
import secrets
from collections import Counter
from dataclasses import asdict

import gdrpy
from gdrpy.cli import checks, firstrun, hostmemory, options
from gdrpy.cli.checks import Check, Result, Settings, Verdict
from gdrpy.cli.exits import FAILED, INTERRUPTED, OK
from gdrpy.cli.header import gpu_header, gpu_words
from gdrpy.cli.options import CommandParser
from gdrpy.cli.output import Output
from gdrpy.cli.sizes import format_size, parse_size

_SIZE = 1 << 20
#: Columns for what a check shows, if the terminal has them.
_SHOWS = 40
_MARKS = {
    Verdict.PASSED: ("pass", "green"),
    Verdict.FAILED: ("FAIL", "bold red"),
    Verdict.SKIPPED: ("skip", "yellow"),
}


def add_arguments(parser: CommandParser) -> None:
    lines = ["", "checks:", *map(_help_line, checks.ALL)]
    lines += ["", "steps of --module:"]
    lines += [f"  {step.name:16} {step.shows}" for step in firstrun.ALL]
    parser.description = f"{parser.description}".rstrip() + "\n" + "\n".join(lines)
    options.add_gpu(parser)
    parser.option("--size", parse_size, "SIZE", "size of the regions", "1M")
    about = "seed of the random bytes (default: a new one, which is printed)"
    parser.option("--seed", options.whole_number, "N", about)
    parser.add_argument(
        "--check",
        action="append",
        choices=[check.name for check in checks.ALL],
        metavar="NAME",
        help="run this check only; may be given several times",
    )
    parser.add_argument(
        "--module", action="store_true", help="the kernel module's first run beside a GPU, as root"
    )


def _help_line(check: Check) -> str:
    only = f" (backend {check.backend})" if check.backend else ""
    return f"  {check.name:16} {check.shows}{only}"


def run(args: argparse.Namespace, output: Output) -> int:
    seed = secrets.randbits(32) if args.seed is None else args.seed
    if args.module:
        if args.backend or args.check or args.size != _SIZE:
            args.parser.error("--module goes with --device, --seed and --json only")
        return firstrun.run(args.command_line, args.device, seed, output)
    settings = Settings(args.device, args.backend, args.size, seed)
    with gdrpy.alloc(args.size, args.device, backend=args.backend) as region:
        header = gpu_header(args.command_line, args.device, region.cpu.backend)
    if header.simulated:
        hostmemory.require(args.size, simulated=True)
    output.prose(
        f"{gpu_words(header.gpu, header.simulated)}, device {header.device}, backend "
        f"{header.backend}, {format_size(args.size)}, seed {seed}"
    )

    chosen = [
        check
        for check in checks.ALL
        if (check.name in args.check if args.check else check.backend in (None, header.backend))
    ]
    results: list[Result] = []
    interrupted = False
    try:
        _run_all(chosen, settings, output, results)
    except KeyboardInterrupt:
        interrupted = True
    counts = Counter(result.verdict for result in results)
    passed, failed, skipped = (counts[verdict] for verdict in Verdict)
    output.line(
        f"{passed} passed, {failed} failed"
        + f", {skipped} skipped" * bool(skipped)
        + f", {len(chosen) - len(results)} not run" * interrupted
    )
    output.finish(
        {
            "header": header.json(),
            "size": args.size,
            "seed": seed,
            "interrupted": interrupted,
            "counts": {verdict.value: counts[verdict] for verdict in Verdict},
            "checks": [asdict(result) for result in results],
        }
    )
    return FAILED if failed else INTERRUPTED if interrupted else OK


def _run_all(
    chosen: list[Check], settings: Settings, output: Output, results: list[Result]
) -> None:
    """Run the checks, and add the result of each to ``results``."""
    width = max(len(check.name) for check in chosen)
    room = min(_SHOWS, output.width() - len(f"pass  {'':{width}}   {0:7.3f} s"))
    with output.progress("validate", len(chosen), tells_steps=True) as begin:
        for check in chosen:
            begin(check.name)
            result = checks.run(check, settings)
            mark, style = _MARKS[result.verdict]
            shows = result.shows
            if room < _SHOWS and len(shows) > room:
                shows = f"{shows[: room - 3]}..."
            line = f"{mark}  {result.name:{width}}  {shows:{room}} {result.seconds:7.3f} s"
            output.line(line, style=None if result.verdict is Verdict.PASSED else style)
            if result.message:
                output.line(f"      {result.message}")
            results.append(result)
