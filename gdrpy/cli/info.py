"""Shows the CUDA devices, the driver versions, and every backend (a way to get a CPU
mapping of GPU memory): whether it can be used here, and if not, why and what would
change that. Also shows the CPU's copy routines, whether the GPU's copy engine can be
used without CUDA, and whether memory can have fabric handles for other nodes of an
NVLink network. The only GPU memory that it allocates is for the copy engine.

examples:
  gdrpy info
  gdrpy info --json | jq '.backends[] | select(.usable)'

exit status:
  0  always, with or without a GPU
  2  wrong usage
"""

from __future__ import annotations

import argparse
import os
from itertools import groupby, zip_longest
from typing import Any

from rich.text import Text

from gdrpy import cuda
from gdrpy._core import _ffi
from gdrpy.cli.exits import OK
from gdrpy.cli.header import cuda_version, gpu_words, host_header
from gdrpy.cli.options import CommandParser
from gdrpy.cli.output import Output, table
from gdrpy.cli.sizes import approximate_size, counted, format_size
from gdrpy.errors import Error
from gdrpy.memory import backends, engine, fabric
from gdrpy.memory.backends import Status

_INDENT = " " * 16
_SIZES = (64, 4 << 10, 64 << 10, 1 << 20)
#: Backends that only CUDA can tell usable from unusable.
_THROUGH_CUDA = ("dmabuf", "sim")


def add_arguments(_parser: CommandParser) -> None:
    """``gdrpy info`` has no arguments."""


def run(args: argparse.Namespace, output: Output) -> int:
    devices, cuda_driver, problem = _cuda()
    header = host_header(
        args.command_line,
        cuda_driver=cuda_driver,
        simulated=devices[0].simulated if devices else None,
    )
    states = [state for device in devices for state in _states(device)]
    if problem:
        states = [_without_cuda(name) for name in backends.ALL]

    output.prose(_kind(devices))
    output.line()
    output.prose(f"gdrpy           {header.gdrpy}, Python {header.python}", _INDENT)
    output.prose(f"CPU             {header.cpu}", _INDENT)
    output.prose(f"NVIDIA driver   {header.nvidia_driver or 'none loaded'}", _INDENT)
    output.prose(f"CUDA driver     {cuda_driver or problem}", _INDENT)
    output.line()
    if devices:
        for line in [line for device in devices for line in _device_lines(device)]:
            output.prose(line, _INDENT)
        output.line()
    whole = ("backend", "device", "usable")
    headings = (*whole, "why, and what would change it")
    output.show(table(headings, map(_backend_row, states), "Backends", whole=whole))
    for direction in ("to", "from"):
        output.prose(_routine_line(direction))
    engines = [
        (device, engine.status(device.ordinal if device else None)) for device in devices or (None,)
    ]
    for _, status in engines:
        output.prose(f"copy engine: {_words(status)}")
    handles = [(device, fabric.status(device.ordinal)) for device in devices]
    for _, status in handles:
        output.prose(f"fabric handles: {_words(status)}")

    output.finish(
        {
            "header": header.json(),
            "cuda_problem": problem,
            "devices": [device._asdict() for device in devices],
            "backends": states,
            "fabric_handles": [
                {**_named(device), **status._asdict()} for device, status in handles
            ],
            "copy_engines": [{**_named(device), **status._asdict()} for device, status in engines],
            "copy_routines": {way: _routines(way) for way in ("to", "from")},
        }
    )
    return OK


def _cuda() -> tuple[list[cuda.DeviceInfo], str | None, str | None]:
    """The devices and the CUDA version, or the reason why there are none."""
    try:
        devices = [cuda.device_info(ordinal) for ordinal in range(cuda.device_count())]
        return devices, cuda_version(), None
    except Error as error:
        return [], None, str(error)


def _kind(devices: list[cuda.DeviceInfo]) -> str:
    """Whether this is the simulation or a real GPU."""
    if not devices:
        return "no GPU: see CUDA driver"
    number = len(devices)
    if devices[0].simulated:
        why = "no NVIDIA driver was found ('GDRPY_SIM=0 gdrpy info' shows what is missing)"
        if os.environ.get("GDRPY_SIM") == "1":
            why = "GDRPY_SIM=1"
        return f"{counted(number, 'simulated GPU')}, not real: {why}"
    return f"{counted(number, 'real GPU')}: {', '.join(sorted({one.name for one in devices}))}"


