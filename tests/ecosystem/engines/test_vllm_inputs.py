"""vLLM's plug-in: inputs that the CPU stores, in the genuine buffers and runner of vLLM on PyPI."""

from __future__ import annotations

import ast
import gc
import importlib
import sys
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from vllm_plugin import STANDINS, take_away
from vllm_sources import Wheel, reader

import gdrpy
from gdrpy import cuda

Read = Callable[[str], str]
UTILS, TABLE, RUNNER, NEWER_RUNNER = (
    "vllm/v1/utils.py",
    "vllm/v1/worker/block_table.py",
    "vllm/v1/worker/gpu_model_runner.py",
    "vllm/v1/worker/gpu/model_runner.py",
)
#: The releases of which the documentation says what they copy.
NAMED = ["0.25.1", "0.33.0"]
CPU = torch.device("cpu")
#: What the runner has for other models and settings.
ABSENT = (
    "uses_mrope",
    "enable_prompt_embeds",
    "num_accepted_tokens_event",
    "mamba_prev_last_scheduled_idx",
    "use_async_spec_decode",
    "lora_config",
    "speculative_config",
    "_pp_recv_work",
)
#: Sequences, tokens of a step, and blocks of a sequence, at most.
SEQUENCES, TOKENS, BLOCKS = 8, 32, 4

#: What the V1 runner copies by its buffers in a step of decoding.
COPIED = [
    "self.input_batch.block_table.commit_block_table",
    "self.query_start_loc.copy_to_gpu",
    "self.discard_request_mask.copy_to_gpu",
    "self.req_indices.copy_to_gpu",
    "self.query_pos.copy_to_gpu",
    "self.num_scheduled_tokens.copy_to_gpu",
]
#: And under conditions: hybrid models, speculative decoding.
SOMETIMES = [
    "self.num_accepted_tokens.copy_to_gpu",
    "self.prev_positions.copy_to_gpu",
    "self.prev_num_draft_tokens.copy_to_gpu",
    "self.num_decode_draft_tokens.copy_to_gpu",
]


@pytest.fixture(scope="module", params=["0.25.1", "newest"])
def read(request: pytest.FixtureRequest, index: dict[str, Wheel]) -> Read:
    return reader(index[request.param])


