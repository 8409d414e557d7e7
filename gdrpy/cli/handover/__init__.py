"""How one region is handed to another process: in frames of 16 bytes, with the descriptor.

The producer sends an OFFER (value: the size in bytes) with one descriptor, the consumer an ANSWER
(value: 1 if it found what it expected, else 0) with none. All integers are little-endian. The
socket keeps packets apart, so a frame is one packet.
"""

from __future__ import annotations

import enum
import struct
from socket import socket

from gdrpy.broker import unix as _unix
from gdrpy.cli.exits import CommandError

MAGIC = b"GDRH"
VERSION = 1
#: Magic, version, kind, value.
FRAME = struct.Struct("<4sHHQ")
#: Larger sizes are refused before the kernel is asked.
SIZE_LIMIT = 1 << 62

#: Room for more descriptors than a frame may carry, to tell too many from a truncated message.
_DESCRIPTORS_LIMIT = 16


class Kind(enum.IntEnum):
    """The kind of a frame."""

    OFFER = 1
    ANSWER = 2


class HandoverError(CommandError):
    """The peer is gone, or broke the protocol."""


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


def send_offer(peer: socket, nbytes: int, fd: int) -> None:
    """Send a region's size and descriptor; ``fd`` stays the caller's. Raises HandoverError."""
    _send(peer, encode(Kind.OFFER, nbytes), [fd])


def receive_offer(peer: socket) -> tuple[int, int]:
    """A size in bytes and a descriptor, which is the caller's to close. Raises HandoverError."""
    nbytes, fds = _receive(peer, Kind.OFFER, descriptors=1)
    return nbytes, fds[0]


def send_answer(peer: socket, good: bool) -> None:
    """Tell the producer whether the data was right. Raises HandoverError."""
    _send(peer, encode(Kind.ANSWER, int(good)), [])


def receive_answer(peer: socket) -> bool:
    """Whether the consumer found what it expected. Raises HandoverError."""
    value, _ = _receive(peer, Kind.ANSWER, descriptors=0)
    if value not in (0, 1):
        raise HandoverError(f"the peer answered {value}, which is neither 0 nor 1")
    return value == 1


def _send(peer: socket, frame: bytes, fds: list[int]) -> None:
    try:
        _unix.send(peer, frame, fds)
    except OSError as error:
        raise _broken(error) from error


def _receive(peer: socket, kind: Kind, descriptors: int) -> tuple[int, list[int]]:
    """A frame's value and its descriptors; after a refusal none stays open."""
    try:
        data, fds = _unix.receive(peer, FRAME.size, _DESCRIPTORS_LIMIT)
    except _unix.BadPacket as error:
        raise HandoverError(f"the peer is at fault: {error}") from error
    except OSError as error:
        raise _broken(error) from error
    try:
        if not data and not fds:
            raise HandoverError(f"the peer closed the connection instead of sending {kind.name}")
        value = decode(data, kind)
        if len(fds) != descriptors:
            raise HandoverError(
                f"the peer sent {len(fds)} descriptors with {kind.name}, not {descriptors}"
            )
        if kind is Kind.OFFER and not 0 < value < SIZE_LIMIT:
            raise HandoverError(f"the peer offers a region of {value} bytes, which is impossible")
    except HandoverError:
        _unix.close_all(fds)
        raise
    return value, fds


def _broken(error: OSError) -> HandoverError:
    if isinstance(error, BlockingIOError):
        return HandoverError("the peer said nothing within the timeout")
    return HandoverError(f"the peer is gone ({error.strerror})")
