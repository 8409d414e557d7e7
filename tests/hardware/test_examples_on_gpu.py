"""The examples on a real GPU, with kernels where they have some."""

from __future__ import annotations

import pytest

from exampleruns import LAST_LINES, NO_KERNELS, run

pytestmark = pytest.mark.gpu

#: What they need beside gdrpy.
NEEDS = {
    "channel_to_kernel.py": "cuda.bindings.nvrtc",
    "paged_kv_cache.py": "torch",
    "parameter_server.py": "torch",
    "resident_kernel.py": "numba_cuda",
    "rolling_update.py": "torch",
}


@pytest.fixture(params=LAST_LINES)
def example(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    return name


class TestExample:
    def test_prints_its_result(self, backend, example, tmp_path):
        printed = run(example, tmp_path)
        assert printed.endswith(LAST_LINES[example].format(backend=backend))
        assert NO_KERNELS not in printed
