"""How fast a broker's regions are saved into a folder and restored, beside the disk alone.

Saves and restores regions of one snapshot in rounds, and writes and reads files of the same sizes
from host memory, by as many threads. The broker's process and this one have no CUDA context. Every
byte is compared after a restore.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

import gdrpy
import machine
from gdrpy.arrays.source import BLOCK, Source
from gdrpy.broker import temporary
from gdrpy.common.workers import by_threads
from payload import payload
from results import FORMAT, add_arguments, save

_PIECE, _THREADS = 16 << 20, 8


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks/snapshots.py", description=__doc__)
    parser.add_argument("--folder", type=Path, help="on the disk to measure (a temporary one)")
    parser.add_argument("--regions", type=int, default=4)
    parser.add_argument("--mib", type=int, default=1024, help="of each region (1024)")
    parser.add_argument("--rounds", type=int, default=3)
    add_arguments(parser)
    options = parser.parse_args(arguments)
    nbytes, names = options.mib << 20, [f"region-{number}" for number in range(options.regions)]
    times: dict[str, list[float]] = {}
    with (
        tempfile.TemporaryDirectory(dir=options.folder) as folder,
        temporary() as path,
        gdrpy.connect(path, timeout=600) as broker,
    ):
        data = payload(nbytes)
        for name in names:
            broker.put(name, data, seal=True, gpu=False).close()
        for _ in range(options.rounds):
            plain, snapshot = Path(folder, "plain"), Path(folder, "snapshot")
            for what, act in {
                "disk, write": lambda plain=plain: _write(plain, data, len(names)),
                "save": lambda snapshot=snapshot: broker.save(snapshot),
                "disk, read": lambda plain=plain: _read(plain),
                "restore": lambda snapshot=snapshot: broker.restore(snapshot),
            }.items():
                _drop_caches(plain, snapshot)
                times.setdefault(what, []).append(_seconds(act))
            for name in names:
                with broker.get(name, gpu=False, readonly=True) as region:
                    if not np.array_equal(np.frombuffer(region.read(), np.uint8), data):
                        parser.exit(1, f"benchmarks/snapshots.py: wrong bytes in {name}\n")
            shutil.rmtree(plain)
            shutil.rmtree(snapshot)
    total = nbytes * len(names)
    rows = [_row(what, seconds, total) for what, seconds in times.items()]
    for row in rows:
        print(f"{row['what']:12}{row['median_s']:9.3f} s{row['gb_per_s']:8.2f} GB/s")
    result = {
        "format": FORMAT,
        "header": machine.describe((), options.commit)
        | {"command": f"python benchmarks/snapshots.py --mib {options.mib}"},
        "modules": ["snapshots"],
        "quick": False,
        "regions": len(names),
        "region_bytes": nbytes,
        "snapshots": rows,
    }
    print(save(result, options.output))
    return 0


def _row(what: str, seconds: list[float], total: int) -> dict[str, Any]:
    taken = median(seconds)
    return {"what": what, "seconds": seconds, "median_s": taken, "gb_per_s": total / taken / 1e9}


def _seconds(act: Callable[[], object]) -> float:
    began = perf_counter()
    act()
    return perf_counter() - began


def _write(folder: Path, data: np.ndarray[Any, Any], count: int) -> None:
    folder.mkdir()
    for number in range(count):
        with (folder / f"{number}").open("wb", buffering=0) as file:

            def worker(fd: int = file.fileno()) -> Callable[[int], int]:
                return lambda at: os.pwrite(fd, data[at : at + _PIECE].data, at)

            _exhaust(by_threads(range(0, data.nbytes, _PIECE), _THREADS, worker))
            os.fsync(file.fileno())


def _read(folder: Path) -> None:
    for path in sorted(folder.iterdir()):
        with Source("read", path) as file:
            file.pass_cache()

            def worker(file: Source = file) -> Callable[[int], None]:
                memory = np.empty(_PIECE + 2 * BLOCK, np.uint8)
                memory = memory[-memory.ctypes.data % BLOCK :]
                return lambda at: file.fill(memory, at, min(_PIECE, file.nbytes - at))

            _exhaust(by_threads(range(0, file.nbytes, _PIECE), _THREADS, worker))


def _exhaust(pieces: Any) -> None:
    with closing(pieces):
        for _ in pieces:
            pass


def _drop_caches(*folders: Path) -> None:
    """Have the kernel forget the files, so that reads come from the disk."""
    for folder in folders:
        for path in folder.iterdir() if folder.exists() else ():
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


if __name__ == "__main__":
    sys.exit(main())
