"""Unix sockets for packets with file descriptors."""

from __future__ import annotations

import errno
import os
import resource
import socket
import stat
import struct
from collections.abc import Sequence

from gdrpy._core import _packet

#: Bytes of the kernel's sockaddr_un for a path and its final zero.
PATH_ROOM = 108
#: Descriptors in one message, at most. Source: SCM_MAX_FD, unix(7).
MAX_FDS = 253
#: Groups of a peer, at most: some more than a Windows domain gives a user.
MAX_GROUPS = 1024

_CREDENTIALS = struct.Struct("iII")
_TIMEVAL = struct.Struct("ll")
#: Bytes of a memory file that is freed within some 10 us.
SMALL = 256 << 10
#: As numbers: flags of the enum are slow.
TRUNCATED = int(socket.MSG_TRUNC | socket.MSG_CTRUNC)


class BadPacket(ValueError):
    """A packet that is too long, or that lost descriptors."""


def raise_descriptor_limit() -> None:
    """Allow this process as many descriptors as possible."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def packet_socket() -> socket.socket:
    """A new packet socket, closed on exec, not connected."""
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)


def set_timeout(sock: socket.socket, seconds: float | None) -> None:
    """Limit the time for each packet; after it, sending and receiving raise BlockingIOError.

    The kernel's timers do this: the socket stays blocking, as :func:`send` and :func:`receive`
    need, and no call polls first.
    """
    whole, part = divmod(seconds or 0.0, 1.0)
    limit = _TIMEVAL.pack(int(whole), int(part * 1e6) or (part > 0))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)


def send(sock: socket.socket, data: bytes, fds: Sequence[int]) -> None:
    """Send one packet; the caller keeps the descriptors. Raises OSError."""
    _packet.send(sock.fileno(), data, fds)


def receive(sock: socket.socket, limit: int, max_fds: int) -> tuple[bytes, list[int]]:
    """One packet of up to ``limit`` bytes and its descriptors, which the caller closes.

    An empty packet without descriptors means that the peer closed. Raises BadPacket, after closing
    the descriptors, and OSError.
    """
    data, fds, flags = _packet.receive(sock.fileno(), limit, max_fds)
    if flags & TRUNCATED:
        close_all(fds)
        raise BadPacket(
            f"a packet has more than {limit} bytes"
            if flags & socket.MSG_TRUNC
            else "the descriptors beside a packet did not all arrive"
        )
    return data, fds


def close_small(fd: int) -> bool:
    """Close a descriptor if it is a small memory file's; returns whether it is.

    Closing the last descriptor of much memory may take seconds, so a thread should do that. For a
    small file, asking a thread takes longer than closing.
    """
    small = 0 < os.fstat(fd).st_size <= SMALL
    if small:
        os.close(fd)
    return small


def close_all(fds: list[int]) -> None:
    """Close descriptors and empty the list."""
    while fds:
        os.close(fds.pop())


def peer_credentials(sock: socket.socket) -> tuple[int, int, int]:
    """Process, user and group of the peer when it connected, from the kernel."""
    found = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, gid = _CREDENTIALS.unpack(found)
    return pid, uid, gid


def peer_groups(sock: socket.socket) -> tuple[int, ...]:
    """The supplementary groups of the peer when it connected, from the kernel.

    Raises OSError, which says so if there are more than MAX_GROUPS.
    """
    try:
        return _packet.groups(sock.fileno(), MAX_GROUPS)
    except OSError as error:
        if error.errno != errno.ERANGE:
            raise
        reason = f"its process is in more than {MAX_GROUPS} groups: start it in fewer"
        raise OSError(errno.ERANGE, reason) from None


def listen(path: str, mode: int, backlog: int, group: int | None = None) -> socket.socket:
    """A listening socket at a new path. It has its mode before a client can connect.

    Raises FileExistsError, also if another file replaces it meanwhile, and OSError.
    """
    listener = packet_socket()
    try:
        os.fchmod(listener.fileno(), 0)  # the file inherits this mode: no access at first
        listener.bind(path)
        _open_up(path, mode, group)
        listener.listen(backlog)
    except BaseException:
        listener.close()
        raise
    return listener


def _open_up(path: str, mode: int, group: int | None) -> None:
    """Set group and mode of the socket file just bound, but of no other file at its path."""
    file = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(file)
        if found.st_mode != stat.S_IFSOCK or found.st_uid != os.geteuid():
            raise FileExistsError(errno.EEXIST, "another file was put there meanwhile")
        itself = f"/proc/self/fd/{file}"
        if group is not None:
            os.chown(itself, -1, group)
        os.chmod(itself, mode)
    finally:
        os.close(file)


def remove_stale(path: str) -> bool:
    """Remove a socket file that no process is bound to any more; returns whether there was one.

    Raises FileExistsError if a process is bound to it or it is not a socket, and OSError.
    """
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return False
    if not stat.S_ISSOCK(mode):
        raise FileExistsError(errno.EEXIST, "it is not a socket and is left alone")
    if is_live(path):
        raise FileExistsError(errno.EADDRINUSE, "another program listens there")
    os.unlink(path)
    return True


def is_live(path: str) -> bool:
    """Whether a process is bound to a socket file.

    A datagram socket probes it: the kernel refuses that either way, without the listener noticing.
    """
    probe = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
    try:
        return probe.connect_ex(path) != errno.ECONNREFUSED
    finally:
        probe.close()


def identity_of_file(path: str) -> tuple[int, int] | None:
    """Device and inode of the file at a path; None if no file is there."""
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def private_folder() -> str:
    """The folder for this user's sockets: the runtime directory, else one in the temporary folder.

    Raises PermissionError if another user made that folder first.
    """
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and os.path.isdir(runtime):
        return runtime
    temporary = os.environ.get("TMPDIR") or "/tmp"  # importing tempfile would take 10 ms
    folder = os.path.join(temporary, f"gdrpy-{os.geteuid()}")
    if not os.path.lexists(folder):
        os.makedirs(folder, mode=0o700, exist_ok=True)
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise PermissionError(
            errno.EPERM,
            f"{folder} is not a folder that only you can enter, and belongs to user "
            f"{found.st_uid}: remove it, or set XDG_RUNTIME_DIR or TMPDIR",
        )
    return folder
