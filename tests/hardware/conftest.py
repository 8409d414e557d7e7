"""Fixtures that several files share, and what they require of the machine."""

from __future__ import annotations

import pytest

from gdrpy.memory import engine

#: What compiles kernels, and the modules that it takes.
COMPILERS = {
    "nvrtc": ["cuda.bindings.nvrtc"],
    "numba": ["numba_cuda"],
    "triton": ["triton", "torch"],
}


@pytest.fixture
def usable_engine() -> None:
    status = engine.status(0)
    assert status.usable, status.reason


@pytest.fixture
def torch(backend):
    module = pytest.importorskip("torch")
    module.zeros(1, device="cuda")
    return module


@pytest.fixture(params=COMPILERS)
def compiler(request: pytest.FixtureRequest) -> str:
    for module in COMPILERS[request.param]:
        pytest.importorskip(module)
    if request.param == "nvrtc":
        from cuda.bindings import nvrtc

        try:
            nvrtc.nvrtcVersion()
        except RuntimeError as error:
            pytest.skip(f"libnvrtc is not installed: {error}")
    return request.param
