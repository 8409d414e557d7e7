"""vLLM's plug-in: engines that sleep and wake."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from vllm_plugin import loader, names, publish

import gdrpy


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
