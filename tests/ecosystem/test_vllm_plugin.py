"""vLLM's plug-in, on the simulated GPU and a stand-in of what it uses of vLLM."""

from __future__ import annotations

import gc
import importlib
import json
import os
import re
import subprocess
import sys
import threading
import time
import tomllib
import weakref
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

import gdrpy
from gdrpy import cuda
from gdrpy.broker import temporary

HERE = Path(__file__).parent
STANDINS = HERE / "standins"
#: What is imported anew for each test, and is gone after it.
OURS = ("vllm", "prometheus_client", "gdrpy.vllm", "vllm_engine")


def take_away() -> dict[str, Any]:
    """Take the modules out of those that are imported."""
    vars(gdrpy).pop("vllm", None)
    names = [one for one in sys.modules if one in OURS or one.startswith(("vllm.", "gdrpy.vllm."))]
    return {name: sys.modules.pop(name) for name in names}


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """vllm_engine.py, with the plug-in registered in the stand-in of vLLM."""
    before = take_away()
    monkeypatch.syspath_prepend(STANDINS)
    monkeypatch.syspath_prepend(HERE)
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


def loader() -> Any:
    return sys.modules["gdrpy.vllm.loader"]


def fallbacks() -> dict[tuple[str, ...], float]:
    return sys.modules["gdrpy.vllm.fallback"]._count.counts


def parts(model: torch.nn.Module, region: gdrpy.Region) -> tuple[set[str], set[str]]:
    """The names of tensors that lie in a region, and of the others."""
    tensors = sys.modules["gdrpy.torch"].tensors_of(model)
    inside = {
        name
        for name, one in tensors.items()
        if region.ptr <= one.data_ptr() < region.ptr + region.nbytes
    }
    return inside, tensors.keys() - inside


def own_copy(engines: Any, folder: str) -> Any:
    """What an engine has that loads by itself."""
    config = engines.config_of(folder)
    config.load_config = engines.LoadConfig(load_format="files")
    return engines.state(engines.start(config))


