"""The checks of ``gdrpy validate``, and how one of them runs.

A check is a function of a :class:`~gdrpy.cli.checks.rig.Rig` that raises
:class:`~gdrpy.cli.data.Mismatch` if it fails.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from gdrpy.cli.checks import copies, gpu, module, pins, ranges, sharing, transfers
from gdrpy.cli.checks.rig import Rig, Settings, Unsupported
from gdrpy.cli.data import Difference, Mismatch
from gdrpy.errors import BackendUnavailable

__all__ = ["ALL", "Check", "Result", "Settings", "Verdict", "run"]


@dataclass(frozen=True)
class Check:
    """A check: the name that selects it, one line on what it shows, and its function.

    ``backend`` is the only backend that it applies to; None if it applies to all.
    """

    name: str
    shows: str
    function: Callable[[Rig], None]
    backend: str | None = None


class Verdict(enum.StrEnum):
    """How a check ended; SKIPPED if nothing here supports its subject."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Result:
    """The outcome of a check. ``message`` says why it failed, or why it was skipped."""

    name: str
    shows: str
    verdict: Verdict
    seconds: float
    message: str = ""
    difference: Difference | None = None


ALL = (
    Check("numpy-stores", "stores through numpy, read by the driver", copies.numpy_stores),
    Check("numpy-loads", "driver copy in, loaded through numpy", copies.numpy_loads),
    Check("mapping-write", "copy to mapping, read by the driver", copies.write_to_mapping),
    Check("mapping-both", "copy to mapping, copy from mapping", copies.mapping_round_trip),
    Check("mapping-read", "driver copy in, copy from mapping", copies.read_from_mapping),
    Check("writes-anywhere", "writes at odd offsets and lengths", ranges.writes_anywhere),
    Check("reads-anywhere", "reads at odd offsets and lengths", ranges.reads_anywhere),
    Check("sub-ranges", "mappings of odd parts of a region", ranges.sub_ranges),
    Check("two-mappings", "two mappings of one region agree", sharing.two_mappings),
    Check("read-only", "a read-only mapping refuses stores", sharing.read_only),
    Check("second-process", "another process, CPU only, both ways", sharing.second_process),
    Check("gpu-writes", "GPU fills and copies seen by the CPU", gpu.gpu_writes),
    Check("flags-32", "32-bit flags, CPU to GPU to CPU", gpu.flags_32),
    Check("flags-64", "64-bit flags, CPU to GPU to CPU", gpu.flags_64),
    Check("region-write", "region.write of many sizes", transfers.region_writes),
    Check("region-read", "region.read of many sizes", transfers.region_reads),
    Check("pin-small", "pins of cuMemAlloc neighbours", pins.small_allocations),
    Check("pin-interior", "a pin inside a cuMemAlloc allocation", pins.interior_pointer),
    Check("pin-large", "a pin of a large cuMemAlloc allocation", pins.large_allocation),
    Check("pin-revoked", "memory freed under a pin", module.revocation, "gdrdrv"),
    Check("pin-shared", "a pin shared by its descriptor", module.shared_pin, "gdrdrv"),
)


def run(check: Check, settings: Settings) -> Result:
    """Run a check; afterwards release everything that it held, whatever it raised."""
    begun = time.perf_counter()
    # No "with": after Ctrl-C views are still in use here, and the end of the process frees all.
    stack = ExitStack()
    verdict, message, difference = _attempt(check, Rig(settings, check.name, stack))
    try:
        stack.close()
    except Exception as error:
        if verdict is not Verdict.FAILED:
            verdict, message = Verdict.FAILED, f"cleaning up: {type(error).__name__}: {error}"
    seconds = time.perf_counter() - begun
    return Result(check.name, check.shows, verdict, seconds, message, difference)


def _attempt(check: Check, rig: Rig) -> tuple[Verdict, str, Difference | None]:
    """Run a check. Its frames, and their views, are gone before the memory is released."""
    try:
        check.function(rig)
    except Mismatch as error:
        return Verdict.FAILED, str(error), error.difference
    except (BackendUnavailable, Unsupported) as error:
        return Verdict.SKIPPED, str(error), None
    except Exception as error:
        return Verdict.FAILED, f"{type(error).__name__}: {error}", None
    return Verdict.PASSED, "", None
