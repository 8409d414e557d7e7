"""The Python client, driven by lines as client.c is."""

from __future__ import annotations

import hashlib  # here, as numpy and what follows: other users may not be able to read them
import json
import os
import signal
import sys
from typing import Any

import numpy as np
from msgspec.msgpack import encode

import gdrpy
from gdrpy.broker.client.broker import connect
from gdrpy.broker.protocol import unpack_metadata
from rawclient import become

LOADED = (hashlib, np)
READONLY, GPU = 1, 2
#: What the C library's own checks raise: Python has builtin errors.
BUILTIN = (ValueError, TypeError)


class Client:
    """One process's broker, regions and watches."""

    def __init__(self) -> None:
        self.broker: gdrpy.Broker = None  # type: ignore[assignment]
        self.regions: list[Any] = []
        self.watches: list[Any] = []

    def connect(self, path: str, timeout: str, reconnect: str) -> None:
        where = None if path == "-" else path
        self.broker = connect(where, int(timeout) / 1000, int(reconnect) / 1000)

    def close(self) -> None:
        self.broker.close()

    def allocate(self, name: str, *words: str) -> dict[str, Any]:
        fields = self._fields(*words)
        return self._told(self.broker.allocate(None if name == "-" else name, **fields))

    def create(self, name: str, *words: str) -> dict[str, Any]:
        return self._told(self.broker.create(name, **self._fields(*words)))

    def _fields(
        self, nbytes: str, device: str, mode: str, metadata: str, flags: str
    ) -> dict[str, Any]:
        return {
            "nbytes": int(nbytes),
            "device": int(device) if device.isdigit() else device,
            "mode": int(mode, 0),
            "metadata": unpack_metadata(bytes.fromhex(metadata)),
            "gpu": bool(int(flags) & GPU),
        }

    def get(self, name: str, flags: str) -> dict[str, Any]:
        bits = int(flags)
        return self._told(
            self.broker.get(name, readonly=bool(bits & READONLY), gpu=bool(bits & GPU))
        )

    def _told(self, region: Any) -> dict[str, Any]:
        self.regions.append(region)
        info = region.info() if region.location != "host memory" else None
        return {
            "handle": len(self.regions) - 1,
            "number": region.id,
            "nbytes": region.nbytes,
            "size": region.allocation_size,
            "version": region.version,
            "device": _ordinal(info.device) if info else -1,
            "sealed": region.sealed,
            "readonly": region.readonly,
            "enforced": region.enforced,
            "name": region.name or "",
            "uuid": info.uuid if info else "",
            "metadata": region._packed.hex(),
        }

    def publish(self, handle: str) -> None:
        self.regions[int(handle)].publish()

    def seal(self, handle: str) -> None:
        self.regions[int(handle)].seal()

    def check(self, handle: str) -> None:
        if self.regions[int(handle)]._lease.lost:
            raise gdrpy.Gone("lost")

    def write(self, handle: str, text: str) -> None:
        self.regions[int(handle)].write(text.encode())

    def read(self, handle: str, nbytes: str) -> dict[str, Any]:
        return {"bytes": self.regions[int(handle)].read(int(nbytes)).hex()}

    def release(self, handle: str) -> None:
        self.regions[int(handle)].close()

    def delete(self, name: str) -> None:
        self.broker.delete(name)

    def stat(self, name: str) -> dict[str, Any]:
        return _entry(self.broker.stat(name))

    def list(self, prefix: str) -> dict[str, Any]:
        return {"regions": [_entry(info) for info in self.broker.list(prefix)]}

    def watch(self, prefix: str) -> dict[str, Any]:
        self.watches.append(self.broker.watch(prefix))
        return {"handle": len(self.watches) - 1, "fd": self.watches[-1].fileno()}

    def next(self, handle: str, timeout: str) -> dict[str, Any]:
        watch = self.watches[int(handle)]
        watch.timeout = int(timeout) / 1000
        event = next(watch)
        return {
            "kind": event.kind,
            "name": event.name or "",
            "number": event.region or 0,
            "version": event.version or 0,
        }

    def unwatch(self, handle: str) -> None:
        self.watches[int(handle)].close()

    def linger(self) -> dict[str, Any]:
        child = os.fork()
        if not child:
            signal.pause()
        return {"pid": child}

    def become(self, uid: str) -> None:
        become(int(uid))


def _ordinal(device: Any) -> Any:
    return -1 if device == "cpu" else device


def _packed(metadata: dict[str, Any] | None) -> str:
    return encode(metadata).hex() if metadata else ""


def _entry(info: gdrpy.RegionInfo) -> dict[str, Any]:
    return {
        "number": info.region,
        "name": info.name or "",
        "uuid": info.uuid or "",
        "device": _ordinal(info.device),
        "metadata": _packed(info.metadata),
        **{
            name: getattr(info, name)
            for name in (
                *("nbytes", "size", "version", "mode", "uid", "gid", "sealed", "linked"),
                *("readers", "writers", "asleep"),
            )
        },
    }


def answer(client: Client, words: list[str]) -> str:
    command, *others = words
    try:
        return "ok\t" + json.dumps(getattr(client, command)(*others) or {})
    except gdrpy.Error as error:
        return f"error\t{type(error).__name__}\t{error}"
    except BUILTIN as error:
        return f"error\tInvalidRequest\t{error}"


def main() -> None:
    client = Client()
    for line in sys.stdin:
        words = line.rstrip("\n").split("\t")
        if words[0] == "fork":
            child = os.fork()
            if child:
                os.waitpid(child, 0)
                continue
            print(answer(client, words[1:]), flush=True)
            os._exit(0)
        print(answer(client, words), flush=True)


main()
