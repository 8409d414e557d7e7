"""Shared by the broker's commands: options, the connection, and how regions are printed."""

from __future__ import annotations

import argparse
import ast
import contextlib
import functools
import json
import os
import pwd
import re
import shlex
from collections.abc import Iterator
from stat import filemode
from typing import Any

import gdrpy
from gdrpy.broker.client.arguments import as_name, as_prefix
from gdrpy.broker.client.broker import Broker
from gdrpy.broker.replies import RegionInfo
from gdrpy.cli import options
from gdrpy.cli.exits import FAILED, UNUSABLE, CommandError, words_of
from gdrpy.cli.options import CommandParser
from gdrpy.cli.sizes import format_size
from gdrpy.errors import (
    BackendUnavailable,
    BrokerUnavailable,
    CudaError,
    NotFound,
    PermissionDenied,
    ProtocolError,
    Timeout,
)

#: Bytes that are copied at once.
CHUNK = 8 << 20
#: From so many bytes on it is worth to have the copy engine reach the memory that they go through.
_REGISTER_FROM = 256 << 20


#: The beginning of an error: the call of the API.
_CALL = (
    r"(?:allocate|change|create|delete|digest|get|get_many|list|load_checkpoint|publish|"
    r"safetensors\.shards|seal|stat|status|tensors|watch): "
)
#: Arguments of the API that errors name, and the options of commands for them.
_PASSED = {
    "socket=": "--socket",
    'device="cpu"': "--device cpu",
    "broker.list() lists": "'gdrpy ls' lists",
}
#: What the API says of a region that sleeps.
_ASLEEP = re.compile(r"broker\.wake\((['\"].*['\"])\) opens it")


def add_socket(parser: CommandParser) -> None:
    """``--socket`` of a command that asks a broker; a refused call then ends it with FAILED."""
    command = parser.prog.removeprefix("gdrpy ")
    parser.set_defaults(words=lambda error: typed(command, words_of(error)))
    default = "(default: $GDRPY_SOCKET, else your own broker's, else the machine's)"
    parser.option("--socket", str, "PATH", f"the broker's socket {default}")
    parser.set_defaults(refusal=FAILED)


def add_new_region(parser: CommandParser, *, replaces: bool = False) -> None:
    """``--device`` and ``--mode`` of a region to make, which may replace another.

    Where it may, also ``--seal``, and what is not given is None: see :func:`mode_and_seal`.
    """
    add_device(parser, "0")
    about = "who may read and write it, like a file's mode"
    if replaces:
        about += " (default: that of your own region that it replaces, else 0600)"
    parser.option("--mode", options.octal_mode, "OCTAL", about, None if replaces else "0600")
    if replaces:
        seals = parser.add_mutually_exclusive_group()
        about = "make it immutable (default: if your own region that it replaces is)"
        seals.add_argument("--seal", action="store_true", default=None, help=about)
        about = "leave it writable"
        seals.add_argument("--no-seal", action="store_false", dest="seal", help=about)


def add_device(parser: CommandParser, default: str | None) -> None:
    """``--device`` of the broker."""
    about = "the GPU's UUID, PCI address or CUDA ordinal in the broker; or cpu for host memory"
    if default is None:
        about += " (default: that of each saved region)"
    device = functools.partial(options.device_name, or_cpu=True)
    parser.option("--device", device, "N|UUID|PCI|cpu", about, default)


def readable(client: Broker, name: str) -> RegionInfo | None:
    """The region of this name, if there is one that this user may read."""
    with contextlib.suppress(NotFound, PermissionDenied):
        return client.stat(name)
    return None


def mode_and_seal(replaced: RegionInfo | None, args: argparse.Namespace) -> tuple[int, bool]:
    """``--mode`` and ``--seal``, else as of the caller's own region to replace, else 0600 and no.

    Another user's mode could let that user read what replaces the region.
    """
    mode, seal = 0o600, False
    if replaced and (replaced.uid, replaced.gid) == (os.geteuid(), os.getegid()):
        mode, seal = replaced.mode, replaced.sealed
    return mode if args.mode is None else args.mode, seal if args.seal is None else args.seal


def add_name(parser: CommandParser) -> None:
    """``NAME`` of a region."""
    parser.add_argument(
        "name", type=options.checked(as_name), metavar="NAME", help="the region's name"
    )


