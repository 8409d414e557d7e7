"""The stand-in of vLLM, and what gdrpy.vllm builds on, against the genuine vLLM on PyPI."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from vllm_seams import Builder, Sources, unlike
from vllm_sources import Wheel, reader

import gdrpy

HERE = Path(__file__).parent
STANDINS = HERE / "standins"
MODULES = sorted(Path(gdrpy.__file__).parent.rglob("*.py"))
#: What builds on vLLM: the plug-in, and the engine of its tests.
BUILDERS = [path for path in MODULES if "vllm" in path.read_text()] + [HERE / "vllm_engine.py"]
#: What the stand-in has, and the plug-in calls when it is asked to, of newer releases alone.
NEWER = ["MemAllocator.discard is missing", "CuMemBackend.discard is missing"]
NOT_ASKED_FOR = ["super().discard is missing"]

Read = Callable[[str], str]


@pytest.fixture(scope="module")
def read(index: dict[str, Wheel]) -> Read:
    """The files of the release that the stand-in stands for."""
    return reader(index["0.25.1"])


def of_standin(genuine: Sources) -> list[str]:
    """The problems of the stand-in's modules."""
    paths = {str(path.relative_to(STANDINS)): path for path in STANDINS.glob("vllm/**/*.py")}
    standin = Sources(lambda path: paths[path].read_text() if path in paths else "")
    modules = [path.removesuffix(".py").removesuffix("/__init__") for path in sorted(paths)]
    return [
        problem
        for module in modules
        for problem in unlike(standin, module.replace("/", "."), genuine)
    ]


def of_builders(genuine: Sources) -> list[str]:
    """The problems of what imports vLLM."""
    return [one for path in BUILDERS for one in Builder(path.read_text(), genuine).problems]


class TestStandIn:
    def test_is_like_the_release_but_for_what_newer_ones_have(self, read):
        assert of_standin(Sources(read)) == NEWER

    @pytest.mark.parametrize(
        ("was", "now", "problems"),
        [
            (
                "def get_model_loader(load_config: LoadConfig)",
                "def get_model_loader(config: LoadConfig)",
                ["get_model_loader is (config), not (load_config)"],
            ),
            (
                "def get_mem_allocator_instance()",
                "def get_allocator()",
                ["get_mem_allocator_instance is missing"],
            ),
            (
                "def wake_up(self, tags: list[str] | None = None)",
                "def wake_up(self, tags: list[str])",
                ["MemAllocator.wake_up is (self, tags), not (self, tags=None)"],
            ),
            (
                "    def state(self)",
                "    @abstractmethod\n    def state(self)",
                ["SleepModeBackend.state is abstractmethod (self), not (self)"],
            ),
            (
                "    def is_supported(cls)",
                "    @abstractmethod\n    def is_supported(cls)",
                [
                    f"{name} lacks is_supported, which is abstract"
                    for name in ("SleepModeBackend", "CuMemBackend")
                ],
            ),
            ("    device: str | None = None", "", ["LoadConfig.device is missing"]),
        ],
    )
    def test_that_a_release_is_unlike_is_noticed(self, read, was, now, problems):
        changed = of_standin(Sources(lambda path: read(path).replace(was, now)))
        assert [one for one in changed if one not in NEWER] == problems


class TestPlugin:
    @pytest.mark.parametrize(
        ("release", "problems"),
        [("0.25.0", NOT_ASKED_FOR), ("0.25.1", NOT_ASKED_FOR), ("newest", [])],
    )
    def test_builds_on_what_the_release_has(self, index, release, problems):
        assert of_builders(Sources(reader(index[release]))) == problems

    @pytest.mark.parametrize(
        ("was", "now", "problems"),
        [
            ("def compile_factors", "def factors", ["vllm.envs.compile_factors is missing"]),
            ("    enable_eplb:", "    eplb:", ["parallel.enable_eplb is missing"]),
            (
                "def get_num_layers(self, parallel_config: ParallelConfig)",
                "def get_num_layers(self)",
                [
                    "model.get_num_layers(vllm_config.parallel_config): "
                    "too many positional arguments"
                ],
            ),
            (
                "    *,\n    prefix: str",
                "    *,\n    prefixes: str",
                [
                    "initialize_model(vllm_config=vllm_config, model_config=model_config, "
                    "prefix=prefix): got an unexpected keyword argument 'prefix'"
                ],
            ),
            (
                "def suspend(self, level: int = 1)",
                "def suspend(self)",
                [
                    "Backend.suspend is (self, level=None), and vLLM's (self)",
                    "super().suspend(level): too many positional arguments",
                ],
            ),
            ("        self.model = model\n", "", ["self.model is missing"] * 3),
            (
                "    def parse_update_info",
                "    @abstractmethod\n    def parse_update_info",
                ["Engine lacks parse_update_info, which is abstract"],
            ),
        ],
    )
    def test_that_does_not_fit_a_release_is_noticed(self, read, was, now, problems):
        changed = of_builders(Sources(lambda path: read(path).replace(was, now)))
        assert [one for one in changed if one not in NOT_ASKED_FOR] == problems
