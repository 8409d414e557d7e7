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
# {folder}/gdrpy.service, made by: gdrpy serve --print-unit service
[Unit]
Description=gdrpy broker: named regions of GPU memory
Requires=gdrpy.socket
After=nvidia-persistenced.service
# Whatever happens it is started again: its memory would be given back else.
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

#: How the memory is kept while no broker runs, by who keeps it.
_KEEPING = {
    "systemd": f"""\
# The memory is systemd's to keep while no broker runs, but not after a stop:
# FileDescriptorStorePreserve=restart, which is the default.
FileDescriptorStoreMax={STORE_LIMIT}
KillMode=mixed
""",
    # The broker ends its keeper when it is stopped; when it was killed, its keeper shall stay.
    "process": "KillMode=process\n",
    "none": "KillMode=mixed\n",
}

#: What a GPU's driver does not need. Not PrivateDevices, DevicePolicy and what implies it
#: (ProtectClock), ProtectKernelModules and CapabilityBoundingSet: CUDA may have to load nvidia-uvm
#: and make its nodes. Not MemoryDenyWriteExecute: CUDA compiles.
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
# {folder}/gdrpy.socket, made by: gdrpy serve --print-unit socket
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
    """A unit of the system's for root, else of this user's, for ``gdrpy serve`` with ``args``."""
    return _service(args) if kind == "service" else _socket(args)


def _service(args: argparse.Namespace) -> str:
    system = os.geteuid() == 0
    return _SERVICE.format(
        folder=_folder(system),
        command=" ".join(map(_quoted, _command(args))),
        environment=_environment(),
        keeping=_KEEPING[_keeper(args)],
        folders=_folders(args),
        hardening=_HARDENING if system else "NoNewPrivileges=yes\n",
        target="multi-user.target" if system else "default.target",
    )


def _socket(args: argparse.Namespace) -> str:
    mode = args.mode if args.mode is not None else 0o600 if args.group is None else 0o660
    return _SOCKET.format(
        folder=_folder(os.geteuid() == 0),
        path="%t/gdrpy/broker.sock" if args.socket is None else args.socket.replace("%", "%%"),
        mode=mode,
        group="" if args.group is None else f"SocketGroup={grp.getgrgid(args.group).gr_name}\n",
        directory_mode=0o755 if mode & 0o077 else 0o700,
    )


def _folder(system: bool) -> str:
    return "/etc/systemd/system" if system else "~/.config/systemd/user"


def _keeper(args: argparse.Namespace) -> str:
    """Who keeps the memory: systemd, unless the command line says otherwise."""
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
    if args.strict:
        words.append("--strict")
    return words


def _environment() -> str:
    """Where the package is, if Python does not find it by itself."""
    try:
        importlib.metadata.version("gdrpy")
    except importlib.metadata.PackageNotFoundError:
        place = str(Path(gdrpy.__file__).parent.parent)
        return f"Environment={_quoted(f'PYTHONPATH={place}')}\n"
    return ""


def _folders(args: argparse.Namespace) -> str:
    """Where the broker may write: its lock lies beside the socket."""
    if args.socket is not None:
        return f"ReadWritePaths={_quoted(str(Path(args.socket).parent))}\n"
    return "RuntimeDirectory=gdrpy\nRuntimeDirectoryMode=0755\nRuntimeDirectoryPreserve=yes\n"


def _quoted(word: str) -> str:
    """A word as unit files have it: nothing in it is replaced."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"' if set(word) & set(" \t\"'\\;") else escaped
