"""A vLLM engine of the benchmark of engines, or the maker of its model.

``make FOLDER SEED SIZE [awq]`` writes a Llama of random weights. ``serve OPTIONS`` is an engine
that answers lines, and ``train FOLDER SOCKET`` sends that model to one: see engines.py.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

#: Hidden size, layers, size of the MLP, vocabulary, heads, heads of keys.
SIZES = {
    "small": (1024, 4, 2816, 8000, 8, 2),
    "7.5GB": (4096, 16, 14336, 32000, 32, 8),
    "32GB": (6144, 40, 16384, 32000, 48, 8),
}

#: The rows of a weight that have one scale.
_GROUP = 128


def make(folder: str, seed: str, size: str, quantization: str = "") -> None:
    """Write a model of random weights, in a file for each layer."""
    import torch
    from safetensors.torch import save_file

    hidden, layers, inner, vocabulary, heads, keys = SIZES[size]
    generator = torch.Generator("cuda").manual_seed(int(seed))
    wide = hidden // heads * keys

    def random(*shape: int) -> torch.Tensor:
        made = torch.randn(shape, generator=generator, device="cuda") * 0.02
        return made.to(torch.bfloat16)

    def ones() -> torch.Tensor:
        return torch.ones(hidden, dtype=torch.bfloat16, device="cuda")

    def linear(name: str, out: int, into: int) -> dict[str, torch.Tensor]:
        if quantization != "awq":
            return {f"{name}.weight": random(out, into)}
        return {
            f"{name}.qweight": words(into, out // 8),
            f"{name}.qzeros": words(into // _GROUP, out // 8),
            f"{name}.scales": random(into // _GROUP, out).abs() / 8,
        }

    def words(*shape: int) -> torch.Tensor:
        """Eight numbers of four bits each."""
        range_ = -(1 << 31), (1 << 31) - 1
        return torch.randint(*range_, shape, generator=generator, device="cuda", dtype=torch.int32)

    files = {
        "ends": {
            "model.embed_tokens.weight": random(vocabulary, hidden),
            "lm_head.weight": random(vocabulary, hidden),
            "model.norm.weight": ones(),
        }
    }
    for layer in range(layers):
        at = f"model.layers.{layer}"
        files[f"layer-{layer}"] = {
            **linear(f"{at}.self_attn.q_proj", hidden, hidden),
            **linear(f"{at}.self_attn.k_proj", wide, hidden),
            **linear(f"{at}.self_attn.v_proj", wide, hidden),
            **linear(f"{at}.self_attn.o_proj", hidden, hidden),
            **linear(f"{at}.mlp.gate_proj", inner, hidden),
            **linear(f"{at}.mlp.up_proj", inner, hidden),
            **linear(f"{at}.mlp.down_proj", hidden, inner),
            f"{at}.input_layernorm.weight": ones(),
            f"{at}.post_attention_layernorm.weight": ones(),
        }
    root = Path(folder)
    root.mkdir(parents=True, exist_ok=True)
    index = {}
    for name, tensors in files.items():
        save_file(tensors, root / f"{name}.safetensors")
        index |= dict.fromkeys(tensors, f"{name}.safetensors")
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "intermediate_size": inner,
        "vocab_size": vocabulary,
        "num_attention_heads": heads,
        "num_key_value_heads": keys,
        "head_dim": hidden // heads,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    if quantization == "awq":
        awq = {"bits": 4, "group_size": _GROUP, "zero_point": True, "version": "gemm"}
        config["quantization_config"] = {"quant_method": "awq", **awq}
    (root / "config.json").write_text(json.dumps(config))
    about = {"metadata": {}, "weight_map": index}
    (root / "model.safetensors.index.json").write_text(json.dumps(about))


class Engine:
    """An engine, and the requests that it answers."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._began = perf_counter()
        self._times: dict[str, float] = {}
        import torch
        from vllm import LLM
        from vllm.v1.worker import gpu_worker

        self._torch = torch
        self._times["import_s"] = perf_counter() - self._began
        self._timed(gpu_worker.Worker, "load_model", "load_s")
        if options["load_format"] == "gdrpy":
            from gdrpy.broker.client.broker import Broker
            from gdrpy.vllm import loader

            self._timed(Broker, "wake", "open_s")
            self._timed(Broker, "keep_many", "keep_s")
            self._timed(loader, "initialize_model", "initialize_s")
            self._timed(loader.Contents, "fill", "fill_s")
            self._timed(loader.Loader, "load_model", "weights_s")
        began = perf_counter()
        most = options.setdefault("max_num_seqs", 64)
        self._llm = LLM(
            **options,
            skip_tokenizer_init=True,
            attention_backend="TRITON_ATTN",
            enable_sleep_mode=True,
            worker_extension_cls="gdrpy.vllm.WorkerExtension",
            enable_prefix_caching=False,  # what is cached changes the last bits, and so tokens
            max_model_len=512,
            compilation_config={
                "mode": 0,
                "cudagraph_mode": "FULL_DECODE_ONLY",
                "cudagraph_capture_sizes": [1 << power for power in range(most.bit_length())],
            },
        )
        self._times["start_s"] = perf_counter() - began

    def _timed(self, owner: Any, name: str, key: str) -> None:
        """Have the time of a function's calls kept."""
        function = getattr(owner, name)

        def timed(*arguments: Any, **more: Any) -> Any:
            self._torch.cuda.synchronize()
            began = perf_counter()
            try:
                return function(*arguments, **more)
            finally:
                self._torch.cuda.synchronize()
                self._times[key] = self._times.get(key, 0.0) + perf_counter() - began

        setattr(owner, name, timed)

    def times(self) -> dict[str, float]:
        """How long its start took, and parts of it."""
        return self._times

    def say(self, prompts: Sequence[Sequence[int]], length: int) -> list[list[int]]:
        """So many tokens after each prompt, greedily."""
        from vllm import SamplingParams

        asked = [{"prompt_token_ids": list(one)} for one in prompts]
        how = SamplingParams(temperature=0, max_tokens=length, detokenize=False, ignore_eos=True)
        said = self._llm.generate(asked, how, use_tqdm=False)
        return [list(one.outputs[0].token_ids) for one in said]

    def tokens(self, prompts: int, length: int) -> dict[str, Any]:
        """A digest of what the engine says, and the seconds that it took."""
        words = self._llm.llm_engine.model_config.get_vocab_size() - 3
        asked = [
            [3 + (17 * number + 5 * at) % words for at in range(20)] for number in range(prompts)
        ]
        began = perf_counter()
        found = self.say(asked, length)
        taken = perf_counter() - began
        different = len({token for one in found for token in one})
        digest = hashlib.sha256(json.dumps(found).encode()).hexdigest()
        return {"digest": digest, "seconds": taken, "different": different}

    def sleep(self, level: int) -> float:
        """Seconds to fall asleep."""
        return self._seconds(lambda: self._llm.sleep(level=level))

    def wake(self) -> float:
        """Seconds to wake."""
        return self._seconds(self._llm.wake_up)

    def wake_and_say(self) -> float:
        """Seconds to wake and say a first token."""
        return self._seconds(lambda: (self._llm.wake_up(), self.tokens(1, 1)))

    def update(self) -> float:
        """Seconds to take the newest version of the weights."""
        return self._seconds(lambda: self._llm.collective_rpc("update_shared_weights"))

    def receive(self, socket: str, update: dict[str, Any]) -> float:
        """Seconds to take a trainer's weights."""

        def act() -> None:
            self._llm.init_weight_transfer_engine({"init_info": {"socket": socket}})
            self._llm.start_weight_update()
            self._llm.update_weights({"update_info": update})
            self._llm.finish_weight_update()

        return self._seconds(act)

    def _seconds(self, act: Any) -> float:
        self._torch.cuda.synchronize()
        began = perf_counter()
        act()
        self._torch.cuda.synchronize()
        return perf_counter() - began


def train(folder: str, socket: str) -> None:
    """Send a model's tensors as a trainer does: say the update, and go on once it was taken."""
    from safetensors.torch import load_file

    from gdrpy.vllm.transfer import Engine as Transfer
    from gdrpy.vllm.transfer import SendArgs

    answer = _answers()
    tensors = [load_file(one, device="cuda") for one in Path(folder).glob("*.safetensors")]

    def send(update: dict[str, Any]) -> None:
        answer(update)
        sys.stdin.readline()

    each = (pair for some in tensors for pair in some.items())
    Transfer.trainer_send_weights(each, SendArgs("trained", send, socket))
    answer("deleted")


def serve(options: str) -> None:
    """Answer lines."""
    answer = _answers()
    engine = Engine(json.loads(options))
    answer(engine.times())
    for line in sys.stdin:
        action, *arguments = json.loads(line)
        answer(getattr(engine, action)(*arguments))


def _answers() -> Callable[[Any], None]:
    """A function that writes a line. Whatever vLLM prints goes to standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(value: Any) -> None:
        print(json.dumps(value), file=answers, flush=True)

    return answer


if __name__ == "__main__":
    {"make": make, "serve": serve, "train": train}[sys.argv[1]](*sys.argv[2:])