def add_prefix(parser: CommandParser) -> None:
    """``PREFIX`` of the names of regions; by default all names match."""
    parser.add_argument(
        "prefix",
        nargs="?",
        default="",
        type=options.checked(as_prefix),
        metavar="PREFIX",
        help="only names that begin with PREFIX",
    )


@contextlib.contextmanager
def buffer(nbytes: int) -> Iterator[memoryview]:
    """Memory to copy so many bytes of a region through, :data:`CHUNK` at once."""
    memory = bytearray(min(CHUNK, nbytes))
    registration = gdrpy.register(memory) if nbytes >= _REGISTER_FROM else contextlib.nullcontext()
    with registration, memoryview(memory) as view:
        yield view


def connect(args: argparse.Namespace) -> Broker:
    """Connect to the broker of a command. Raises CommandError if no broker answers."""
    try:
        return gdrpy.connect(args.socket)
    except (BrokerUnavailable, PermissionDenied, ProtocolError, Timeout, ValueError) as error:
        raise CommandError(words_of(error), UNUSABLE) from error


def typed(command: str, words: str) -> str:
    """An error of the API in words of the command that was typed."""
    words = re.sub(f"^{_CALL}", f"{command}: ", words)
    words = re.sub(f"(?<=: ){_CALL}", "", words)
    for passed, option in _PASSED.items():
        words = words.replace(passed, option)
    return _ASLEEP.sub(_copy_words, words)


def _copy_words(found: re.Match[str]) -> str:
    """How to see the copy of a region that sleeps."""
    prefix = f"{ast.literal_eval(found[1])}.host/"
    return f"'{shlex.join(['gdrpy', 'ls', prefix])}' shows its copy"


def swapped(command: str, file: str, name: str) -> str:
    """The end of a message about a missing file, if the region's name is that of a file."""
    if os.path.lexists(file) or not os.path.lexists(name):
        return ""
    meant = [file, name] if command == "put" else [name, file]
    return f": did you mean '{shlex.join(['gdrpy', command, *meant])}'?"


def device_words(device: int | str) -> str:
    """``GPU 0``, or ``host``."""
    return "host" if device == "cpu" else f"GPU {device}"


def mode_words(mode: int) -> str:
    """``rw-r-----``."""
    return filemode(mode)[1:]


@functools.cache
def user_words(uid: int) -> str:
    """A user's name, or its number if it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def published(region: RegionInfo, what: str = "") -> str:
    """A line on a region that was just made or replaced; ``what`` is shown in place of its size."""
    state = ", sealed" if region.sealed else ""
    takes = "" if what else f", takes {format_size(region.size)}"
    return (
        f"{region.name}: version {region.version}, {what or format_size(region.nbytes)} on "
        f"{device_words(region.device)}{takes}{state}"
    )


def gpus(client: Broker) -> dict[str, str]:
    """The product names of the broker's GPUs by their numbers; empty where CUDA fails it."""
    try:
        found: dict[str, str] = client.status()["gpus"]
    except (BackendUnavailable, CudaError):
        return {}
    return found


def listed(region: RegionInfo, gpus: dict[str, str]) -> dict[str, Any]:
    """A region in a list, for JSON."""
    told = _fields(region, gpus)
    for name in ("metadata", "holders", "sleepers", "sha256", "linked"):
        del told[name]
    return told


def shown(client: Broker, region: RegionInfo) -> dict[str, Any]:
    """A region in full, for JSON. Metadata that JSON cannot hold becomes its ``repr``."""
    plain = _plain(_fields(region, gpus(client)))
    told: dict[str, Any] = json.loads(json.dumps(plain, default=repr))
    return told


def _fields(region: RegionInfo, gpus: dict[str, str]) -> dict[str, Any]:
    named = {"mode": f"{region.mode:04o}", "gpu": gpus.get(str(region.device))}
    return region.as_dict() | named


def metadata_words(metadata: dict[str, Any]) -> str:
    """Metadata in one line, whatever its writer packed."""
    return json.dumps(_plain(metadata), default=repr)


def _plain(value: Any) -> Any:
    """The value with text as the keys of maps: msgpack also allows bytes."""
    if isinstance(value, dict):
        pairs = value.items()
        return {key if isinstance(key, str) else repr(key): _plain(one) for key, one in pairs}
    return [_plain(one) for one in value] if isinstance(value, list) else value
