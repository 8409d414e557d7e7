"""A bare server, the limit for a broker: one request, one reply with a descriptor, no state.

``echo_server.py PATH`` prints a line when it listens. It has one thread, epoll,
packets and msgpack, and nothing else; it ends with its standard input.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import sys

import msgspec


class Request(msgspec.Struct, tag="get", tag_field="op"):
    """The request of a client."""

    id: int
    name: str


def main(path: str) -> None:
    """Serve until standard input ends."""
    memory = os.memfd_create("bare")
    os.ftruncate(memory, 2 << 20)
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", memory))]
    decode = msgspec.msgpack.Decoder(Request).decode
    encode = msgspec.msgpack.Encoder().encode
    buffer = bytearray(1 << 16)
    view = memoryview(buffer)
    clients: dict[int, socket.socket] = {}
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener, select.epoll() as ready:
        listener.bind(path)
        listener.listen(64)
        ready.register(listener, select.EPOLLIN)
        ready.register(sys.stdin, select.EPOLLIN)
        print("ready", flush=True)
        while True:
            for number, _ in ready.poll():
                client = clients.get(number)
                if client is not None:
                    size = client.recv_into(buffer)
                    if size:
                        request = decode(view[:size])
                        client.sendmsg([encode({"id": request.id, "fds": 1})], rights)
                    else:
                        clients.pop(number).close()
                elif number == listener.fileno():
                    client, _ = listener.accept()
                    clients[client.fileno()] = client
                    ready.register(client, select.EPOLLIN)
                else:
                    return


if __name__ == "__main__":
    main(sys.argv[1])
