"""Shows a region: its size and place, version, owner and permissions, whether it is
sealed, its digest if one was computed, its metadata, the processes that hold it or have
it asleep, and its tensors. A checkpoint has the bytes, holders and tensors of all of its
files.

examples:
  gdrpy stat weights
  gdrpy stat weights --json | jq '.holders[].pid'
  gdrpy stat weights --json | jq '.tensors[] | select(.dtype == "BF16").name'

exit status:
  0  the region exists
  1  it does not exist, or you may not read it
  2  wrong usage, or no broker: start one with 'gdrpy serve'
"""

from __future__ import annotations

import argparse
import contextlib
from typing import Any

from gdrpy.broker.checkpoint import is_checkpoint
from gdrpy.broker.client.broker import Broker
from gdrpy.broker.client.region import LeasedRegion
from gdrpy.broker.replies import Holder, RegionInfo, Sleeper
from gdrpy.cli import broker
from gdrpy.cli.broker import checkpoints, listing
from gdrpy.cli.exits import OK, words_of
from gdrpy.cli.options import CommandParser
from gdrpy.cli.output import Output, table
from gdrpy.cli.sizes import approximate_size, counted, format_size
from gdrpy.errors import Error


def add_arguments(parser: CommandParser) -> None:
    broker.add_socket(parser)
    broker.add_name(parser)


def run(args: argparse.Namespace, output: Output) -> int:
    with broker.connect(args) as client:
        region = client.stat(args.name)
        files = _files(client, region)
        region = checkpoints.summed(region, files)
        told = broker.shown(client, region)
        gpus = broker.gpus(client) if files else {}
        told["files"] = [broker.listed(file, gpus) for file in files]
        tensors = _tensors(client, region, output)
    for name, value in _lines(region, files, tensors):
        output.line(f"{name:10}{value}")
    if region.holders:
        bound = region.grace is not None
        columns = ("process", "user", "writes", "GPU view", "times", *["exporter"] * bound)
        output.show(table(columns, [_holder(one, bound) for one in region.holders]))
    if region.sleepers:
        output.show(table(("process", "user", "asleep"), map(_sleeper, region.sleepers)))
    if tensors and not output.as_json:
        rows = [("tensor", "type", "shape", "size"), *map(_tensor, tensors)]
        output.text(listing.drawn(rows, output, whole=True))
    output.finish(told | {"tensors": tensors})
    return OK


def _files(client: Broker, region: RegionInfo) -> list[RegionInfo]:
    """The regions of a checkpoint's files, as far as this user may read them."""
    found = []
    if is_checkpoint(region.metadata):
        for name in checkpoints.Checkpoints(client).files(region):
            with contextlib.suppress(Error, ValueError):
                found.append(client.stat(name))
    return found


def _tensors(client: Broker, region: RegionInfo, output: Output) -> list[dict[str, Any]] | None:
    """The tensors of a region whose metadata names them; None if they cannot be read."""
    if (region.metadata or {}).get("format") not in ("safetensors", "checkpoint"):
        return []
    try:
        found = client.tensors(str(region.name), gpu=False, readonly=True)
    except (Error, ValueError) as error:
        output.warn(f"its tensors cannot be read: {words_of(error)}")
        return None
    told = []
    for name, array in found.items():
        about = {"dtype": array.dtype, "shape": array.shape, "nbytes": array.nbytes}
        home = array.region
        assert isinstance(home, LeasedRegion)
        told.append({"name": name, **about, "region": home.name, "offset": array.offset})
    return told


def _tensor(tensor: dict[str, Any]) -> tuple[str, ...]:
    name, shape = tensor["name"], ", ".join(map(str, tensor["shape"]))
    shown = name if name.isprintable() else ascii(name)
    return shown, tensor["dtype"], f"[{shape}]", approximate_size(tensor["nbytes"])


def _lines(
    region: RegionInfo, files: list[RegionInfo], tensors: list[dict[str, Any]] | None
) -> list[tuple[str, str]]:
    in_files = f" in {counted(len(files), 'file')}" if files else ""
    size = approximate_size(region.nbytes) + in_files if files else format_size(region.nbytes)
    place = broker.device_words(region.device)
    if region.uuid:
        place += f" ({region.uuid})"
    owner = f"{broker.user_words(region.uid)} ({region.uid}), group {region.gid}"
    lines = [
        ("name", str(region.name)),
        ("version", f"{region.version}, region {region.region}"),
        ("size", f"{size}, takes {format_size(region.size)}"),
        ("on", place),
        ("owner", owner),
        ("rights", f"{broker.mode_words(region.mode)} ({region.mode:04o})"),
        ("sealed", "yes" if region.sealed else "no"),
    ]
    if region.grace is not None:
        lines.append(("ends", f"with its exporter, {region.grace:g} s later for other holders"))
    if region.sha256:
        lines.append(("SHA-256", region.sha256))
    if region.metadata:
        lines.append(("metadata", broker.metadata_words(region.metadata)))
    if tensors:
        places = {(one["region"], one["offset"], one["nbytes"]) for one in tensors}
        nbytes = sum(size for *_, size in places)  # of tied weights once
        lines.append(("tensors", f"{len(tensors)}{in_files}, {approximate_size(nbytes)}"))
    holders = f"{counted(region.readers, 'reader')}, {counted(region.writers, 'writer')}"
    asleep = f", {region.asleep} asleep" if region.asleep else ""
    return [*lines, ("held by", holders + asleep)]


def _holder(holder: Holder, bound: bool) -> tuple[str, ...]:
    exporter = "yes" if holder.exporter else "no"
    return (
        str(holder.pid),
        broker.user_words(holder.uid),
        "yes" if holder.writable else "no",
        "yes" if holder.gpu else "no",
        str(holder.count),
        *[exporter] * bound,
    )


def _sleeper(sleeper: Sleeper) -> tuple[str, ...]:
    version = f"in {'older ' * sleeper.older}version {sleeper.version}"
    return str(sleeper.pid), broker.user_words(sleeper.uid), version
