"""The plug-in in an engine, on the simulated GPU and a stand-in of what it uses of vLLM."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from vllm_plugin import STANDINS, backend_of, loader, take_away

import gdrpy
from gdrpy.broker import temporary


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """vllm_engine.py, with the plug-in registered in the stand-in of vLLM."""
    before = take_away()
    monkeypatch.syspath_prepend(STANDINS)
    module = importlib.import_module("vllm_engine")
    module.gdrpy.vllm.register()
    yield module
    take_away()
    sys.modules.update(before)


@pytest.fixture(scope="module")
def socket() -> Iterator[str]:
    with temporary() as path:
        yield path


@pytest.fixture
def broker(socket: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[gdrpy.Broker]:
    """The broker that engines find; its names are gone afterwards."""
    monkeypatch.setenv("GDRPY_SOCKET", socket)
    with gdrpy.connect(socket) as broker:
        yield broker
        for one in broker.list():
            with suppress(gdrpy.NotFound):  # a copy went with its region
                broker.delete(one.name)


@pytest.fixture
def folder(engines: Any, tmp_path: Path) -> str:
    return engines.write_model(tmp_path / "model")


@pytest.fixture
def sleeper(engines: Any, broker: gdrpy.Broker, folder: str) -> Any:
    """An engine that can sleep: its model, its region, its backend and what that asked of vLLM."""
    config = engines.config_of(folder, {"name": "model"}, sleep=True)
    model = engines.start(config)
    return SimpleNamespace(
        model=model,
        region=loader().shared[0].region,
        backend=backend_of(config),
        asked=sys.modules["vllm.device_allocator"].calls,
    )
