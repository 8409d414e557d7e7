"""vLLM's plug-in: engines that share weights, and take new versions of them."""

from __future__ import annotations

import gc
import importlib
import json
import os
import subprocess
import sys
import threading
import tomllib
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from vllm_plugin import (
    HERE,
    STANDINS,
    fallbacks,
    loader,
    names,
    own_copy,
    parts,
    publish,
    take_away,
)

import gdrpy


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


class TestDroppedEngine:
    def test_gives_its_weights_back(self, engines, broker, folder):
        model = engines.start(engines.config_of(folder, {"name": "model"}))
        assert len(broker.stat("model").holders) == 1
        del model
        gc.collect()
        assert loader().shared == []
        assert broker.stat("model").holders == ()


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