@pytest.fixture
def utils(read: Read, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """vllm.v1.utils, of which the buffers are genuine and the rest is absent."""
    before = take_away()
    monkeypatch.syspath_prepend(STANDINS)
    module = ModuleType("vllm.v1.utils")
    module.CpuGpuBuffer = genuine(read, UTILS, "CpuGpuBuffer", PIN_MEMORY=False)
    sys.modules |= {"vllm.v1": ModuleType("vllm.v1"), "vllm.v1.utils": module}
    yield module
    take_away()
    sys.modules.update(before)


@pytest.fixture
def plugin(utils: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The plug-in, registered with its setting."""
    monkeypatch.setenv("GDRPY_STORE_INPUTS", "1")
    importlib.import_module("gdrpy.vllm").register()
    return gdrpy.vllm.inputs


@pytest.fixture
def busy(plugin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream always has work."""
    monkeypatch.setattr(plugin, "_idle", lambda gpu: False)


def genuine(read: Read, path: str, name: str, *methods: str, **names: Any) -> Any:
    """A class of vLLM's, with some of its methods or all, as its module would make it."""
    (found,) = (one for one in ast.parse(read(path)).body if getattr(one, "name", "") == name)
    (later,) = ast.parse("from __future__ import annotations").body
    if methods:
        found.body = [one for one in found.body if getattr(one, "name", "") in methods]
        assert len(found.body) == len(methods), f"{path} lacks some of {methods}"
        found.bases = []
    # As in its module, annotations are not evaluated: they name what is not there.
    code = compile(ast.Module([later, found], []), path, "exec", dont_inherit=True)
    scope = {"torch": torch, "np": np, **names}
    exec(code, scope)
    return scope[name]


def calls(read: Read, path: str, name: str, *of: str) -> list[tuple[str, list[str]]]:
    """The calls of functions with these last names in a method: what is called, and by what."""
    (found,) = (
        one
        for one in ast.walk(ast.parse(read(path)))
        if isinstance(one, ast.FunctionDef) and one.name == name
    )
    every = sorted(
        (one for one in ast.walk(found) if isinstance(one, ast.Call)), key=lambda one: one.lineno
    )
    return [
        (ast.unparse(one.func), [ast.unparse(each) for each in one.args])
        for one in every
        if ast.unparse(one.func).rpartition(".")[2] in of
    ]


def free() -> int:
    """Bytes of GPU memory."""
    with cuda.context(0):
        return int(cuda.call("cuMemGetInfo")[0])


class TestBuffer:
    @pytest.fixture
    def buffer(self, plugin: Any, utils: ModuleType) -> Any:
        return utils.CpuGpuBuffer(3, 4, dtype=torch.int32, device=CPU)

    def test_lies_in_a_region_with_vllms_shape_type_and_zeros(self, buffer):
        gpu = buffer.gpu
        assert (gpu.shape, gpu.dtype, gpu.stride()) == ((3, 4), torch.int32, (4, 1))
        assert gpu.tolist() == [[0] * 4] * 3
        assert gpu.data_ptr() % 256 == 0
        assert not gpu.is_inference()

    def test_is_none_of_inference_when_it_is_made_there(self, plugin, utils):
        with torch.inference_mode():
            buffer = utils.CpuGpuBuffer(2, dtype=torch.int64, device=CPU)
        assert not buffer.gpu.is_inference()

    @pytest.mark.parametrize("rows", [None, 3, 2, 1, -1])
    def test_stores_the_rows_that_vllm_would_copy(self, buffer, plugin, rows):
        buffer.np[:] = np.arange(1, 13).reshape(3, 4)
        given = buffer.copy_to_gpu(rows)
        expected = buffer.np[:rows].tolist()
        assert given.tolist() == expected
        assert buffer.gpu.tolist() == expected + [[0] * 4] * (3 - len(expected))
        assert given.data_ptr() == buffer.gpu.data_ptr()
        assert plugin.counts == {"stored": 1, "queued": 0}

    def test_keeps_its_address(self, buffer):
        before = buffer.gpu.data_ptr()
        buffer.copy_to_gpu()
        assert buffer.gpu.data_ptr() == before

    def test_stores_truth_values(self, plugin, utils):
        buffer = utils.CpuGpuBuffer(4, dtype=torch.bool, device=CPU)
        buffer.np[1:3] = True
        assert buffer.copy_to_gpu(2).tolist() == [False, True]
        assert buffer.gpu.tolist() == [False, True, False, False]

    def test_is_copied_by_vllm_while_the_stream_has_work(self, buffer, plugin, busy):
        buffer.np[:] = 7
        assert buffer.copy_to_gpu(2).tolist() == [[7] * 4] * 2
        assert buffer.gpu.tolist() == [[7] * 4] * 2 + [[0] * 4]
        assert plugin.counts == {"stored": 0, "queued": 1}

    def test_is_copied_by_vllm_when_it_is_large(self, plugin, utils):
        buffer = utils.CpuGpuBuffer(2, 64 << 10, dtype=torch.uint8, device=CPU)
        buffer.np[:] = 3
        buffer.copy_to_gpu()
        assert plugin.counts == {"stored": 0, "queued": 1}
        buffer.copy_to_gpu(1)
        assert plugin.counts == {"stored": 1, "queued": 1}
        assert buffer.gpu.min() == 3

    def test_is_copied_by_vllm_after_its_tensor_was_replaced(self, buffer, plugin):
        buffer.gpu = torch.zeros(3, 4, dtype=torch.int32)
        buffer.np[:] = 5
        buffer.copy_to_gpu()
        assert buffer.gpu.min() == 5
        assert plugin.counts == {"stored": 0, "queued": 1}

    def test_without_numpy_is_left_to_vllm(self, plugin, utils):
        buffer = utils.CpuGpuBuffer(2, dtype=torch.bfloat16, device=CPU, with_numpy=False)
        buffer.cpu.fill_(2)
        assert buffer.copy_to_gpu().tolist() == [2, 2]
        assert plugin.counts == {"stored": 0, "queued": 1}

    def test_raises_what_vllm_raises(self, plugin, utils):
        with pytest.raises(ValueError, match="Bfloat16 torch tensors"):
            utils.CpuGpuBuffer(2, dtype=torch.bfloat16, device=CPU)

    def test_that_was_made_before_is_left_to_vllm(self, utils, monkeypatch):
        buffer = utils.CpuGpuBuffer(2, dtype=torch.int32, device=CPU)
        monkeypatch.setenv("GDRPY_STORE_INPUTS", "1")
        importlib.import_module("gdrpy.vllm").register()
        buffer.np[:] = 4
        assert buffer.copy_to_gpu().tolist() == [4, 4]
        assert gdrpy.vllm.inputs.counts == {"stored": 0, "queued": 1}

    def test_gives_its_memory_back(self, plugin, utils):
        before = free()
        buffer = utils.CpuGpuBuffer(2, dtype=torch.int32, device=CPU)
        assert free() < before
        del buffer
        gc.collect()
        assert free() == before


class TestStream:
    """What is asked of the stream of a copy, before the CPU stores instead."""

    @pytest.fixture
    def idle(self, plugin: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., bool]:
        def idle(device: int = 0, capturing: bool = False, done: bool = True) -> bool:
            def query() -> bool:
                assert not capturing, "the query ended the capture"
                return done

            monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
            monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing)
            stream = SimpleNamespace(query=query)
            monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
            tensor = SimpleNamespace(is_cuda=True, device=torch.device("cuda", device))
            return plugin._idle(tensor)

        return idle

    def test_without_work_lets_the_cpu_store(self, idle):
        assert idle() is True

    def test_with_work_left_does_not(self, idle):
        assert idle(done=False) is False

    def test_that_is_captured_is_not_asked(self, idle):
        assert idle(capturing=True) is False

    def test_of_another_device_is_not_asked(self, idle):
        assert idle(device=1) is False


class TestSetting:
    @pytest.mark.parametrize("value", [None, "0", ""])
    def test_leaves_vllm_alone_without_it(self, utils, monkeypatch, value):
        if value is not None:
            monkeypatch.setenv("GDRPY_STORE_INPUTS", value)
        before = dict(vars(utils.CpuGpuBuffer))
        importlib.import_module("gdrpy.vllm").register()
        assert dict(vars(utils.CpuGpuBuffer)) == before

    def test_wraps_vllms_methods_once(self, plugin, utils):
        before = dict(vars(utils.CpuGpuBuffer))
        plugin.install()
        assert dict(vars(utils.CpuGpuBuffer)) == before
        assert not hasattr(utils.CpuGpuBuffer.copy_to_gpu.__wrapped__, "__wrapped__")


class Table:
    """A block table whose slots a kernel computes, which is not run here."""

    def __init__(self, table: Any) -> None:
        self.table = table
        self.commit_block_table = table.commit_block_table

    def compute_slot_mapping(self, *_: Any) -> None:
        pass


@pytest.mark.parametrize("read", NAMED, indirect=True)
class TestRunner:
    """The V1 runner's own preparation of a step, on tensors of the simulated GPU."""

    @pytest.fixture
    def runner(self, read: Read, plugin: Any, utils: ModuleType) -> Any:
        methods = ("_prepare_inputs", "_prepare_input_ids", "_compute_prev_positions")
        methods += ("_get_cumsum_and_arange", "_make_buffer")
        names = {"CpuGpuBuffer": utils.CpuGpuBuffer, "PIN_MEMORY": False}
        runner = genuine(read, RUNNER, "GPUModelRunner", *methods, **names)()
        runner.device = CPU
        vars(runner).update(
            dict.fromkeys(ABSENT),
            uses_xdrope_dim=0,
            prev_num_spec_tokens=0,
            arange_np=np.arange(TOKENS),
            requests={},
            optimistic_seq_lens_cpu=torch.zeros(SEQUENCES, dtype=torch.int32),
            positions=torch.zeros(TOKENS, dtype=torch.int64),
            seq_lens=torch.zeros(SEQUENCES, dtype=torch.int32),
            num_computed_tokens=torch.zeros(SEQUENCES, dtype=torch.int32),
        )
        for name, rows, dtype in (
            ("input_ids", TOKENS, torch.int32),
            ("query_start_loc", SEQUENCES + 1, torch.int32),
            ("req_indices", TOKENS, torch.int64),
            ("query_pos", TOKENS, torch.int64),
            ("prev_positions", SEQUENCES, torch.int64),
            ("num_scheduled_tokens", SEQUENCES, torch.int32),
            ("discard_request_mask", SEQUENCES, torch.bool),
            ("num_accepted_tokens", SEQUENCES, torch.int32),
        ):
            setattr(runner, name, runner._make_buffer(rows, dtype=dtype))
        table = genuine(
            read, TABLE, "BlockTable", "append_row", "commit_block_table", "_make_buffer", **names
        )()
        table.use_hybrid_blocks, table.device, table.pin_memory = False, CPU, False
        table.num_blocks_per_row = np.zeros(SEQUENCES, np.int32)
        table.block_table = table._make_buffer(SEQUENCES, BLOCKS, dtype=torch.int32)
        words = torch.arange(SEQUENCES * 16, dtype=torch.int32).reshape(SEQUENCES, 16)
        computed = torch.zeros(SEQUENCES, dtype=torch.int32)
        runner.input_batch = SimpleNamespace(
            block_table=Table(table),
            num_reqs=0,
            req_ids=[],
            req_prompt_embeds={},
            prev_req_id_to_index=None,
            prev_sampled_token_ids=None,
            token_ids_cpu=words.numpy(),
            token_ids_cpu_tensor=words,
            num_computed_tokens_cpu=computed.numpy(),
            num_computed_tokens_cpu_tensor=computed,
        )
        return runner

    def prepare(self, runner: Any, step: int, scheduled: list[int], asynchronous: bool) -> Any:
        """Prepare a step of sequences; what lies in GPU memory afterwards."""
        batch, count = runner.input_batch, len(scheduled)
        batch.num_reqs, batch.req_ids = count, [f"request {one}" for one in range(count)]
        for one in range(count):
            runner.requests[f"request {one}"] = SimpleNamespace(num_tokens=10 + one)
            batch.block_table.table.append_row([100 * step + one], one)
        if asynchronous and step:
            batch.prev_req_id_to_index = {name: one for one, name in enumerate(batch.req_ids)}
            sampled = torch.arange(count, dtype=torch.int32).reshape(-1, 1)
            batch.prev_sampled_token_ids = sampled + 1000 * step
        output = SimpleNamespace(
            total_num_scheduled_tokens=sum(scheduled), scheduled_spec_decode_tokens={}
        )
        runner._prepare_inputs(output, np.array(scheduled, np.int32))
        batch.num_computed_tokens_cpu[:count] += scheduled
        buffers = {name: one for name, one in vars(runner).items() if hasattr(one, "copy_to_gpu")}
        buffers["block_table"] = batch.block_table.table.block_table
        state = {name: one.gpu.tolist() for name, one in buffers.items()}
        return state | {
            name: one.tolist() for name, one in vars(runner).items() if torch.is_tensor(one)
        }

    def steps(self, runner: Any, asynchronous: bool) -> list[Any]:
        every = ([5, 7, 3], [1, 1, 1], [1, 1, 1], [1, 1])
        return [self.prepare(runner, *one, asynchronous) for one in enumerate(every)]

    @pytest.mark.parametrize("asynchronous", [False, True])
    def test_prepares_steps_alike_by_stores_and_by_copies(
        self, runner, plugin, monkeypatch, request, asynchronous
    ):
        stored = self.steps(runner, asynchronous)
        copies = 4 * len(COPIED) + (1 if asynchronous else 4)  # and the tokens
        assert plugin.counts == {"stored": copies, "queued": 0}
        other = request.getfixturevalue("another")
        monkeypatch.setattr(plugin, "_idle", lambda gpu: False)
        assert self.steps(other, asynchronous) == stored
        assert plugin.counts == {"stored": copies, "queued": copies}

    another = runner

    def test_would_differ_by_a_store_that_is_left_out(self, runner, another, monkeypatch):
        right = self.steps(runner, False)
        monkeypatch.setattr(another.query_pos, "copy_to_gpu", lambda n=None: None)
        assert self.steps(another, False) != right


@pytest.mark.parametrize("read", NAMED, indirect=True)
class TestWhatIsCopied:
    """docs/howto/vllm.md names what vLLM copies for a step."""

    def test_by_the_v1_runner_is_in_its_buffers(self, read):
        found = calls(read, RUNNER, "_prepare_inputs", "copy_to_gpu", "commit_block_table")
        names = [name for name, _ in found]
        assert [one for one in names if one not in SOMETIMES] == COPIED

    def test_by_the_newer_runner_is_two_arrays(self, read):
        of = ("async_copy_to_gpu", "async_tensor_h2d")
        found = calls(read, NEWER_RUNNER, "prepare_inputs", *of)
        assert [words for _, words in found] == [
            ["idx_mapping_np"],
            ["cu_num_logits_np"],  # with drafts alone
            ["query_start_loc_np"],
        ]

    def test_by_the_newer_runner_is_in_none_of_the_buffers(self, read):
        assert "CpuGpuBuffer" not in read(NEWER_RUNNER)
