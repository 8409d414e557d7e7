"""Block tables of a paged KV cache, rewritten by the CPU before each step, read by the GPU.

A scheduler gives each request blocks of the cache as it grows, and takes them back at its end. What
changed of the tables goes into GPU memory by plain stores with one fence: no copy, no launch. Then
the GPU gathers every request's keys by its row of the tables. Needs torch on a GPU; on the
simulated one numpy gathers.
"""

from collections import deque
from dataclasses import dataclass, field

import numpy as np

import gdrpy
from gdrpy import cuda

BLOCKS, TOKENS, WIDTH = 18, 4, 8  # blocks in the cache, tokens in a block, floats in a token's key
SLOTS, MOST_BLOCKS = 6, 6  # requests at a time, blocks of one
ROW = np.dtype([("length", "i4"), ("blocks", "i4", MOST_BLOCKS)])


@dataclass
class Request:
    """One that wants so many tokens, and what it has so far."""

    number: int
    wanted: int
    length: int = 0
    blocks: list[int] = field(default_factory=list)


class Scheduler:
    """Who has which blocks of the cache, and which slot of the tables."""

    def __init__(self, requests: list[Request]) -> None:
        self.waiting = deque(requests)
        self.running: dict[int, Request] = {}
        self.free = list(range(BLOCKS))
        self.preempted = 0

    def step(self) -> set[int]:
        """Give every running request one more token; the slots whose row changed."""
        changed = set()
        for slot in range(SLOTS):
            request = self.running.get(slot)
            if request and request.length == request.wanted:
                self._end(slot)
                changed.add(slot)
            if slot not in self.running and self.waiting and self.free:
                self.running[slot] = self.waiting.popleft()
        for slot, request in list(self.running.items()):
            if request.length % TOKENS == 0:
                if not self.free:  # it begins again when others have ended
                    self.waiting.append(Request(request.number, request.wanted))
                    self._end(slot)
                    self.preempted += 1
                    changed.add(slot)
                    continue
                request.blocks.append(self.free.pop(0))
            request.length += 1
            changed.add(slot)
        return changed

    def _end(self, slot: int) -> None:
        self.free += self.running.pop(slot).blocks


def key(request: Request, position: int) -> np.ndarray:
    """What the model would compute for one token."""
    return np.full(WIDTH, 1000 * request.number + position, np.float32)


def update(tables: gdrpy.Region, scheduler: Scheduler, changed: set[int]) -> None:
    """Rewrite the rows that changed, with one fence."""
    rows = np.zeros(len(changed), ROW)
    for row, slot in zip(rows, changed, strict=True):
        request = scheduler.running.get(slot)
        if request:
            row["length"] = request.length
            row["blocks"][: len(request.blocks)] = request.blocks
    tables.cpu.scatter(
        [slot * ROW.itemsize for slot in changed], rows.view((np.uint8, ROW.itemsize))
    )


def append(cache: gdrpy.Region, scheduler: Scheduler) -> None:
    """Write the newest token's key of each request to where its table has it."""
    pieces = []
    for request in scheduler.running.values():
        position = request.length - 1
        place = request.blocks[position // TOKENS] * TOKENS + position % TOKENS
        pieces.append((4 * WIDTH * place, key(request, position).tobytes()))
    cache.cpu.write_many(pieces)


def gathered(cache: gdrpy.Region, tables: gdrpy.Region) -> list[np.ndarray]:
    """For each slot the keys that its row leads to, as the GPU finds them."""
    if cuda.simulated():
        from numpy import from_dlpack
    else:
        from torch import from_dlpack
    blocks = from_dlpack(cache.array((BLOCKS, TOKENS * WIDTH), "F32"))
    rows = from_dlpack(tables.array((SLOTS, 1 + MOST_BLOCKS), "I32"))
    found = blocks[rows[:, 1:]].reshape(SLOTS, -1, WIDTH)  # of all slots at once
    lengths = rows[:, 0].tolist()
    return [np.array(found[slot, :length].tolist()) for slot, length in enumerate(lengths)]


scheduler = Scheduler([Request(number, 5 + 7 * number % 19) for number in range(1, 21)])
steps = tokens = 0
with gdrpy.alloc(4 * BLOCKS * TOKENS * WIDTH) as cache, gdrpy.alloc(SLOTS * ROW.itemsize) as tables:
    tables.fill(0)
    cache.fill(0)
    while scheduler.waiting or scheduler.running:
        update(tables, scheduler, scheduler.step())
        append(cache, scheduler)
        for slot, keys in enumerate(gathered(cache, tables)):
            request = scheduler.running.get(slot)
            length = request.length if request else 0
            assert len(keys) == length
            for position in range(length):
                assert (keys[position] == key(request, position)).all()
            tokens += length > 0
        steps += 1

print(f"{steps} steps, {tokens} tokens, {scheduler.preempted} requests had to begin again")
print(f"every key found by the tables; {len(scheduler.free)} of {BLOCKS} blocks free at the end")
