"""Minimal clients of the wire protocol, and a process that asks as fast as it can.

``broker_client.py bare|broker PATH SECONDS`` prints a line when it is connected, begins when it
reads one, and prints how many requests a second were answered.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import time
from typing import Self

from msgspec import msgpack

from gdrpy.broker import unix as _unix

_LIMIT = 1 << 16


class Descriptor:
    """A descriptor that came with a reply."""

    def __init__(self, number: int) -> None:
        self._number = number

    def close(self) -> None:
        os.close(self._number)


class BareClient:
    """A client of the bare server that uses Python's sockets."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.connect(path)
        self._room = socket.CMSG_SPACE(4)

    def get(self) -> Descriptor:
        """One round trip."""
        self._socket.send(msgpack.encode({"op": "get", "id": 1, "name": "bench"}))
        data, ancillary, _, _ = self._socket.recvmsg(_LIMIT, self._room, socket.MSG_CMSG_CLOEXEC)
        msgpack.decode(data)
        return Descriptor(struct.unpack("i", ancillary[0][2])[0])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()


class WireClient:
    """A client of either server that uses gdrpy's packets."""

    def __init__(self, path: str) -> None:
        self._socket = _unix.packet_socket()
        self._socket.connect(path)
        self._greeted = False

    def _ask(self, **request: object) -> tuple[dict[str, object], list[int]]:
        _unix.send(self._socket, msgpack.encode(request), ())
        data, fds = _unix.receive(self._socket, _LIMIT, 1)
        reply = msgpack.decode(data)
        if "error" in reply:
            raise RuntimeError(reply["message"])
        return reply, fds

    def _greet(self) -> None:
        if not self._greeted:
            self._ask(op="hello", id=0, version=1, client="benchmark")
            self._greeted = True

    def get(self) -> Descriptor:
        """One round trip at the bare server."""
        _, fds = self._ask(op="get", id=1, name="bench")
        return Descriptor(fds[0])

    def lease(self) -> tuple[int, Descriptor]:
        """A region's number and descriptor from the broker."""
        self._greet()
        grant, fds = self._ask(op="get", id=1, name="bench", readonly=False, gpu=False)
        number = grant["region"]
        assert isinstance(number, int)
        return number, Descriptor(fds[0])

    def allocate(self) -> Allocated:
        """A region of the broker without a name, on GPU 0."""
        self._greet()
        grant, fds = self._ask(
            op="allocate",
            id=1,
            name=None,
            nbytes=2 << 20,
            device=0,
            mode=0o600,
            metadata=b"",
            gpu=True,
        )
        number = grant["region"]
        assert isinstance(number, int)
        return Allocated(self, number, fds[0])

    def release(self, numbers: list[int]) -> None:
        """Give leases back."""
        _unix.send(self._socket, msgpack.encode({"op": "release", "regions": numbers}), ())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()


class Allocated(Descriptor):
    """A region; close() releases it."""

    def __init__(self, client: WireClient, region: int, number: int) -> None:
        super().__init__(number)
        self._client = client
        self._region = region

    def close(self) -> None:
        super().close()
        self._client.release([self._region])


def main(way: str, path: str, seconds: float) -> None:
    """Ask for ``seconds``."""
    with WireClient(path) as client:
        if way == "broker":
            client.lease()[1].close()
        print("connected", flush=True)
        sys.stdin.readline()
        requests = 0
        start = time.perf_counter()
        end = start + seconds
        held: list[int] = []
        while time.perf_counter() < end:
            if way == "broker":
                number, descriptor = client.lease()
                held.append(number)
                if len(held) == 64:
                    client.release(held)
                    held.clear()
            else:
                descriptor = client.get()
            descriptor.close()
            requests += 1
        print(requests / (time.perf_counter() - start))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
