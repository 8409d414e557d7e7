"""systemd units for a broker of this installation."""

from __future__ import annotations

import argparse
import grp
import importlib.metadata
import os
import sys
from pathlib import Path

import gdrpy
from gdrpy.broker.server.systemd import STORE_LIMIT

KINDS = ("service", "socket")

_SERVICE = """\
# {folder}/gdrpy.service, made by: {made_by}
[Unit]
Description=gdrpy broker: named regions of GPU memory
Requires=gdrpy.socket
After=nvidia-persistenced.service
# systemd always restarts the broker: without a broker its memory would be given back.
StartLimitIntervalSec=0

[Service]
Type=notify
ExecStart={command}
{environment}Restart=always
{keeping}{folders}{hardening}
[Install]
Also=gdrpy.socket
WantedBy={target}
"""

#: How each keeper keeps the memory while no broker runs.
_KEEPING = {
    "systemd": f"""\
# systemd keeps the memory while no broker runs, but not after a stop:
# FileDescriptorStorePreserve=restart, which is the default.
FileDescriptorStoreMax={STORE_LIMIT}
KillMode=mixed
""",
    # A stopped broker ends its keeper; the keeper of a killed broker must stay.
    "process": "KillMode=process\n",
    "none": "KillMode=mixed\n",
}

#: Restrictions that a GPU's driver tolerates. PrivateDevices, DevicePolicy and ProtectClock (which
#: implies it), ProtectKernelModules and CapabilityBoundingSet are missing: CUDA may have to load
#: nvidia-uvm and make its nodes. MemoryDenyWriteExecute is missing: CUDA compiles.
_HARDENING = """\
OOMScoreAdjust=-900
NoNewPrivileges=yes
ProtectSystem=strict
ProtectHome=read-only
ProtectKernelLogs=yes
ProtectControlGroups=yes
ProtectHostname=yes
LockPersonality=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native
"""

_SOCKET = """\
# {folder}/gdrpy.socket, made by: {made_by}
[Unit]
Description=Socket of the gdrpy broker

[Socket]
ListenSequentialPacket={path}
SocketMode={mode:04o}
{group}DirectoryMode={directory_mode:04o}
FileDescriptorName=broker
RemoveOnStop=yes

[Install]
WantedBy=sockets.target
"""


def text(kind: str, args: argparse.Namespace) -> str:
    """A unit for ``gdrpy serve`` with ``args``: a system unit for root, else a user unit."""
    return _service(args) if kind == "service" else _socket(args)


def _service(args: argparse.Namespace) -> str:
    system = os.geteuid() == 0
    return _SERVICE.format(
        folder=_folder(system),
        made_by=_made_by(args),
        command=" ".join(map(_quoted, _command(args))),
        environment=_environment(),
        keeping=_KEEPING[_keeper(args)],
        folders=_folders(args),
        hardening=_HARDENING if system else "NoNewPrivileges=yes\n",
        target="multi-user.target" if system else "default.target",
    )


def _socket(args: argparse.Namespace) -> str:
    return _SOCKET.format(
        folder=_folder(os.geteuid() == 0),
        made_by=_made_by(args),
        path="%t/gdrpy/broker.sock" if args.socket is None else args.socket.replace("%", "%%"),
        mode=args.mode,
        group="" if args.group is None else f"SocketGroup={grp.getgrgid(args.group).gr_name}\n",
        directory_mode=0o755 if args.mode & 0o077 else 0o700,
    )


def _made_by(args: argparse.Namespace) -> str:
    """The command line, in one line."""
    typed = str(args.command_line)
    return typed if typed.isprintable() else ascii(typed)


def _folder(system: bool) -> str:
    return "/etc/systemd/system" if system else "~/.config/systemd/user"


def _keeper(args: argparse.Namespace) -> str:
    """The keeper of the memory: systemd, unless the command line names another."""
    return args.keeper or "systemd"


def _command(args: argparse.Namespace) -> list[str]:
    words = [sys.executable, "-m", "gdrpy", "serve", "--keeper", _keeper(args)]
    if _keeper(args) == "process":
        words += ["--linger", f"{args.linger:g}"]
    words += ["--log-level", args.log_level, "--max-regions", str(args.max_regions)]
    if args.max_bytes is not None:
        words += ["--max-bytes", str(args.max_bytes)]
    if args.max_bytes_per_user is not None:
        words += ["--max-bytes-per-user", str(args.max_bytes_per_user)]
    if args.metrics is not None:
        host, port = args.metrics
        words += ["--metrics", f"[{host}]:{port}" if ":" in host else f"{host}:{port}"]
    if args.restore is not None:
        words += ["--restore", args.restore]
    if args.strict:
        words.append("--strict")
    for numbers in args.map_users or ():
        words += ["--map-users", ":".join(map(str, numbers))]
    return words


def _environment() -> str:
    """The path of the package, if Python does not find it without help."""
    try:
        importlib.metadata.version("gdrpy")
    except importlib.metadata.PackageNotFoundError:
        place = str(Path(gdrpy.__file__).parent.parent)
        return f"Environment={_quoted(f'PYTHONPATH={place}')}\n"
    return ""


def _folders(args: argparse.Namespace) -> str:
    """The folders that the broker may write: its lock lies beside the socket."""
    if args.socket is not None:
        return f"ReadWritePaths={_quoted(str(Path(args.socket).parent))}\n"
    return "RuntimeDirectory=gdrpy\nRuntimeDirectoryMode=0755\nRuntimeDirectoryPreserve=yes\n"


def _quoted(word: str) -> str:
    """A word quoted for a unit file, so that systemd replaces nothing in it."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"' if set(word) & set(" \t\"'\\;") else escaped
