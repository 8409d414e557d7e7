"""Which GPU the tests run on, and what every test must leave as it found it.

By default everything runs on the simulated GPU. ``pytest -m gpu`` runs the tests so marked on a
real one; they are the same tests.
"""

from __future__ import annotations

import functools
import gc
import multiprocessing
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support import gpu_mappings, hide_features, listed_descriptors, manager_violations

SIMULATED_BACKENDS = "sim,dmabuf"

#: GPU memory that a real driver may keep after a test, in bytes: a slab for its own objects, and
#: page tables.
_DRIVERS_OWN = (2 << 20) + (256 << 10)

# Ctrl-C and a lost terminal end the tests' programs too where the tests run in a shell's background
# or under nohup, which have these signals ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Here and in all processes that tests start: at each import numpy's and torch's second threads spin
# for longer than the import takes.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# The server of forks imports torch once, which takes a second, for all processes that it forks.
multiprocessing.set_forkserver_preload(["gdrpy.torch"])


def on_real_gpu(config: pytest.Config) -> bool:
    return config.getoption("markexpr") == "gpu"


def pytest_configure(config: pytest.Config) -> None:
    os.environ["GDRPY_SIM"] = "0" if on_real_gpu(config) else "1"
    config.addinivalue_line(
        "markers",
        "any_pointer: needs a backend that pins any pointer (a dma-buf of the simulated GPU begins "
        "where its block does)",
    )
    if on_real_gpu(config):
        from gdrpy import Error, cuda

        try:
            cuda.driver()
        except Error as error:
            pytest.exit(f"pytest -m gpu needs a machine with an NVIDIA GPU: {error}", 2)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Tests that nothing but real hardware can run are not even collected elsewhere; nor there
    those of Ray's and Dask's clusters, which a GPU changes nothing for.
    """
    if collection_path.name == ("clusters" if on_real_gpu(config) else "hardware"):
        return True
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Last run the tests that import libraries with threads: tests that fork might not survive
    those. The clusters are the very last, because they use the CPU until the process ends.
    """
    items.sort(key=lambda item: [name in item.path.parts for name in ("clusters", "ecosystem")])


def backends(config: pytest.Config) -> list[str]:
    """The backends to hold against the contract: on a real GPU all that can serve there."""
    if not on_real_gpu(config):
        return os.environ.get("GDRPY_TEST_BACKENDS", SIMULATED_BACKENDS).split(",")
    from gdrpy.memory.backends import ALL

    return [name for name, backend in ALL.items() if backend.status(0).usable]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "backend" not in metafunc.fixturenames:
        return
    names = backends(metafunc.config)
    if "any_pointer" in metafunc.definition.keywords and not on_real_gpu(metafunc.config):
        names = [name for name in names if name != "dmabuf"]
    metafunc.parametrize("backend", names, indirect=True)


@pytest.fixture(scope="module", autouse=True)
def quick_collections() -> None:
    """Leave what was there before out of the garbage collections that tests ask for, or each takes
    a tenth of a second; and out of the one of the next module, which takes half a second of all.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A backend that this machine has, forced for the test.

    ``gdrdrv-plain`` is gdrdrv as on NVIDIA's module, which has none of the features of ours.
    """
    name: str = request.param
    if name == "gdrdrv-plain":
        hide_features(monkeypatch)
        name = "gdrdrv"
    monkeypatch.setenv("GDRPY_BACKEND", name)
    return name


@pytest.fixture
def driver() -> Any:
    """``cuda.bindings.driver`` on the GPU under test, its primary context current."""
    from gdrpy import cuda

    module = cuda.driver()
    with cuda.context(0):
        yield module


@functools.cache
def warm(backend: str) -> None:
    """Have all made that a process makes once with a backend and keeps: contexts, the backend's
    client, streams' own memory, and every lane of staging, DMA's and the copy engine's.
    """
    import gdrpy
    from gdrpy import cuda
    from gdrpy.memory import engine

    with gdrpy.alloc(64 << 20, cpu=False) as region:
        region.write(bytes(region.nbytes), via="dma")
        region.readinto(bytearray(region.nbytes), via="dma")
        region.fill(0)
        if engine.status(0).usable:
            region.write(bytes(region.nbytes), via="engine")
            region.readinto(bytearray(region.nbytes), via="engine")
    with gdrpy.alloc(4) as region, cuda.context(0):
        stream = cuda.call("cuStreamCreate", 1)
        region.flag().stream_write(stream, 1)
        cuda.call("cuStreamSynchronize", stream)
        cuda.call("cuStreamDestroy", stream)
        if backend == "nvrm":  # keeps a bit of memory of either kind
            pointer = cuda.call("cuMemAlloc", 1)
            with gdrpy.open() as gdr:
                gdr.pin(int(pointer), 1).close()
                gdr.pin(region, 1).close()
            cuda.call("cuMemFree", pointer)


@pytest.fixture
def nothing_leaks(backend: str) -> Iterator[None]:
    """Descriptors, mappings, GPU memory and the current context are as they were at the end."""
    from gdrpy import cuda
    from gdrpy.memory import page_locked as pinnedpool

    warm(backend)

    def in_use() -> tuple[int, int, int, int]:
        gc.collect()
        pinnedpool.free_kept()
        current = int(cuda.call("cuCtxGetCurrent"))
        with cuda.context(0):
            free, _ = cuda.call("cuMemGetInfo")
        # By name alone, the scan's own among them: what each is takes long to ask for all tests.
        return len(list(os.scandir("/proc/self/fd"))), gpu_mappings(), free, current

    descriptors, mappings, free, current = in_use()
    gc.freeze()  # what is there by now is not looked through at the end
    yield
    after = in_use()
    assert after == (descriptors, mappings, after[2], current), listed_descriptors()
    # A driver that runs short gives back what it had kept: there may be more memory than before.
    # A real one keeps some for itself, as much as a small region takes. Only the simulated GPU
    # shows a leak of one such region.
    assert after[2] >= free - (0 if cuda.simulated() else _DRIVERS_OWN)
    assert manager_violations() == 0


@pytest.fixture
def gpu_read() -> Callable[[int, int], bytes]:
    """What the driver's own copy finds at a GPU address: (address, nbytes) to bytes."""
    from gdrpy import cuda

    def read(ptr: int, nbytes: int) -> bytes:
        buffer = bytearray(nbytes)
        with cuda.context(0):
            cuda.call("cuMemcpyDtoH", buffer, ptr, nbytes)
        return bytes(buffer)

    return read


@pytest.fixture
def gpu_write() -> Callable[[int, bytes], None]:
    """The driver's own copy of bytes to a GPU address, done when it returns."""
    from gdrpy import cuda

    def write(ptr: int, data: bytes) -> None:
        with cuda.context(0):
            cuda.call("cuMemcpyHtoD", ptr, data, len(data))
            cuda.call("cuCtxSynchronize")

    return write


def pytest_sessionfinish(session: pytest.Session) -> None:
    """In CI a skip is a failure: what a machine cannot run must not look as if it had passed."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    skipped = reporter.stats.get("skipped", []) if reporter else []
    if os.environ.get("CI") and skipped and session.exitstatus == pytest.ExitCode.OK:
        reporter.write_line(f"{len(skipped)} skipped: in CI every test must run", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(scope="session")
def checkout() -> Path:
    """The project's top folder."""
    return Path(__file__).parent.parent


@pytest.fixture
def public_path() -> Iterator[Path]:
    """A folder that lets everybody in; pytest's lets in one user."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)
