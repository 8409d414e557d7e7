"""Three workers share one copy of a model: transformers' Llama where it is installed, else a small
module with the same features (tied weights, frequencies that are not part of the state).

A checkpoint's folder is shared alike: `gdrpy load FOLDER model` in place of gdrpy.torch.share().
"""

import subprocess
import sys

import torch

import gdrpy
import gdrpy.torch
from gdrpy.broker import temporary

try:
    from transformers import LlamaConfig, LlamaForCausalLM
except ImportError:
    LlamaForCausalLM = None

WORDS = torch.arange(16).reshape(1, -1)


class Small(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(128, 64)
        self.layer = torch.nn.Linear(64, 64)
        self.register_buffer("frequencies", 1 / 10 ** (torch.arange(64) / 64), persistent=False)
        self.head = torch.nn.Linear(64, 128, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(self.embedding(words)) * torch.cos(self.frequencies))


def make() -> torch.nn.Module:
    """The model by its configuration, as of AutoConfig.from_pretrained() for a real one."""
    if LlamaForCausalLM is None:
        return Small().eval()
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": True}
    return LlamaForCausalLM(LlamaConfig(vocab_size=128, **sizes, **heads)).eval()


@torch.no_grad()
def answer(model: torch.nn.Module) -> list[float]:
    """The last word's logits."""
    found = model(WORDS.to(next(model.parameters()).device))
    return getattr(found, "logits", found)[0, -1].tolist()


def work(path: str) -> None:
    with gdrpy.torch.empty_weights():  # no memory for the weights
        model = make()
    gdrpy.torch.assign(model, gdrpy.torch.attach(gdrpy.connect(path), "model"))
    print(answer(model), flush=True)
    sys.stdin.read()  # until the parent has counted


def main() -> None:
    with temporary() as path, gdrpy.connect(path) as broker:
        model = make()
        shared = gdrpy.torch.share(broker, "model", model)
        gdrpy.torch.assign(model, shared)  # and the private copy is freed
        expected = answer(model)
        command = [sys.executable, __file__, path]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        workers = [subprocess.Popen(command, **pipes) for _ in range(3)]
        answers = [worker.stdout.readline() for worker in workers]
        print("the same answers:", answers == [f"{expected}\n"] * 3)
        print("processes with the one copy:", len(broker.stat("model").holders))
        for worker in workers:
            worker.communicate()


if __name__ == "__main__":
    work(sys.argv[1]) if sys.argv[1:] else main()
