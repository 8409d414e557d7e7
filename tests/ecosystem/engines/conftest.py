"""The plug-in in an engine, on the simulated GPU and a stand-in of what it uses of vLLM."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from vllm_plugin import STANDINS, backend_of, loader, take_away
from vllm_sources import INDEX, Wheel, wheels

import gdrpy


@pytest.fixture(scope="module")
def index() -> dict[str, Wheel]:
    """All releases of vLLM; skips without a network."""
    try:
        found = wheels()
    except OSError as error:
        pytest.skip(f"needs {INDEX}: {error}")
    return {wheel.version: wheel for wheel in found} | {"newest": found[-1]}


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


@pytest.fixture
def broker(broker: gdrpy.Broker, monkeypatch: pytest.MonkeyPatch) -> gdrpy.Broker:
    """The broker, which engines find."""
    monkeypatch.setenv("GDRPY_SOCKET", broker.socket)
    return broker


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