def _states(device: cuda.DeviceInfo) -> list[dict[str, Any]]:
    """The state of every backend for a device of this process."""
    statuses = {name: backend.status(device.ordinal) for name, backend in backends.ALL.items()}
    chosen = next((name for name in backends.candidates() if statuses[name].usable), None)
    return [_state(name, device, one, name == chosen) for name, one in statuses.items()]


def _without_cuda(name: str) -> dict[str, Any]:
    """The state of a backend where CUDA cannot be used."""
    if name not in _THROUGH_CUDA:
        return _state(name, None, backends.ALL[name].status(), False)
    reason, remedy = "CUDA cannot be used here", "see CUDA driver above (cuda_problem in JSON)"
    return _state(name, None, Status(False, reason, remedy), False)


def _named(device: cuda.DeviceInfo | None) -> dict[str, Any]:
    """The fields that name a device in JSON."""
    if device is None:
        return {"device": None, "uuid": None, "gpu": None}
    return {"device": device.ordinal, "uuid": device.uuid, "gpu": device.name}


def _state(
    name: str, device: cuda.DeviceInfo | None, status: Status, chosen: bool
) -> dict[str, Any]:
    """``chosen`` marks the backend that a region on the device tries first."""
    return {
        "backend": name,
        **_named(device),
        "usable": status.usable,
        "chosen": chosen,
        "reason": status.reason,
        "remedy": status.remedy,
    }


def _device_lines(device: cuda.DeviceInfo) -> list[str]:
    """A GPU in lines, not in a table: users copy UUIDs, which need room."""
    compute = "{}.{}".format(*device.compute_capability)
    bar1 = "unknown" if device.bar1 is None else approximate_size(device.bar1)
    lines = [
        f"{gpu_words(device.name, device.simulated)}, compute capability {compute}",
        f"{approximate_size(device.memory)} of memory, BAR1 {bar1}",
        f"PCI {device.pci}",
        device.uuid,
    ]
    return [
        f"{name:{len(_INDENT)}}{line}"
        for name, line in zip_longest([f"GPU {device.ordinal}"], lines, fillvalue="")
    ]


def _backend_row(state: dict[str, Any]) -> tuple[str | Text, ...]:
    usable = f"yes{', chosen' * state['chosen']}" if state["usable"] else "no"
    device = "" if state["device"] is None else str(state["device"])
    style = "green" if state["usable"] else "red"
    why = state["reason"] + f"\n-> {state['remedy']}" * bool(state["remedy"])
    return state["backend"], device, Text(usable, style), why


def _words(status: Status) -> str:
    if status.usable:
        return f"yes, {status.reason}"
    return f"no, {status.reason}" + f": {status.remedy}" * bool(status.remedy)


def _text(pointer: Any) -> str:
    return str(_ffi.ffi.string(pointer).decode())


def _routines(way: str) -> dict[str, Any]:
    """The copy routines to or from write-combined memory, and those that sizes take."""
    to = way == "to"
    table = _ffi.lib.core_routines_to_wc if to else _ffi.lib.core_routines_from_wc
    choose = _ffi.lib.core_routine_to_wc if to else _ffi.lib.core_routine_from_wc
    supported: dict[str, bool] = {}
    while table.name != _ffi.ffi.NULL:
        supported[_text(table.name)] = bool(table.supported())
        table += 1
    return {
        "supported": supported,
        "chosen": {str(size): _text(choose(size)) for size in _SIZES},
    }


def _routine_line(way: str) -> str:
    routines = _routines(way)
    chosen = "; ".join(
        f"{name} at {', '.join(format_size(int(size)) for size, _ in same)}"
        for name, same in groupby(routines["chosen"].items(), lambda choice: choice[1])
    )
    missing = [name for name, there in routines["supported"].items() if not there]
    note = f"; not on this CPU: {', '.join(missing)}" if missing else ""
    return f"copies {way:4} write-combined memory: {chosen}{note}"
