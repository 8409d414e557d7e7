"""The broker's protocol by hand, for tests that say what no client would."""

from __future__ import annotations

import array
import ctypes
import mmap
import os
import signal
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgpack

#: Bytes that a reply may have, and descriptors beside it.
_PACKET, _FDS = 64 * 1024, 253
_PR_SET_PDEATHSIG = 1


class Reply(dict[str, Any]):
    """A reply's fields, and the descriptors that came with it, which are closed with it."""

    def __init__(self, message: dict[str, Any], fds: list[int]) -> None:
        super().__init__(message)
        self.fds = fds

    def close(self) -> None:
        """Close the descriptors."""
        while self.fds:
            os.close(self.fds.pop())

    def __del__(self) -> None:
        self.close()

    def bytes(self, nbytes: int | None = None) -> bytes:
        """What the region of a grant contains."""
        return os.pread(self.fds[0], nbytes or self["nbytes"], 0)

    def write(self, data: bytes) -> None:
        """Fill the region of a grant from its beginning."""
        with mmap.mmap(self.fds[0], self["size"]) as view:
            view[: len(data)] = data


class RawClient:
    """A connection. Every wait is bounded: a broker that does not answer is a TimeoutError."""

    def __init__(
        self,
        path: object,
        *,
        hello: bool = True,
        timeout: float = 20.0,
        connected: socket.socket | None = None,
    ) -> None:
        self.path, self._timeout, self._hello = str(path), timeout, hello
        self._number = 0
        self._open(connected)

    def _open(self, connected: socket.socket | None = None) -> None:
        self.sock = connected or socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.session = 0
        self.life = ""
        try:
            if connected is None:  # it waits for room in the backlog, which sockets of Python's
                limit = struct.pack("ll", int(self._timeout), 0)  # with a timeout do not
                self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
                self.sock.connect(self.path)
            self.sock.settimeout(self._timeout)
            if self._hello:
                reply = self.ok("hello", version=1, client="raw")
                self.session, self.life = reply["session"], reply["life"]
        except BaseException:
            self.sock.close()
            raise

    def reopen(self) -> None:
        """Connect again, as after the broker's end."""
        self.sock.close()
        self._open()

    def send(self, op: str, **fields: Any) -> int:
        """Send a request; its number."""
        self._number += 1
        self.send_bytes(msgpack.packb({"op": op, "id": self._number, **fields}))
        return self._number

    def send_bytes(self, packet: bytes, fds: list[int] | None = None) -> None:
        """Send any packet, with any descriptors beside it."""
        if fds:
            rights = array.array("i", fds).tobytes()
            self.sock.sendmsg([packet], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        else:
            self.sock.send(packet)

    def receive(self) -> Reply:
        """The next packet. Raises ConnectionError at the end, TimeoutError where none comes."""
        room = socket.CMSG_SPACE(_FDS * array.array("i").itemsize)
        packet, ancillary, _, _ = self.sock.recvmsg(_PACKET, room, socket.MSG_CMSG_CLOEXEC)
        fds = array.array("i")
        for _, _, rights in ancillary:
            fds.frombytes(rights)
        if not packet:
            raise ConnectionResetError("the broker closed the connection")
        return Reply(msgpack.unpackb(packet), list(fds))

    def call(self, op: str, **fields: Any) -> Reply:
        """One request, and its reply whatever it says."""
        number = self.send(op, **fields)
        reply = self.receive()
        assert reply["id"] == number, reply
        return reply

    def ok(self, op: str, **fields: Any) -> Reply:
        """One request, and its reply, which is no error."""
        reply = self.call(op, **fields)
        assert "error" not in reply, reply
        return reply

    def error(self, op: str, **fields: Any) -> str:
        """One request, and the name of the error that answers it."""
        reply = self.call(op, **fields)
        assert "error" in reply, reply
        return str(reply["error"])

    def get_many(self, names: list[str]) -> tuple[list[dict[str, Any]], str | None]:
        """Grants to read, whose memory is closed, and the error of the first name refused."""
        self.send("get_many", names=names, readonly=True, gpu=False)
        grants: list[dict[str, Any]] = []
        more = True
        while more:
            reply = self.receive()
            if "error" in reply:
                return grants, str(reply["error"])
            grants += reply["grants"]
            more = reply["more"]
            reply.close()
        return grants, None

    def release(self, *regions: int) -> None:
        """Give leases back, which has no reply."""
        self.sock.send(msgpack.packb({"op": "release", "regions": list(regions)}))

    def allocate(self, name: str | None, nbytes: int = 4096, **fields: Any) -> Reply:
        """Allocate, by default memory of the host."""
        return self.ok("allocate", **allocation(name, nbytes, **fields))

    def create(self, name: str, nbytes: int = 4096, **fields: Any) -> Reply:
        """Make a draft, by default of memory of the host."""
        return self.ok("create", **allocation(name, nbytes, **fields))

    def get(self, name: str, readonly: bool = True, gpu: bool = False) -> Reply:
        """Get a region by its name."""
        return self.ok("get", name=name, readonly=readonly, gpu=gpu)

    def names(self, prefix: str = "") -> dict[str, dict[str, Any]]:
        """All entries of the list under a prefix, by name."""
        found: dict[str, dict[str, Any]] = {}
        after: str | None = ""
        while after is not None:
            reply = self.ok("list", prefix=prefix, after=after)
            found |= {entry["name"]: entry for entry in reply["regions"]}
            after = reply["next"]
        return found

    def close(self) -> None:
        """End the connection, and with it its session."""
        self.sock.close()

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def allocation(name: str | None, nbytes: int = 4096, **fields: Any) -> dict[str, Any]:
    """The fields of a request for memory, of the host unless they say otherwise."""
    usual = {"device": -1, "mode": 0o600, "metadata": b"", "gpu": False}
    return {"name": name, "nbytes": nbytes, **usual, **fields}


@contextmanager
def acting_as(uid: int) -> Iterator[None]:
    """Connect as another user, which takes root."""
    user, group = os.geteuid(), os.getegid()
    if uid == user:
        yield
        return
    os.setegid(uid)
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(user)
        os.setegid(group)


def become(uid: int) -> None:
    """Be another user from here on, if not already; and end with the process that forked this."""
    if uid != os.geteuid():
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
