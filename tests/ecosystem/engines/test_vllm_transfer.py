"""vLLM's plug-in: weights that a trainer hands over."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm_plugin import names

import gdrpy


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
