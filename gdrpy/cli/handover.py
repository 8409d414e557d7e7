"""Handing one region to another process: a frame of 16 bytes, with the descriptor beside it.

The producer sends an OFFER (value: the size in bytes) with one descriptor, the consumer an ANSWER
(value: 1 if it found what it expected, else 0) with none. All integers are little-endian. The
socket keeps packets apart, so a frame is one packet.
"""

from __future__ import annotations

import enum
import os
import socket
import struct
from array import array
from contextlib import ExitStack

from gdrpy.cli.exits import CommandError

MAGIC = b"GDRH"
VERSION = 1
#: Magic, version, kind, value.
FRAME = struct.Struct("<4sHHQ")
#: Sizes from here up are refused before anybody asks the kernel about them.
SIZE_LIMIT = 1 << 62

#: Room for more descriptors than a frame may carry, so that too many are told from truncation.
_DESCRIPTOR_ROOM = socket.CMSG_SPACE(16 * array("i").itemsize)


class Kind(enum.IntEnum):
    """What a frame says."""

    OFFER = 1
    ANSWER = 2


class HandoverError(CommandError):
    """The peer is gone, or said something that is no part of this protocol."""


def encode(kind: Kind, value: int) -> bytes:
    """The frame's bytes."""
    return FRAME.pack(MAGIC, VERSION, kind, value)


def decode(data: bytes, wanted: Kind) -> int:
    """The value of a frame of the wanted kind. Raises HandoverError."""
    if len(data) != FRAME.size:
        raise HandoverError(f"the peer sent {len(data)} bytes, and a frame has {FRAME.size}")
    magic, version, kind, value = FRAME.unpack(data)
    if magic != MAGIC:
        raise HandoverError(f"the peer does not speak this protocol: it began with {magic!r}")
    if version != VERSION:
        raise HandoverError(f"the peer speaks version {version}, this program {VERSION}")
    if kind != wanted:
        raise HandoverError(f"the peer sent a frame of kind {kind}, not {wanted.name} ({wanted})")
    return int(value)


def send_offer(peer: socket.socket, nbytes: int, fd: int) -> None:
    """Send a region's size and descriptor; ``fd`` stays the caller's. Raises HandoverError."""
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [fd]))
    _send(peer, encode(Kind.OFFER, nbytes), [rights])


def receive_offer(peer: socket.socket) -> tuple[int, int]:
    """A size in bytes and a descriptor, which is the caller's to close. Raises HandoverError."""
    nbytes, fds = _receive(peer, Kind.OFFER, descriptors=1)
    return nbytes, fds[0]


def send_answer(peer: socket.socket, good: bool) -> None:
    """Tell the producer whether the data was right. Raises HandoverError."""
    _send(peer, encode(Kind.ANSWER, int(good)), [])


def receive_answer(peer: socket.socket) -> bool:
    """Whether the consumer found what it expected. Raises HandoverError."""
    value, _ = _receive(peer, Kind.ANSWER, descriptors=0)
    if value not in (0, 1):
        raise HandoverError(f"the peer answered {value}, which is neither 0 nor 1")
    return value == 1


def _send(peer: socket.socket, frame: bytes, rights: list[tuple[int, int, array[int]]]) -> None:
    try:
        peer.sendmsg([frame], rights)
    except OSError as error:
        raise _broken(error) from error


def _receive(peer: socket.socket, kind: Kind, descriptors: int) -> tuple[int, list[int]]:
    """A frame's value and its descriptors; whatever is refused, none is left open."""
    try:
        data, ancillary, flags, _ = peer.recvmsg(
            FRAME.size + 1, _DESCRIPTOR_ROOM, socket.MSG_CMSG_CLOEXEC
        )
    except OSError as error:
        raise _broken(error) from error
    with ExitStack() as undo:
        fds = _descriptors(ancillary)
        for fd in fds:
            undo.callback(os.close, fd)
        if not data and not fds:
            raise HandoverError(f"the peer closed the connection instead of sending {kind.name}")
        if flags & socket.MSG_CTRUNC:
            raise HandoverError("the descriptors that the peer sent did not all arrive")
        value = decode(data, kind)
        if len(fds) != descriptors:
            raise HandoverError(
                f"the peer sent {len(fds)} descriptors with {kind.name}, not {descriptors}"
            )
        if kind is Kind.OFFER and not 0 < value < SIZE_LIMIT:
            raise HandoverError(f"the peer offers a region of {value} bytes, which none has")
        undo.pop_all()
        return value, fds


def _descriptors(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    fds = array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return fds.tolist()


def _broken(error: OSError) -> HandoverError:
    if isinstance(error, TimeoutError):
        return HandoverError("the peer said nothing within the timeout")
    return HandoverError(f"the peer is gone ({error.strerror})")
