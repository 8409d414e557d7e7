"""A small transformer generates text from a paged cache; the CPU stores the inputs of each step.

The step is a CUDA graph, captured for each of the two sets of inputs. Each step's tokens, positions
and block tables are stored by one call, where engines queue copies. The simulated GPU has no
kernels: torch works on the CPU there, in the same memory. Needs torch and numpy.
"""

import time

import numpy as np
import torch

import gdrpy
from gdrpy import cuda

BATCH, WORDS, WIDTH, HEADS = 4, 97, 32, 4
PAGE, PAGES = 8, 6  # tokens in a page of the cache, pages of a sequence
STEPS = PAGE * PAGES
DEVICE = "cpu" if cuda.simulated() else "cuda"


class Model:
    """One layer of attention, with random weights, in doubles: both ways must choose alike."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        self.words, self.places, self.query, self.key, self.value, self.head = (
            torch.randn(rows, WIDTH, dtype=torch.float64).to(DEVICE) / WIDTH**0.5
            for rows in (WORDS, STEPS, WIDTH, WIDTH, WIDTH, WORDS)
        )
        cache = (2, BATCH * PAGES, PAGE, WIDTH)
        self.cache = torch.zeros(cache, dtype=torch.float64, device=DEVICE)

    def step(
        self, tokens: torch.Tensor, positions: torch.Tensor, blocks: torch.Tensor
    ) -> torch.Tensor:
        """The next token of each sequence. ``blocks`` has the pages of each."""
        seen = self.words[tokens] + self.places[positions]
        page = blocks.gather(1, (positions // PAGE)[:, None].to(torch.int64))[:, 0]
        self.cache[0, page, positions % PAGE] = seen @ self.key
        self.cache[1, page, positions % PAGE] = seen @ self.value
        keys, values = (
            half[blocks].view(BATCH, STEPS, HEADS, -1).transpose(1, 2) for half in self.cache
        )
        query = (seen @ self.query).view(BATCH, HEADS, 1, -1)
        late = torch.arange(STEPS, device=DEVICE) > positions[:, None]
        scores = (query @ keys.mT).masked_fill(late[:, None, None], float("-inf"))
        mixed = (scores.softmax(-1) @ values).transpose(1, 2).reshape(BATCH, WIDTH)
        return ((seen + mixed) @ self.head.T).argmax(-1)

    def whole(self, texts: torch.Tensor) -> torch.Tensor:
        """The next token after whole texts, computed anew without the cache."""
        seen = self.words[texts] + self.places[: texts.shape[1]]
        query, keys, values = (
            (seen @ weights).view(BATCH, -1, HEADS, WIDTH // HEADS).transpose(1, 2)
            for weights in (self.query, self.key, self.value)
        )
        mixed = ((query[:, :, -1:] @ keys.mT).softmax(-1) @ values).reshape(BATCH, WIDTH)
        return ((seen[:, -1] + mixed) @ self.head.T).argmax(-1)


def started(model: Model, inputs: gdrpy.StepInputs) -> list:
    """For each set of inputs, a function that runs the step on it and returns its result."""
    steps = []
    for arrays in inputs.sets:
        if cuda.simulated():
            views = [torch.from_numpy(array.numpy()) for array in arrays.values()]
            steps.append(lambda views=views: model.step(*views))
            continue
        views = [torch.from_dlpack(array) for array in arrays.values()]
        model.step(*views)  # once before, so that torch has set up all that it needs
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = model.step(*views)
        steps.append(lambda graph=graph, result=result: (graph.replay(), result)[1])
    return steps


model = Model()
inputs = gdrpy.StepInputs(
    {"tokens": (BATCH, "int64"), "positions": (BATCH, "int64"), "blocks": ((BATCH, PAGES), "int64")}
)
steps = started(model, inputs)
model.cache.zero_()

texts = np.arange(BATCH)[:, None] + 7  # a token of each sequence
blocks = np.zeros((BATCH, PAGES), np.int64)
begun = time.perf_counter()
for place in range(STEPS):
    if place % PAGE == 0:  # each sequence gets another page
        blocks[:, place // PAGE] = np.arange(BATCH) + BATCH * (place // PAGE)
    number = inputs.store(
        tokens=np.ascontiguousarray(texts[:, -1]), positions=np.full(BATCH, place), blocks=blocks
    )
    texts = np.column_stack([texts, steps[number]().cpu().numpy()])
taken = time.perf_counter() - begun

again = torch.from_numpy(texts[:, :1]).to(DEVICE)
for _ in range(STEPS):
    again = torch.column_stack([again, model.whole(again)])
print(" ".join(map(str, texts[0])))
print(f"{STEPS} steps of {BATCH} sequences, {taken / STEPS * 1e6:.0f} us each")
print(f"the same tokens as without a cache: {(again.cpu().numpy() == texts).all()}")
