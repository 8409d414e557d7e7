"""The Python modules by which LMCache shares KV caches, out of its wheel on PyPI."""

from __future__ import annotations

import io
import json
import re
import zipfile
from pathlib import Path

from vllm_sources import ACCEPT, AHEAD, Remote, ask

INDEX = "https://pypi.org/simple/lmcache/"
VERSION = "0.5.6"
WHEEL = re.compile(rf"lmcache-{re.escape(VERSION)}-cp\d+-.*_x86_64\.whl")
MODULES = re.compile(
    r"lmcache/(__init__|_version|logging|v1/__init__|v1/utils/\w+|v1/platform/.*|"
    r"v1/multiprocess/(__init__|transfer_mode)|v1/gpu_connector/kv_format/(contiguity|types))\.py"
)
#: Packages whose own ``__init__`` imports all that LMCache needs; here they are empty.
EMPTY = ("lmcache/v1/gpu_connector/__init__.py", "lmcache/v1/gpu_connector/kv_format/__init__.py")


def unpack(folder: Path) -> None:
    """Put the modules into a folder that Python can import them from. Raises OSError."""
    files = json.loads(ask(INDEX, Accept=ACCEPT)[1])["files"]
    found = next(file for file in files if WHEEL.fullmatch(file["filename"]))
    remote = io.BufferedReader(Remote(found["url"], found["size"]), AHEAD)
    with zipfile.ZipFile(remote) as archive:
        archive.extractall(folder, filter(MODULES.fullmatch, archive.namelist()))
    for name in EMPTY:
        (folder / name).touch()