class TestEngines:
    def test_after_the_first_attach_all_that_it_loaded(self, engines, broker, folder):
        expected = own_copy(engines, folder)
        first, second = (engines.start(engines.config_of(folder)) for _ in range(2))
        assert engines.loads == [folder] * 2  # by itself, and the first one
        assert engines.state(first) == engines.state(second) == expected
        assert (second.gate.factor, second.gate.zeros) == (1.0, 0)  # as before they were loaded
        assert (first.gate.limit, second.gate.limit) == (float("inf"),) * 2
        assert second.head.weight is second.embed.weight
        parameters = {name for name, _ in first.named_parameters(remove_duplicate=False)}
        for one in loader().shared:
            inside, outside = parts(one.model(), one.region)
            assert inside == parameters
            assert outside == {
                "frequencies",
                *(f"{name}.{made}" for name in ("wide", "gate")
                  for made in ("sums", "turned", "same", "workspace")),
            }  # fmt: skip
        second.wide.workspace.fill_(9)
        assert engines.state(first) == expected
        (found,) = broker.list("vllm/model/")
        assert (found.sealed, found.writers, found.readers) == (True, 1, 1)

    def test_in_another_process_attach_too(self, engines, broker, folder):
        first = engines.start(engines.config_of(folder))
        path = os.pathsep.join([str(STANDINS), *sys.path])
        command = [sys.executable, HERE / "vllm_engine.py", folder]
        done = subprocess.run(
            command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, check=True
        )
        assert json.loads(done.stdout) == [engines.state(first), []]

    def test_keep_numbers_of_their_own(self, engines, broker, folder):
        name = {"name": "own"}
        engines.start(engines.config_of(folder, name))
        other = engines.start(engines.config_of(folder, name, rank=3))
        assert (other.wide.rank, other.wide.factor) == (3, 1.5)

    def test_share_tensors_with_large_gaps(self, engines, broker, folder):
        config = {"model_class": engines.Gaps}
        expected = engines.state(engines.start(engines.config_of(folder, **config)))
        second = engines.start(engines.config_of(folder, **config))
        assert (len(engines.loads), fallbacks(), engines.state(second)) == (1, {}, expected)
        assert second.column.stride() == (512,)

    def test_that_start_at_once_end_with_one_region(self, engines, broker, folder, monkeypatch):
        barrier, found = threading.Barrier(2), []
        load = engines.Files.load_weights
        monkeypatch.setattr(
            engines.Files, "load_weights", lambda *words: (load(*words), barrier.wait(60))
        )
        threads = [
            threading.Thread(target=lambda: found.append(engines.start(engines.config_of(folder))))
            for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len({one.region.id for one in loader().shared}) == 1
        assert engines.state(found[0]) == engines.state(found[1])
        assert [one.version for one in broker.list("vllm/")] == [1]

    def test_of_several_ranks_have_a_region_each(self, engines, broker, folder):
        for rank in range(2):
            engines.start(engines.config_of(folder, {"name": "model"}, rank=rank, world=2))
        assert sorted(one.name for one in broker.list()) == ["model/0", "model/1"]

    def test_download_by_the_own_loader(self, engines, broker, folder):
        config = engines.config_of(folder)
        found = sys.modules["vllm.model_executor.model_loader"].get_model_loader(config.load_config)
        found.download_model(config.model_config)
        assert Path(folder, "downloaded").exists()

    @pytest.mark.parametrize(
        ("extra", "words"),
        [
            ({"nmae": "x"}, "Object contains unknown field `nmae`"),
            ({"replace": "yes"}, "Expected `bool`, got `str` - at `$.replace`"),
            ({"name": 5}, "Expected `str | null`, got `int` - at `$.name`"),
            ("x", "Expected `object`, got `str`"),
        ],
    )
    def test_of_another_extra_configuration_are_refused(self, engines, extra, words):
        with pytest.raises(ValueError, match="^load_format=gdrpy: ") as caught:
            engines.start(engines.config_of("none", extra))
        assert str(caught.value) == f"load_format=gdrpy: model_loader_extra_config: {words}"


class TestName:
    @staticmethod
    def of(config: Any, model: Any = None, load_format: str = "auto", prefix: str = "") -> str:
        loader = sys.modules["gdrpy.vllm.loader"]
        options = loader._Options(load_format=load_format)
        given = model or config.model_config
        return loader._name_of(options, config, given, prefix, torch.device("cpu"))

    def test_tells_the_model_and_differs_where_weights_may(self, engines, folder, monkeypatch):
        def name(**changes: Any) -> str:
            return self.of(engines.config_of(folder, **changes))

        usual = name()
        assert usual.rpartition("/")[0] == "vllm/model"
        assert name() == usual == name(data_rank=1)
        changes = {"dtype": torch.float16, "quantization": "fp8", "hidden": 5, "cache": "fp8"}
        changes["kernel"] = "flashinfer"
        names = {usual, *(name(**{key: one}) for key, one in changes.items())}
        names |= {name(experts=True, data_rank=rank) for rank in range(2)}
        config = engines.config_of(folder)
        names.add(self.of(config, load_format="dummy"))
        names.add(self.of(config, prefix="draft."))
        with monkeypatch.context() as other:
            other.setattr(sys.modules["gdrpy.vllm.loader"].vllm, "__version__", "0.26")
            names.add(name())
        with monkeypatch.context() as other:
            other.setattr("gdrpy.vllm.loader.compile_factors", lambda: {"VLLM_USE_X": 1})
            names.add(name())
        with monkeypatch.context() as other:
            other.setattr(gdrpy.cuda, "uuid", lambda _: "another GPU")
            names.add(name())
        os.utime(Path(folder, "model"), (1, 1))
        names.add(name())
        Path(folder, "more").touch()
        names.add(name())
        assert len(names) == 15

    def test_of_a_hubs_model_is_by_its_revision_and_commit(self, engines, tmp_path, monkeypatch):
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
        main = tmp_path / "models--maker--model" / "refs" / "main"
        main.parent.mkdir(parents=True)
        config = engines.config_of("maker/model")
        names = [self.of(config)]
        for commit in ("c0ffee", "decade"):
            main.write_text(commit)
            names.append(self.of(config))
        for config.model_config.revision in ("a", "b"):
            names.append(self.of(config))
        assert [one.rpartition("/")[0] for one in names] == ["vllm/model"] * 5
        assert len({*names}) == 5

    def test_is_the_same_however_the_path_is_spelled(self, engines, folder, monkeypatch):
        monkeypatch.chdir(Path(folder).parent)
        spelled = [folder, f"{folder}/", "model", "./model", "model/../model"]
        assert len({self.of(engines.config_of(one)) for one in spelled}) == 1

    def test_notices_other_files_beside_a_link_to_nothing(self, engines, folder):
        Path(folder, "link").symlink_to("nothing")
        names = [self.of(engines.config_of(folder))]
        os.utime(Path(folder, "model"), (1, 1))
        names.append(self.of(engines.config_of(folder)))
        assert len({*names}) == 2

    @pytest.mark.parametrize("model", ["\N{SNOWMAN}" * 80, "a" * 300, "\udce9"], ids=ascii)
    def test_is_short_enough_for_any_model(self, engines, tmp_path, model):
        name = self.of(engines.config_of(str(tmp_path / model), world=2))
        assert len(name.encode()) <= 255 - len("/draft.host/") - 16

    def test_keeps_a_draft_model_and_ranks_apart(self, engines, folder):
        config, draft = engines.config_of(folder, world=2, rank=1), engines.config_of(folder)
        assert self.of(config).endswith("/1")
        assert self.of(config, draft.model_config).endswith("/draft/1")


class TestFallback:
    @pytest.fixture
    def cases(self, engines: Any, folder: str, tmp_path: Path) -> dict[str, Any]:
        """Configurations whose weights cannot be shared, by the metric's word."""
        other = engines.write_model(tmp_path / "other", hidden=6)
        engines.start(engines.config_of(other, {"name": "other"}, hidden=6))
        loader().shared.clear()
        return {
            "broker": engines.config_of(folder, {"socket": str(tmp_path / "none.sock")}),
            "layout": engines.config_of(folder, {"name": "other"}),
            "model": engines.config_of(folder, model_class=engines.Hiding),
        }

    @pytest.mark.parametrize("kind", ["broker", "layout", "model"])
    def test_loads_a_copy_logs_and_counts(self, engines, broker, cases, folder, kind, caplog):
        config = cases[kind]
        if kind == "model":
            engines.start(engines.config_of(folder, model_class=engines.Hiding))
            loader().shared.clear()
        model = engines.start(config)
        assert engines.state(model) == own_copy(engines, folder)
        assert model.wide is config.compilation_config.static_forward_context["wide"]
        assert (loader().shared, fallbacks()) == ([], {(kind,): 1})
        (line,) = [one for one in caplog.messages if one.endswith("uses memory of its own")]
        words = {
            "broker": "gdrpy: connect: no broker answers at ",
            "layout": "gdrpy: the region's 'frequencies' is (torch.float32, (6,), (1,)), and the",
            "model": "gdrpy: .hidden keeps tensors that vLLM makes while it loads",
        }
        assert line.startswith(words[kind]), line
        assert config.model_config.sleep_mode_backend == "cumem"

    @pytest.mark.parametrize(
        ("kind", "why"),
        [
            ("Sparse", "is sparse, nested or quantized (torch.sparse_coo, torch.float32)"),
            ("Meta", "has no memory (device meta)"),
            ("Pair", "is a TwoTensor, which may have no memory of its own"),
        ],
    )
    def test_is_how_models_load_that_no_region_holds(
        self, engines, broker, folder, kind, why, caplog
    ):
        for _ in range(2):
            made = engines.start(engines.config_of(folder, model_class=getattr(engines, kind)))
            assert made.odd is getattr(engines, kind).odd
        lines = [one for one in caplog.messages if one.endswith("uses memory of its own")]
        assert [one.partition(": 'odd' ")[2].partition(": ")[0] for one in lines] == [why] * 2
        assert (loader().shared, fallbacks(), broker.list()) == ([], {("model",): 2}, [])

    def test_frees_what_it_loaded_in_vain_before_it_loads_again(
        self, engines, broker, folder, caplog
    ):
        made, left = weakref.WeakSet(), []

        class Model(engines.Sparse):
            def __init__(self, **more: Any) -> None:
                left.append(len(made))
                super().__init__(**more)
                made.add(self)

        gc.disable()
        try:
            engines.start(engines.config_of(folder, model_class=Model))
        finally:
            gc.enable()
        assert left == [0, 0]

    def test_takes_no_name_that_is_too_long(self, engines, broker, folder):
        engines.start(engines.config_of(folder, {"name": "n" * 256}))
        assert (loader().shared, fallbacks()) == ([], {("model",): 1})

    def test_takes_no_region_of_the_name_on_another_gpu(
        self, engines, broker, folder, monkeypatch, caplog
    ):
        first = engines.start(engines.config_of(folder, {"name": "model"}))
        monkeypatch.setattr(loader().Loader, "_device", lambda *_: torch.device("cpu", 1))
        second = engines.start(engines.config_of(folder, {"name": "model"}))
        assert engines.state(second) == engines.state(first)
        self.check_one_fell_back(
            caplog, "region 'model' is on simulated GPU 0, and this engine on device 1"
        )

    def test_takes_no_region_of_the_name_that_others_may_write_to(
        self, engines, broker, folder, caplog
    ):
        first = engines.start(engines.config_of(folder, {"name": "model"}))
        packed = sys.modules["gdrpy.vllm.contents"].packed(first, {}, torch.device("cpu"))
        bases, aliases, notes = packed
        broker.put_tensors("model", bases, aliases=aliases, notes=notes).close()
        second = engines.start(engines.config_of(folder, {"name": "model"}))
        assert engines.state(second) == engines.state(first)
        self.check_one_fell_back(
            caplog, "region 'model' is not sealed, so that others may write to it"
        )

    @staticmethod
    def check_one_fell_back(caplog: Any, why: str) -> None:
        assert (len(loader().shared), fallbacks()) == (1, {("region",): 1})
        (line,) = [one for one in caplog.messages if one.endswith("uses memory of its own")]
        assert line == f"gdrpy: {why}; this engine uses memory of its own"

    def test_gives_back_what_was_published_in_vain(self, engines, broker, folder, monkeypatch):
        def share(self: Any, model: torch.nn.Module) -> None:
            raise RuntimeError("no room")

        first = engines.start(engines.config_of(folder, {"name": "held"}))
        monkeypatch.setattr(sys.modules["gdrpy.vllm.contents"].Contents, "share", share)
        for name in ("alone", "held"):
            engines.start(engines.config_of(folder, {"name": name}))
        assert engines.state(first) == own_copy(engines, folder)
        assert (fallbacks(), names(broker)) == ({("model",): 2}, ["held"])
        assert [one.count for one in broker.stat("held").holders] == [1]

    def test_is_refused_under_strict(self, engines, broker, cases, monkeypatch):
        monkeypatch.setenv("GDRPY_STRICT", "1")
        with pytest.raises(gdrpy.BackendUnavailable, match=r"^load_format=gdrpy: the region's .*;"):
            engines.start(cases["layout"])
        assert fallbacks() == {}


def publish(engines: Any, folder: str, seed: float, hidden: int = 4) -> Any:
    """Have an engine publish a new version of the weights of the region "model"."""
    newer = engines.write_model(Path(folder + str(seed)), seed, hidden)
    config = engines.config_of(newer, {"name": "model", "replace": True}, hidden=hidden)
    return engines.start(config)


class TestUpdate:
    def test_takes_a_new_version_at_the_same_addresses(self, engines, broker, folder):
        config = engines.config_of(folder, {"name": "model"})
        first, second = (
            engines.start(config),
            engines.start(engines.config_of(folder, {"name": "model"})),
        )
        places = [one.data_ptr() for one in second.state_dict().values()]
        assert engines.gdrpy.vllm.WorkerExtension().update_shared_weights() == 0
        newer = publish(engines, folder, 2)
        assert engines.state(newer) != engines.state(second)
        assert engines.gdrpy.vllm.WorkerExtension().update_shared_weights() == 2
        assert engines.state(first) == engines.state(second) == engines.state(newer)
        assert [one.data_ptr() for one in second.state_dict().values()] == places
        assert (second.wide.factor, second.wide.workspace.tolist()) == (2.5, [2.5, 2.5])
        assert engines.gdrpy.vllm.WorkerExtension().update_shared_weights() == 0

    def test_is_taken_whatever_its_numbers_are(self, engines, folder):
        contents = sys.modules["gdrpy.vllm.contents"]
        model = engines.Model(vllm_config=engines.config_of(folder))
        before, lengths = contents.numbers_of(model), set()
        for number in (1.0, 1 / 3, float("inf"), True, -(2**63)):
            model.wide.factor = number
            note = contents.packed(model, before, torch.device("cpu"))[2]["gdrpy.vllm"]
            lengths.add(len(note))
        assert len(lengths) == 1  # versions lie alike

    def test_resets_numbers_that_the_old_version_alone_had_set(self, engines, broker, folder):
        engines.write_model(Path(folder), seed=2)
        engine = engines.start(engines.config_of(folder, {"name": "model"}))
        factors = [engine.wide.factor]
        publish(engines, folder, 0.5)
        engines.gdrpy.vllm.WorkerExtension().update_shared_weights()
        assert [*factors, engine.wide.factor] == [2.5, 1.0]

    def test_to_another_layout_leaves_the_old_version(self, engines, broker, folder):
        engine = engines.start(engines.config_of(folder, {"name": "model"}))
        expected = engines.state(engine)
        other = publish(engines, folder, 2, hidden=6)
        with pytest.raises(gdrpy.SizeMismatch, match="of region 'model'"):
            engines.gdrpy.vllm.WorkerExtension().update_shared_weights()
        assert engines.state(engine) == expected
        assert engines.state(other) != expected

    def test_of_two_models_takes_both_or_none(self, engines, broker, folder, tmp_path):
        pair = [engines.start(engines.config_of(folder, {"name": name})) for name in ("model", "b")]
        expected = [engines.state(one) for one in pair]
        publish(engines, folder, 2)
        other = engines.write_model(tmp_path / "other", 3, 6)
        engines.start(engines.config_of(other, {"name": "b", "replace": True}, hidden=6))
        del loader().shared[2:]
        extension = engines.gdrpy.vllm.WorkerExtension()
        with pytest.raises(gdrpy.SizeMismatch, match="of region 'b'"):
            extension.update_shared_weights()
        assert [engines.state(one) for one in pair] == expected
        assert [one.region.version for one in loader().shared] == [1, 1]
        other = engines.write_model(tmp_path / "other", 3)
        newest = engines.start(engines.config_of(other, {"name": "b", "replace": True}))
        del loader().shared[2:]
        assert extension.update_shared_weights() == 2
        assert engines.state(pair[1]) == engines.state(newest)
        assert [one.region.version for one in loader().shared] == [2, 3]

    def test_that_fails_leaves_the_names_of_loaded_numbers(self, engines, broker, folder, tmp_path):
        engines.write_model(Path(folder), 0.5)  # its factor is as before it was loaded
        pair = [engines.start(engines.config_of(folder, {"name": name})) for name in ("model", "b")]
        loaded = [one.loaded.copy() for one in loader().shared]
        publish(engines, folder, 2)
        other = engines.write_model(tmp_path / "other", 3, 6)
        engines.start(engines.config_of(other, {"name": "b", "replace": True}, hidden=6))
        del loader().shared[2:]
        with pytest.raises(gdrpy.SizeMismatch, match="of region 'b'"):
            engines.gdrpy.vllm.WorkerExtension().update_shared_weights()
        assert [one.loaded for one in loader().shared] == loaded
        assert "wide.factor" not in loaded[0]
        assert [one.wide.factor for one in pair] == [1.0, 1.0]

    @pytest.mark.parametrize("failing", ["model", "b"])
    def test_that_fails_attaches_each_that_can_be(
        self, engines, broker, folder, tmp_path, monkeypatch, failing
    ):
        pair = [engines.start(engines.config_of(folder, {"name": name})) for name in ("model", "b")]
        expected = [engines.state(one) for one in pair]
        publish(engines, folder, 2)
        other = engines.write_model(tmp_path / "other", 3, 6)
        engines.start(engines.config_of(other, {"name": "b", "replace": True}, hidden=6))
        del loader().shared[2:]
        attach = gdrpy.Broker.attach_many

        def fail(broker: gdrpy.Broker, regions: Any, **more: Any) -> None:
            if not more and regions[0].name == failing:
                raise gdrpy.OutOfMemory("no room")
            attach(broker, regions, **more)

        with monkeypatch.context() as full:
            full.setattr(gdrpy.Broker, "attach_many", fail)
            with pytest.raises(gdrpy.OutOfMemory, match="no room"):
                engines.gdrpy.vllm.WorkerExtension().update_shared_weights()
        detached = {one.region.name: one.region.detached for one in loader().shared}
        assert detached == {"model": failing == "model", "b": failing == "b"}
        whole = int(failing == "model")
        assert engines.state(pair[whole]) == expected[whole]

    def test_takes_no_version_that_others_may_write_to(self, engines, broker, folder, monkeypatch):
        engine = engines.start(engines.config_of(folder, {"name": "model"}))
        expected, put = engines.state(engine), gdrpy.Broker.put_tensors
        with monkeypatch.context() as unsealed:
            unsealed.setattr(
                gdrpy.Broker, "put_tensors", lambda *a, **more: put(*a, **{**more, "seal": False})
            )
            unsealed.setattr(loader().Loader, "_check_region", lambda *_: None)
            publish(engines, folder, 2)
        with pytest.raises(gdrpy.InvalidRequest, match="version 2 of region 'model' is not sealed"):
            engines.gdrpy.vllm.WorkerExtension().update_shared_weights()
        assert (engines.state(engine), loader().shared[0].region.version) == (expected, 1)


def backend_of(config: Any) -> Any:
    """The sleep mode's backend of an engine."""
    factory = sys.modules["vllm.device_allocator.sleep_mode_backend"].SleepModeBackendFactory
    return factory.create_backend(config.model_config)


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


def names(broker: gdrpy.Broker) -> list[str]:
    """The regions' names, without the stamps of copies."""
    return sorted(re.sub(r"\.host/.*", ".host", str(one.name)) for one in broker.list())


class TestSleep:
    def test_tells_that_graphs_stay_where_vllm_was_to_offload_them(
        self, engines, broker, folder, caplog
    ):
        config = engines.config_of(folder)
        config.model_config.sleep_mode_offload_cudagraph = True
        engines.start(config)
        told = "gdrpy: CUDA graphs stay on the GPU: only cumem offloads them"
        assert caplog.messages.count(told) == 1

    def test_gives_gpu_memory_back_and_brings_the_bytes_again(self, engines, broker, sleeper):
        expected, place = engines.state(sleeper.model), sleeper.region.ptr
        assert names(broker) == ["model", "model.host"]  # kept from the start
        sleeper.backend.suspend(1)
        assert (sleeper.backend.state(), names(broker)) == ("SUSPENDED", ["model.host"])
        sleeper.backend.resume()
        assert (sleeper.backend.state(), names(broker)) == ("RUNNING", ["model", "model.host"])
        assert (engines.state(sleeper.model), sleeper.region.ptr) == (expected, place)
        assert sleeper.asked == [("sleep", ("weights",)), ("wake_up", None)]

    def test_of_an_engine_leaves_what_another_one_uses(self, engines, broker, sleeper, folder):
        expected = engines.state(sleeper.model)
        other = engines.start(engines.config_of(folder, {"name": "model"}))
        awake = loader().shared.pop()  # as in another process
        sleeper.backend.suspend(1)
        assert names(broker) == ["model", "model.host"]
        assert engines.state(other) == expected
        sleeper.backend.resume()
        assert sleeper.region.id == awake.region.id
        assert engines.state(sleeper.model) == expected

    def test_at_level_2_keeps_the_region(self, engines, broker, sleeper):
        expected, number = engines.state(sleeper.model), sleeper.region.id
        sleeper.backend.suspend(2)
        assert sleeper.region.detached
        assert names(broker) == ["model", "model.host"]
        sleeper.backend.resume()
        assert (engines.state(sleeper.model), sleeper.region.id) == (expected, number)
        assert sleeper.asked == [("sleep", ()), ("wake_up", None)]

    def test_wakes_weights_by_their_tag_alone(self, engines, broker, sleeper):
        expected = engines.state(sleeper.model)
        sleeper.backend.suspend(1)
        sleeper.backend.resume(["kv_cache"])
        assert names(broker) == ["model.host"]
        sleeper.backend.resume(["weights"])
        assert engines.state(sleeper.model) == expected
        assert sleeper.asked[1:] == [("wake_up", ["kv_cache"]), ("wake_up", ["weights"])]

    def test_at_level_2_after_level_1_and_an_update_wakes(self, engines, sleeper, folder):
        sleeper.backend.suspend(1)
        sleeper.backend.resume()
        newer = publish(engines, folder, 2)
        loader().shared.pop()  # as in another process
        engines.gdrpy.vllm.WorkerExtension().update_shared_weights()
        sleeper.backend.suspend(2)
        sleeper.backend.resume()
        assert engines.state(sleeper.model) == engines.state(newer)

    def test_takes_a_new_version_if_its_own_is_gone(self, engines, sleeper, folder):
        sleeper.backend.suspend(1)
        newer = publish(engines, folder, 2)
        loader().shared.pop()
        assert engines.gdrpy.vllm.WorkerExtension().update_shared_weights() == 0
        sleeper.backend.resume()
        assert engines.state(sleeper.model) == engines.state(newer)
        assert sleeper.model.wide.factor == 2.5

    def test_at_level_2_keeps_its_version_of_all(self, engines, broker, sleeper, folder):
        expected = engines.state(sleeper.model)
        sleeper.backend.suspend(2)
        with broker.get("model") as other:
            broker.sleep_many([other])
        assert names(broker) == ["model", "model.host"]
        newer = publish(engines, folder, 2)
        sleeper.backend.resume()
        assert engines.state(sleeper.model) == expected != engines.state(newer)
        assert engines.gdrpy.vllm.WorkerExtension().update_shared_weights() == 1
        assert engines.state(sleeper.model) == engines.state(newer)

    def test_wakes_with_what_others_took_and_put_to_sleep(self, engines, broker, sleeper, folder):
        sleeper.backend.suspend(1)
        model = publish(engines, folder, 2)
        newer, one = engines.state(model), loader().shared.pop()
        one.broker.sleep_many([one.region])
        assert names(broker) == ["model.host"]
        sleeper.backend.resume()
        assert engines.state(sleeper.model) == newer

    def test_takes_a_new_version_again_after_it_failed(self, engines, sleeper, folder, monkeypatch):
        sleeper.backend.suspend(1)
        newer = publish(engines, folder, 2)
        loader().shared.pop()

        def refresh(*_: Any) -> None:
            raise MemoryError("no room")

        with monkeypatch.context() as failing:
            failing.setattr(sys.modules["gdrpy.vllm.contents"].Contents, "refresh", refresh)
            with pytest.raises(MemoryError, match="no room"):
                sleeper.backend.resume()
        assert sleeper.region.detached
        sleeper.backend.resume()
        assert engines.state(sleeper.model) == engines.state(newer)

    @pytest.mark.parametrize("level", [1, 2])
    def test_of_two_models_is_of_both_or_none(
        self, engines, broker, sleeper, folder, monkeypatch, level
    ):
        other = engines.start(engines.config_of(folder, {"name": "other"}, sleep=True))
        expected = [engines.state(one) for one in (sleeper.model, other)]
        sleep = sys.modules["gdrpy.vllm.sleep"]
        detach_many = sleep.detach_many

        def busy(regions: Any) -> None:
            if regions[0].name == "other":
                raise BufferError("busy")
            detach_many(regions)

        with monkeypatch.context() as failing:
            if level == 1:
                broker.delete("other")
            else:
                failing.setattr(sleep, "detach_many", busy)
            with pytest.raises((gdrpy.Gone, BufferError)):
                sleeper.backend.suspend(level)
        assert [one.region.detached for one in loader().shared] == [False, False]
        assert [engines.state(one) for one in (sleeper.model, other)] == expected
        assert len(broker.stat("model").holders) == 1
        assert (sleeper.backend._held, sleeper.asked) == ([], [])

    def test_that_discards_weights_leaves_them_to_the_others(self, sleeper, broker):
        expected, address = broker.stat("model"), sleeper.region.ptr
        sleeper.backend.discard(("kv_cache",))
        assert not sleeper.region.detached
        sleeper.backend.discard(("weights",))
        assert (sleeper.region.detached, broker.stat("model").region) == (True, expected.region)
        sleeper.backend.resume(["weights"])
        assert (sleeper.region.ptr, len(broker.stat("model").holders)) == (address, 1)
        assert [call for call in sleeper.asked if call[0] == "discard"] == [
            ("discard", ("kv_cache",)),
            ("discard", ("weights",)),
        ]


MIB = 1 << 20


def put(cache: Any, content: bytes) -> None:
    """Write into a KV cache, as a kernel does."""
    with cuda.context(0):
        cuda.call("cuMemcpyHtoD", cache.region.ptr, content, len(content))


def got(cache: Any, nbytes: int) -> bytes:
    found = bytearray(nbytes)
    with cuda.context(0):
        cuda.call("cuMemcpyDtoH", found, cache.region.ptr, nbytes)
    return bytes(found)


def used(cache: Any) -> int:
    """Bytes of regions, as the broker knows after all that the cache's engine told it."""
    return cache._broker.status()["used"]["0"]


class TestCache:
    """A KV cache in a region. Its Cache is tried without torch's pool, which real GPUs have."""

    @pytest.fixture
    def make(self, engines, broker, socket) -> Iterator[Any]:
        from gdrpy.vllm import kv_cache

        made = []

        def make() -> Any:
            made.append(kv_cache.Cache(gdrpy.connect(socket), "kv", 4 * MIB, 0))
            return made[-1]

        yield make
        for cache in made:
            cache.close()

    def test_lies_in_the_region_of_its_name(self, make, broker):
        cache = make()
        put(cache, b"blocks")
        with broker.get("kv") as region:
            assert (cache.named, region.read(6), region.nbytes) == (True, b"blocks", 4 * MIB)

    def test_of_a_second_engine_has_memory_of_its_own_meanwhile(self, make, broker):
        first, second = make(), make()
        put(first, b"first")
        put(second, b"second")
        assert (got(first, 5), second.named) == (b"first", False)
        assert used(second) == 8 * MIB
        second.detach()
        assert used(second) == 4 * MIB

    def test_is_taken_over_as_it_is_by_an_engine_that_wakes(self, make, broker):
        first, second = make(), make()
        address = second.region.ptr
        second.detach()
        put(first, b"blocks of the dead")
        first._broker.close()  # as when its process is gone
        second.attach()
        assert (second.named, second.region.ptr, got(second, 6)) == (True, address, b"blocks")
        assert used(second) == 4 * MIB

    def test_is_given_back_by_an_engine_that_sleeps(self, make, broker):
        cache = make()
        address = cache.region.ptr
        cache.detach()
        cache.detach()
        assert (used(cache), names(broker)) == (0, [])
        cache.attach()
        cache.attach()
        assert (cache.named, cache.region.ptr, names(broker)) == (True, address, ["kv"])

    def test_that_was_deleted_meanwhile_is_given_back_too(self, make, broker):
        cache = make()
        broker.delete("kv")
        cache.detach()
        assert used(cache) == 0

    def test_waits_for_a_dead_engine_that_still_has_it(self, make, broker, engines):
        first, second = make(), make()
        second.detach()
        leaves = threading.Timer(0.1, first._broker.close)
        leaves.start()
        second.attach(patience=20)
        leaves.join()
        assert second.named

    def test_is_taken_over_whoever_reads_it(self, make, broker):
        first, second = make(), make()
        second.detach()
        put(first, b"blocks of the dead")
        with broker.get("kv", gpu=False, readonly=True):
            first._broker.close()
            second.attach()
            assert (second.named, got(second, 6)) == (True, b"blocks")

    def test_that_is_sealed_is_not_taken_over(self, make, broker):
        cache = make()
        cache.detach()
        with broker.allocate("kv", 4 * MIB, gpu=False) as region:
            region.seal()
            cache.attach()
        assert not cache.named

    def test_leaves_a_sealed_region_of_its_name_as_it_is(self, make, broker):
        with broker.allocate("kv", 4 * MIB, gpu=False) as region:
            region.seal()
        assert not make().named
        assert names(broker) == ["kv"]

    def test_leaves_no_region_that_two_engines_both_left(self, make, broker, monkeypatch):
        info = gdrpy.BrokerRegion.info
        monkeypatch.setattr(
            gdrpy.BrokerRegion, "info", lambda one: msgspec.structs.replace(info(one), writers=2)
        )
        assert not make().named
        assert names(broker) == []

    def test_goes_to_one_of_two_that_wake_in_step(self, make, broker, monkeypatch):
        kv_cache = sys.modules["gdrpy.vllm.kv_cache"]
        pair = [make(), make()]
        for cache in pair:
            cache.detach()
        step, both, pauses = threading.Barrier(2), [True], []
        allocate = kv_cache.Cache._allocate

        def in_step(cache: Any, name: str | None) -> Any:
            lease = allocate(cache, name)
            if name and both[0]:
                with suppress(threading.BrokenBarrierError):
                    step.wait(timeout=5)  # both have a lease
            return lease

        def pause(seconds: float) -> None:
            pauses.append(seconds)
            time.sleep(seconds)
            both[0] = False

        monkeypatch.setattr(kv_cache.Cache, "_allocate", in_step)
        clock = SimpleNamespace(monotonic=time.monotonic, sleep=pause)
        monkeypatch.setattr(kv_cache, "time", clock)
        threads = [threading.Thread(target=one.attach, args=(0.5,)) for one in pair]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(one.named for one in pair) == [False, True]
        assert len(set(pauses)) == len(pauses)  # none of them in step again

    @pytest.mark.parametrize("kind", ["size", "user"])
    def test_that_it_cannot_have_leaves_an_engine_that_wakes_its_own_memory(
        self, make, broker, monkeypatch, caplog, kind
    ):
        cache = make()
        cache.detach()
        if kind == "user":
            info = gdrpy.BrokerRegion.info
            monkeypatch.setattr(
                gdrpy.BrokerRegion, "info", lambda one: msgspec.structs.replace(info(one), uid=77)
            )
        with broker.allocate("kv", (8 if kind == "size" else 4) * MIB, gpu=False, cpu=False):
            pass
        cache.attach()
        put(cache, b"blocks")
        assert (cache.named, got(cache, 6), names(broker)) == (False, b"blocks", ["kv"])
        (record,) = [one for one in caplog.records if one.levelname == "WARNING"]
        reason = {
            "size": "allocate: region 'kv' exists with 8388608 bytes on GPU 0, and 4194304 bytes "
            "on GPU 0 were asked for: delete it first, or take another name",
            "user": f"region 'kv' is that of user 77, and not of {broker.status()['uid']}: choose "
            "another name for the KV cache",
        }[kind]
        assert record.getMessage() == f"gdrpy: {reason}; this KV cache uses its own memory"
        monkeypatch.undo()
        assert len(broker.stat("kv").holders) == 0

    def test_gives_its_lease_back_if_it_cannot_be_deleted(self, make, broker, monkeypatch):
        cache = make()
        put(cache, b"blocks")

        def fail() -> None:
            raise gdrpy.BrokerUnavailable("no broker")

        monkeypatch.setattr(cache._lease, "delete", fail)
        with pytest.raises(gdrpy.BrokerUnavailable):
            cache.detach()
        assert (cache.named, cache.region.detached, used(cache)) == (False, True, 4 * MIB)
        assert broker.stat("kv").holders == ()
        cache.attach()
        assert (cache.named, got(cache, 6)) == (True, b"blocks")

    def test_is_given_back_once_the_gpu_is_done(self, make, broker, monkeypatch):
        kv_cache = sys.modules["gdrpy.vllm.kv_cache"]
        cache, wait = make(), kv_cache.wait_for_work
        writers = []

        def waiting(call: str, regions: Any) -> None:
            writers.append((regions == [cache.region], broker.stat("kv").writers))
            wait(call, regions)

        monkeypatch.setattr(kv_cache, "wait_for_work", waiting)
        cache.close()
        assert (writers, broker.stat("kv").writers) == ([(True, 1)], 0)

    def test_is_kept_if_cuda_cannot_tell_that_the_gpu_is_done(self, make, broker, monkeypatch):
        kv_cache = sys.modules["gdrpy.vllm.kv_cache"]
        cache = make()
        kv_cache.caches.append(cache)

        def capturing(call: str, regions: Any) -> None:
            raise BufferError("a graph is captured")

        with monkeypatch.context() as busy:
            busy.setattr(kv_cache, "wait_for_work", capturing)
            kv_cache.forget(cache)
        assert (kv_cache.caches, kv_cache._kept, broker.stat("kv").writers) == ([], [cache], 1)

    def test_is_not_given_back_before_the_process_ends(self, engines, broker, folder, socket):
        code = (
            "import atexit, sys\n"
            "import gdrpy\n"
            "broker = gdrpy.connect()\n"
            "atexit.register(lambda: print(broker.stat('kv').writers))\n"  # the last to be called
            f"sys.path[:0] = {[str(HERE), str(STANDINS)]!r}\n"
            "import vllm_engine as engines\n"
            "engines.gdrpy.vllm.register()\n"
            "config = engines.config_of(sys.argv[1], {'kv_cache': 'kv'}, sleep=True, "
            f"cache_nbytes={MIB})\n"
            "model = engines.start(config)\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, folder], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
        until = time.monotonic() + 20
        while broker.stat("kv").writers and time.monotonic() < until:
            time.sleep(0.01)
        assert broker.stat("kv").writers == 0

    def test_of_another_size_is_refused(self, make, broker):
        broker.allocate("kv", 100, gpu=False).close()
        with pytest.raises(gdrpy.SizeMismatch):
            make()
        assert broker.status()["used"]["0"] == 2 * MIB

    def test_is_what_vllm_makes_its_cache_in(self, engines, broker, folder, monkeypatch):
        module = importlib.import_module("vllm.device_allocator")
        allocator, calls = module.get_mem_allocator_instance(), module.calls
        monkeypatch.setattr(
            "gdrpy.vllm.kv_cache.Pool", lambda region: SimpleNamespace(use=lambda: region)
        )
        config = engines.config_of(folder, {"kv_cache": "kv"}, sleep=True, cache_nbytes=MIB)
        model = engines.start(config)
        kv_cache = sys.modules["gdrpy.vllm.kv_cache"]
        (cache,) = kv_cache.caches
        assert allocator.use_memory_pool("kv_cache") is cache.region
        allocator.use_memory_pool("weights")
        assert calls == [("use_memory_pool", "weights")]
        assert cache.region.nbytes == (1 + 128 + 2 * 2) * MIB
        backend = backend_of(config)
        backend.suspend(level=1)
        assert (cache.region.detached, "kv" in names(broker)) == (True, False)
        backend.resume(["weights"])
        assert cache.region.detached
        backend.resume(["kv_cache"])
        assert (cache.region.detached, cache.named) == (False, True)
        assert fallbacks() == {}
        del model
        gc.collect()
        assert (kv_cache.caches, broker.stat("kv").holders) == ([], ())
        assert cache.region.closed
        allocator.use_memory_pool("kv_cache")  # of the next engine
        assert calls[-1] == ("use_memory_pool", "kv_cache")

    def test_of_the_next_engine_in_the_process_is_in_its_own_region(
        self, engines, broker, folder, monkeypatch
    ):
        allocator = importlib.import_module("vllm.device_allocator").get_mem_allocator_instance()
        monkeypatch.setattr(
            "gdrpy.vllm.kv_cache.Pool", lambda region: SimpleNamespace(use=lambda: region)
        )
        caches = sys.modules["gdrpy.vllm.kv_cache"].caches
        for name in ("kv", "other"):
            config = engines.config_of(folder, {"kv_cache": name}, sleep=True, cache_nbytes=MIB)
            model = engines.start(config)
            hook = allocator.use_memory_pool
            assert hook("kv_cache") is caches[-1].region
            assert [one._name for one in caches] == [name]
            del model
            gc.collect()
        assert allocator.use_memory_pool is hook  # it is there once
        assert hook.__closure__[0].cell_contents.__self__ is allocator

    def test_of_another_size_is_vllms_own_and_leaves_no_connection(
        self, engines, broker, folder, monkeypatch
    ):
        made, connect = [], loader().connect

        def kept(socket: str | None) -> gdrpy.Broker:
            made.append(connect(socket))
            return made[-1]

        monkeypatch.setattr(loader(), "connect", kept)
        with broker.allocate("kv", MIB, gpu=False):
            config = engines.config_of(folder, {"kv_cache": "kv"}, sleep=True, cache_nbytes=MIB)
            model = engines.start(config)
        assert [one.closed for one in made] == [False, True]  # of the weights, of the cache
        assert fallbacks() == {("broker",): 1.0}
        del model

    @pytest.mark.parametrize("lacking", [{"sleep": True}, {"cache_nbytes": MIB}])
    def test_that_vllm_would_not_ask_for_is_vllms_own(self, engines, broker, folder, lacking):
        model = engines.start(engines.config_of(folder, {"kv_cache": "kv"}, **lacking))
        assert sys.modules["gdrpy.vllm.kv_cache"].caches == []
        assert fallbacks() == {("kv_cache",): 1.0}
        assert len(loader().shared) == 1
        del model


class TestDroppedEngine:
    def test_gives_its_weights_back(self, engines, broker, folder):
        model = engines.start(engines.config_of(folder, {"name": "model"}))
        assert len(broker.stat("model").holders) == 1
        del model
        gc.collect()
        assert loader().shared == []
        assert broker.stat("model").holders == ()


@pytest.fixture
def transfer(engines: Any, folder: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The weight transfer engine of an engine that has weights of its own."""
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda: None)  # CPUs have none
    config = engines.config_of(folder)
    model = engines.Model(vllm_config=config)
    factory = sys.modules["vllm.distributed.weight_transfer.factory"].WeightTransferEngineFactory
    wanted = SimpleNamespace(backend="gdrpy")
    return factory.create_engine(wanted, config, torch.device("cpu"), model)


class TestTransfer:
    def test_loads_a_trainers_tensors(self, engines, broker, transfer):
        trained = {"embed.weight": torch.randn(7, 4), "wide.weight": torch.randn(4, 3).t()}

        def send(update: dict[str, Any]) -> None:
            transfer.start_weight_update()
            transfer.update_weights(update)
            transfer.finish_weight_update()

        transfer.init_transfer_engine(transfer.init_info_cls())
        transfer.trainer_send_weights(iter(trained.items()), {"name": "step", "send": send})
        assert torch.equal(transfer.model.head.weight, trained["embed.weight"])
        assert torch.equal(transfer.model.wide.weight, trained["wide.weight"])
        calls = sys.modules["vllm.model_executor.model_loader.reload"].calls
        assert calls == [("initialize", transfer.model), ("finalize", transfer.model)]
        assert names(broker) == []
        transfer.shutdown()

    def test_deletes_the_region_if_engines_fail(self, broker, transfer):
        def send(update: dict[str, Any]) -> None:
            raise RuntimeError(f"no engine takes {update}")

        with pytest.raises(RuntimeError, match="no engine takes {'name': 'step'}"):
            transfer.trainer_send_weights(
                iter([("a", torch.ones(1))]), {"name": "step", "send": send}
            )
        assert names(broker) == []

    def test_leaves_another_region_of_the_name_alone(self, broker, transfer):
        broker.put_tensors("step", {"a": [7.0]}).close()
        with pytest.raises(gdrpy.InvalidRequest) as caught:
            transfer.trainer_send_weights(
                iter([("a", torch.ones(1))]), {"name": "step", "send": lambda _: None}
            )
        assert str(caught.value) == (
            "trainer_send_weights: there is a region 'step' already: choose another name, or "
            "delete it"
        )
        assert broker.tensors("step")["a"].numpy().tolist() == [7]

    def test_leaves_a_region_of_the_name_without_tensors_alone(self, broker, transfer):
        broker.put("step", b"other").close()
        with pytest.raises(gdrpy.InvalidRequest, match="there is a region 'step' already: choose"):
            transfer.trainer_send_weights(
                iter([("a", torch.ones(1))]), {"name": "step", "send": lambda _: None}
            )
        assert broker.get("step").read(5) == b"other"

    def test_refuses_tensors_without_memory(self, broker, transfer):
        with pytest.raises(ValueError, match="'a' has no memory"):
            transfer.trainer_send_weights(
                iter([("a", torch.ones(1, device="meta"))]), {"name": "step", "send": print}
            )
        assert names(broker) == []

    def test_leaves_what_others_publish_meanwhile(self, broker, transfer):
        def send(update: dict[str, Any]) -> None:
            broker.put_tensors("step", {"a": [7.0]}).close()

        transfer.trainer_send_weights(iter([("a", torch.ones(1))]), {"name": "step", "send": send})
        assert broker.tensors("step")["a"].numpy().tolist() == [7]

    def test_is_refused_where_weights_are_shared(self, engines, broker, transfer, folder):
        kept = engines.start(engines.config_of(folder))
        with pytest.raises(gdrpy.InvalidRequest, match="^start_weight_update: this engine's weig"):
            transfer.start_weight_update()
        del kept


class TestPlugin:
    def test_registers_all_three_once(self, engines):
        loaders = sys.modules["vllm.model_executor.model_loader"]._LOADERS
        assert loaders["gdrpy"] is loader().Loader
        sleep = sys.modules["vllm.device_allocator.sleep_mode_backend"].SleepModeBackendFactory
        transfer = sys.modules["vllm.distributed.weight_transfer.factory"]
        assert sleep._registry["gdrpy"] == ("gdrpy.vllm.sleep", "Backend")
        made = transfer.WeightTransferEngineFactory._registry["gdrpy"]
        assert made == ("gdrpy.vllm.transfer", "Engine")
        with pytest.raises(ValueError, match="there already"):
            engines.gdrpy.vllm.register()

    def test_of_an_older_vllm_says_what_it_needs(self, engines, monkeypatch):
        take_away()
        monkeypatch.setitem(sys.modules, "vllm.device_allocator.sleep_mode_backend", None)
        wanted = r"needs 0\.25 or newer, and this is 0\.25\.1, which lacks .*sleep_mode_backend"
        with pytest.raises(ImportError, match=wanted):
            importlib.import_module("gdrpy.vllm")

    def test_is_what_the_packages_entry_point_names(self, engines, checkout):
        project = tomllib.loads((checkout / "pyproject.toml").read_text())["project"]
        (value,) = project["entry-points"]["vllm.general_plugins"].values()
        module, name = value.split(":")
        assert getattr(importlib.import_module(module), name) is engines.gdrpy.vllm.register

    def test_is_gone_after_its_tests(self):
        assert not {"vllm", "gdrpy.vllm", "vllm_engine"} & sys.modules.keys()
        assert str(STANDINS) not in sys.path
