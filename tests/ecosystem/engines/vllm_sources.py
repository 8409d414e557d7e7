"""Python modules out of vLLM's wheels on PyPI, whose other hundreds of megabytes stay there."""

from __future__ import annotations

import functools
import io
import json
import re
import urllib.request
import zipfile
from collections.abc import Callable
from typing import Any, NamedTuple

INDEX = "https://pypi.org/simple/vllm/"
ACCEPT = "application/vnd.pypi.simple.v1+json"
WHEEL = re.compile(r"vllm-([\d.]+)-.*_x86_64\.whl")
#: Bytes that a request asks for at least: a module or two.
AHEAD = 64 << 10


class Wheel(NamedTuple):
    version: str
    url: str
    nbytes: int


def ask(url: str, **headers: str) -> tuple[int, bytes]:
    """The status and the body of an answer."""
    request = urllib.request.Request(url, headers=headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return answer.status, answer.read()


def wheels() -> list[Wheel]:
    """The wheels of all releases but withdrawn ones and candidates, oldest first."""
    found = [
        Wheel(match[1], file["url"], file["size"])
        for file in json.loads(ask(INDEX, Accept=ACCEPT)[1])["files"]
        if (match := WHEEL.fullmatch(file["filename"])) and not file.get("yanked")
    ]
    return sorted(found, key=lambda wheel: [int(part) for part in wheel.version.split(".")])


class Remote(io.RawIOBase):
    """A file on a server, of which only what is read is fetched."""

    def __init__(self, url: str, nbytes: int) -> None:
        self._url, self._nbytes, self._at = url, nbytes, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + (0, self._at, self._nbytes)[whence]
        return self._at

    def readinto(self, into: Any) -> int:
        end = min(self._at + len(into), self._nbytes)
        if end <= self._at:
            return 0
        status, data = ask(self._url, Range=f"bytes={self._at}-{end - 1}")
        assert status == 206, f"{self._url}: the server sends no parts"
        into[: len(data)] = data
        self._at += len(data)
        return len(data)


def reader(wheel: Wheel) -> Callable[[str], str]:
    """Reads a wheel's files by path: "" where there is none."""
    archive = zipfile.ZipFile(io.BufferedReader(Remote(wheel.url, wheel.nbytes), AHEAD))
    paths = set(archive.namelist())
    return functools.cache(lambda path: archive.read(path).decode() if path in paths else "")
